"""plotly.js comes out of a page as it went in, however many ask for it at once."""

from __future__ import annotations

import base64
import hashlib
import zlib
from concurrent.futures import ThreadPoolExecutor

from plotly.offline import get_plotlyjs

from traceview.report.library import begin, library


def test_the_library_is_plotly_js_and_packed_once() -> None:
    begin()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: library(), range(4)))
    assert all(one is found[0] for one in found)
    text = get_plotlyjs().encode("utf-8")
    assert zlib.decompress(base64.b64decode(found[0].packed)) == text
    assert found[0].digest == f"sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}"
    assert len(found[0].style_ids) > 1 and all(one.encode() in text for one in found[0].style_ids[1:])
