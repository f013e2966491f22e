"""plotly.js is in the page unchanged."""

from __future__ import annotations

import base64
import hashlib
import zlib

from plotly.offline import get_plotlyjs

from traceview.report.analysis.page import library


def test_library_is_plotly_js_packed_once() -> None:
    packed = library()
    assert library() is packed
    text = get_plotlyjs().encode("utf-8")
    assert zlib.decompress(base64.b64decode(packed.packed)) == text
    assert packed.digest == f"sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}"
    assert len(packed.style_ids) > 1 and all(style.encode() in text for style in packed.style_ids[1:])
