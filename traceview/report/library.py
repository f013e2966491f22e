"""plotly.js as a page holds it. Packing takes a while: what was packed is kept."""

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

from traceview.report.assets import sha256

FILE = "package_data/plotly.min.js"
LEVEL = 6  # of zlib's
KEPT = f"deflated, level {LEVEL}, with its hash and its style elements"
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


def library(shelf: Shelf | None = None) -> Library:
    """Return the library, packed or taken from the shelf; wait for a thread that does that already.

    Raises ModuleNotFoundError and OSError.
    """
    with _lock:
        if not _found:
            _found.append(_made(_text(), shelf))
        return _found[0]


def _made(text: bytes, shelf: Shelf | None) -> Library:
    if shelf is None:
        return _packed(text)
    question = hashlib.blake2b(text, digest_size=20).hexdigest()
    if (known := shelf.get(question, KEPT)) is not None:
        digest, style_ids, packed = known.split("\n", 2)
        return Library(packed, digest, tuple(style_ids.split()))
    made = _packed(text)
    shelf.put(question, KEPT, f"{made.digest}\n{' '.join(made.style_ids)}\n{made.packed}")
    return made


def _packed(text: bytes) -> Library:
    own = {one.decode("ascii") for one in STYLE.findall(text)}
    packed = base64.b64encode(zlib.compress(text, LEVEL)).decode("ascii")
    return Library(packed, sha256(text), ("plotly.js-style-global", *sorted(own)))


def _text() -> bytes:
    # Importing plotly would take longer than reading the one file of it that is needed.
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("plotly is not installed")
    return (Path(found.origin).parent / FILE).read_bytes()
