"""plotly.js comes out of a page as it went in, however many ask for it at once."""

from __future__ import annotations

import base64
import hashlib
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plotly.offline import get_plotlyjs

from traceview.cache import Store
from traceview.report.library import _made, _text, library


def test_what_was_packed_is_kept_by_what_it_holds(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    first = _made(_text(), store)
    [entry] = store.entries()
    assert _made(_text(), store) == first == library()
    other = _made(_text()[:-1], store)
    assert other.packed != first.packed and len(store.entries()) == 2
    kept = store.root / entry.question / entry.name
    kept.write_bytes(kept.read_bytes()[:-1])
    assert _made(_text(), store) == first
    store.clear()
    assert _made(_text(), store) == first


def test_the_library_is_plotly_js_and_packed_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: library(), range(4)))
    assert all(one is found[0] for one in found)
    text = get_plotlyjs().encode("utf-8")
    assert zlib.decompress(base64.b64decode(found[0].packed)) == text
    assert found[0].digest == f"sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}"
    assert len(found[0].style_ids) > 1 and all(one.encode() in text for one in found[0].style_ids[1:])
