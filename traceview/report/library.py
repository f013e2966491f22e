"""plotly.js as a page holds it. Packing takes a while, so it may begin before anything else is known of the page."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import threading
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = "package_data/plotly.min.js"
STYLE = re.compile(rb'getElementById\("([0-9a-f]{64})"\)')


@dataclass(frozen=True, slots=True)
class Library:
    """`packed` is deflated, as base64; `digest` lets its text run; it looks for style elements of these ids."""

    packed: str
    digest: str
    style_ids: tuple[str, ...]


_lock = threading.Lock()


def begin() -> None:
    """Begin to pack on another thread."""
    threading.Thread(target=library, daemon=True).start()


def library() -> Library:
    """Return the library; wait for it where it has been begun. Raises ModuleNotFoundError and OSError."""
    with _lock:
        return _made()


@cache
def _made() -> Library:
    text = _text()
    packed = base64.b64encode(zlib.compress(text, 6)).decode("ascii")
    own = {one.decode("ascii") for one in STYLE.findall(text)}
    return Library(packed, sha256(text), ("plotly.js-style-global", *sorted(own)))


def _text() -> bytes:
    # Importing plotly would take longer than reading the one file of it that is needed.
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("plotly is not installed")
    return (Path(found.origin).parent / FILE).read_bytes()


def sha256(text: bytes) -> str:
    """Return a hash as a content security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode('ascii')}"
