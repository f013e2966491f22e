"""plotly.js as a page holds it. Packing takes a while: it may begin before anything else is known, and be kept."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

FILE = "package_data/plotly.min.js"
LEVEL = 6  # of zlib's
KEPT = f"deflated, level {LEVEL}"
STYLE = re.compile(rb'getElementById\("([0-9a-f]{64})"\)')


@dataclass(frozen=True, slots=True)
class Library:
    """`packed` is deflated, as base64; `digest` lets its text run; it looks for style elements of these ids."""

    packed: str
    digest: str
    style_ids: tuple[str, ...]


class Shelf(Protocol):
    """Where texts are kept by digest and name, as a cache keeps them: what it returns is what was put there."""

    def get(self, question: str, name: str) -> str | None:
        """Return a text, if it is there."""

    def put(self, question: str, name: str, answer: str) -> bool:
        """Keep a text, if there is room."""


_lock = threading.Lock()
_found: list[Library] = []


def begin(shelf: Shelf | None = None) -> None:
    """Begin to pack on another thread, or to take what was packed before from the shelf."""
    threading.Thread(target=library, args=(shelf,), daemon=True).start()


def library(shelf: Shelf | None = None) -> Library:
    """Return the library; wait for it where it has been begun. Raises ModuleNotFoundError and OSError."""
    with _lock:
        if not _found:
            _found.append(_made(_text(), shelf))
        return _found[0]


def _made(text: bytes, shelf: Shelf | None) -> Library:
    packed = _packed(text) if shelf is None else _kept(text, shelf)
    own = {one.decode("ascii") for one in STYLE.findall(text)}
    return Library(packed, sha256(text), ("plotly.js-style-global", *sorted(own)))


def _kept(text: bytes, shelf: Shelf) -> str:
    question = hashlib.blake2b(text, digest_size=20).hexdigest()
    if (known := shelf.get(question, KEPT)) is not None:
        return known
    packed = _packed(text)
    shelf.put(question, KEPT, packed)
    return packed


def _packed(text: bytes) -> str:
    return base64.b64encode(zlib.compress(text, LEVEL)).decode("ascii")


def _text() -> bytes:
    # Importing plotly would take longer than reading the one file of it that is needed.
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("plotly is not installed")
    return (Path(found.origin).parent / FILE).read_bytes()


def sha256(text: bytes) -> str:
    """Return a hash as a content security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode('ascii')}"
