"""A trace cut into pieces of whole events, a few megabytes at a time: it may be larger than memory.

A trace is one JSON object; what is not in its list `traceEvents` (GPUs, rank, clock) is small and kept apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

import numpy as np
from numpy.typing import NDArray

from traceview.read.limits import MAX_TEXT

BLOCK = 8 << 20
MOST_AROUND = 16 << 20  # of all that is no event, before and behind them; it becomes Python's own values
DEEPEST = 64  # events have two levels; a parser may not survive a hundred thousand
EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
SEPARATOR = 0x1E  # no JSON text may hold this byte as it is

QUOTE, BACKSLASH = ord('"'), ord("\\")
BLANKS = b" \t\r\n"
BLANK = np.isin(np.arange(256), list(BLANKS))
STEPS = np.zeros(256, np.int8)
STEPS[[ord("{"), ord("[")]] = 1
STEPS[[ord("}"), ord("]")]] = -1
STRUCTURE = STEPS != 0


class NotJsonError(ValueError):
    """The text is no JSON that this can cut: `cut_off` where it only ends early."""

    def __init__(self, reason: str, *, cut_off: bool = False) -> None:
        super().__init__(reason)
        self.cut_off = cut_off


class Pieces:
    """One pass over a trace: iterate for the events, then `around` is the rest of the document.

    Each piece is the text of some events with SEPARATOR between them. Raises NotJsonError.
    """

    def __init__(self, source: IO[bytes], block: int = BLOCK) -> None:
        self.source, self.block = source, block
        self.around = b""

    def __iter__(self) -> Iterator[bytes]:
        before, rest = self._before()
        comma_due = False
        while True:
            rest = rest.lstrip(BLANKS)
            if comma_due and rest.startswith(b","):
                rest, comma_due = rest[1:], False
            ends, last = _ends(np.frombuffer(rest, np.uint8))
            if len(ends):
                _refuse_long_events(int(np.diff(ends, prepend=0).max()))
                yield _separated(rest, ends)
                comma_due = True
            if last is not None:
                # A comma behind the last event loses nothing; what a flipped quote hides there would be lost.
                if rest[int(ends[-1]) if len(ends) else 0 : last].strip(BLANKS) not in (b"", b","):
                    raise NotJsonError("holds something that is no event")
                break
            rest = self._more(rest[int(ends[-1]) :] if len(ends) else rest)
        self.around = before + rest[last:] + self._rest()

    def _before(self) -> tuple[bytes, bytes]:
        """Return the text up to the list's bracket, and what was read behind it."""
        text = b""
        while more := self.source.read(max(self.block, len(text))):
            text += more
            if (begin := _list_of_events(text)) is not None:
                return text[:begin], text[begin:]
            if len(text) > MOST_AROUND:
                raise NotJsonError("has no list of events in its first 16 MB")
        _, depth = _levels(np.frombuffer(text, np.uint8))
        raise NotJsonError("has no list of events", cut_off=len(depth) > 0 and int(depth[-1]) > 0)

    def _more(self, rest: bytes) -> bytes:
        _refuse_long_events(len(rest))
        # Twice what is left over, so that one long event is not scanned once a block.
        more = self.source.read(min(max(self.block, len(rest)), MAX_TEXT + 1))
        if not more:
            raise NotJsonError("ends in the middle of its events", cut_off=True)
        return rest + more

    def _rest(self) -> bytes:
        rest = self.source.read(MOST_AROUND)
        if self.source.read(1):
            raise NotJsonError("has more than 16 MB behind its events")
        return rest


def _refuse_long_events(length: int) -> None:
    if length > MAX_TEXT:
        raise NotJsonError(f"holds an event of more than {MAX_TEXT >> 20} MB")


def _list_of_events(text: bytes) -> int | None:
    """Return where the list of events begins, behind its bracket: only the document's own key counts."""
    found = [(one.start(), one.end()) for one in EVENTS.finditer(text)]
    if not found:
        return None
    starts = np.array([start for start, _ in found])
    plain = np.frombuffer(text, np.uint8)
    at, depth = _levels(plain)
    if not len(at):
        return None
    before = np.searchsorted(at, starts)
    own = (before > 0) & (depth[before - 1] == 1) & (np.searchsorted(_quotes(plain), starts) % 2 == 0)
    return found[int(np.argmax(own))][1] if own.any() else None


def _ends(text: NDArray[np.uint8]) -> tuple[NDArray[np.int64], int | None]:
    """Return where each whole event ends (behind its brace), and where the bracket is that ends them all."""
    at, depth = _levels(text)
    if len(depth) and int(depth.max()) > DEEPEST:
        raise NotJsonError(f"is nested more than {DEEPEST} deep")
    beyond = np.flatnonzero(depth < 0)
    last = int(at[beyond[0]]) if len(beyond) else None
    if len(beyond):
        at, depth = at[: beyond[0]], depth[: beyond[0]]
    ends = at[depth == 0]
    if (text[ends] != ord("}")).any():
        raise NotJsonError("has an event that is no object")
    return ends + 1, last


def _levels(text: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the braces and brackets outside of strings are, and how deep it is behind each."""
    quotes = _quotes(text)
    at = np.flatnonzero(STRUCTURE[text])
    at = at[np.searchsorted(quotes, at) % 2 == 0]
    return at, np.cumsum(STEPS[text[at]], dtype=np.int64)


def _quotes(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return where strings begin and end: quotes that no odd run of backslashes stands before."""
    quotes = np.flatnonzero(text == QUOTE)
    after = quotes[(quotes > 0) & (text[quotes - 1] == BACKSLASH)]
    if len(after) == 0:
        return quotes
    slashes = np.flatnonzero(text == BACKSLASH)
    firsts = slashes[np.diff(slashes, prepend=-2) > 1]
    run = after - firsts[np.searchsorted(firsts, after) - 1]
    return np.setdiff1d(quotes, after[run % 2 == 1], assume_unique=True)


def _separated(text: bytes, ends: NDArray[np.int64]) -> bytes:
    """Return the events with SEPARATOR in place of the commas between them."""
    whole = np.frombuffer(text, np.uint8, count=int(ends[-1])).copy()
    if (whole == SEPARATOR).any():
        raise NotJsonError("holds a control character")
    comma = ends[:-1].copy()
    while (blank := BLANK[whole[comma]]).any():
        comma[blank] += 1
    if (whole[comma] != ord(",")).any():
        raise NotJsonError("lacks a comma between two events")
    whole[comma] = SEPARATOR
    return whole.tobytes()
