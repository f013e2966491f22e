"""plotly.js as a page holds it."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from traceview.report.assets import sha256
from traceview.report.timeline.columns import pack

FILE = "package_data/plotly.min.js"
LEVEL = 3  # isal packs the library in 20 ms; its best level, 10% larger than zlib's level 6
STYLE = re.compile(rb'getElementById\("([0-9a-f]{64})"\)')


@dataclass(frozen=True, slots=True)
class Library:
    """`packed` is deflated, as base64; a policy allows its text by `digest`; it needs style elements of `style_ids`."""

    packed: str
    digest: str
    style_ids: tuple[str, ...]


@cache
def library() -> Library:
    """Return the packed library. Raises ModuleNotFoundError and OSError."""
    text = _text()
    own = {name.decode("ascii") for name in STYLE.findall(text)}
    return Library(pack(text, LEVEL), sha256(text), ("plotly.js-style-global", *sorted(own)))


def _text() -> bytes:
    # Importing plotly takes longer than reading the one file that the page needs.
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("plotly is not installed")
    return (Path(found.origin).parent / FILE).read_bytes()
