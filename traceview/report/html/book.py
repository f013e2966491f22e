"""What a page holds of the marks: columns in packed chunks, as many as its budget has room for."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from traceview.intervals import Times
from traceview.report.html.columns import Columns
from traceview.report.html.marks import Marks, used

UNPACKED = 7  # a byte of the budget may unpack to so many, lest the page outgrow its tab
CHUNK = 1_000_000  # bytes of memory, after which the next chunk begins: the page unpacks one at a time

Json = dict[str, Any]


@dataclass(slots=True)
class Draft:
    """Marks as columns in chunks that are not in the book yet, and where each lies; packed where they may fit."""

    made: Sequence[Marks]
    places: list[tuple[int, Json]]
    parts: list[Columns]
    packing: list[Future[str]] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return sum(part.size for part in self.parts)

    def begin(self, pool: ThreadPoolExecutor) -> None:
        """Begin to pack, unless that was begun before."""
        self.packing = self.packing or [pool.submit(part.packed) for part in self.parts]


@dataclass(slots=True)
class Book:
    """The chunks that are full, and what is left of the budget, in bytes of the file and of memory."""

    zero: int
    left: int
    memory: int
    pool: ThreadPoolExecutor
    ratio: float = 0.0  # of the last chunks: bytes of the file for a byte of memory
    chunks: list[str] = field(default_factory=list)
    names: list[Times] = field(default_factory=list)  # the numbers of those that the page shows

    @classmethod
    def of(cls, zero: int, budget: int, pool: ThreadPoolExecutor) -> Book:
        """Begin with an empty book; `pool` packs."""
        return cls(zero, budget, budget * UNPACKED, pool)

    def begin(
        self, made: Sequence[Marks], *, must: bool = False, ratio: float = 0.0, before: int = 0, share: float = 1.0
    ) -> Draft:
        """Begin to pack marks into chunks, on other threads; `take` adds them.

        `ratio` is what they may be expected to pack to: packing takes time, and hopeless cases are not begun.
        `before` bytes of memory were begun and not taken yet. They may take that `share` of what is left.
        """
        parts, places = [Columns()], []
        for marks in made:
            if parts[-1].size > CHUNK:
                parts.append(Columns())
            places.append((len(parts) - 1, marks.write(parts[-1], self.zero)))
        draft = Draft(made, places, parts)
        if must or self._may_fit(draft.size + before, ratio, share):
            draft.begin(self.pool)
        return draft

    def must(self, made: Sequence[Marks]) -> list[Json]:
        """Add marks, whatever is left; return where each lies."""
        return self.take(self.begin(made, must=True), must=True)

    def take(self, draft: Draft, *, must: bool = False, ratio: float = 0.0, share: float = 1.0) -> list[Json]:
        """Add what was begun if it fits; return where each of the marks lies, or nothing if it does not."""
        if not must and not self._may_fit(draft.size, ratio, share):
            return []
        draft.begin(self.pool)
        texts = [one.result() for one in draft.packing]
        packed = sum(len(text) for text in texts)
        self.ratio = packed / max(draft.size, 1)
        if not must and packed > self.left * share:
            return []
        self.left -= packed
        self.memory -= draft.size
        self.names.extend(used(marks.name) for marks in draft.made if len(marks))
        first = len(self.chunks)
        self.chunks.extend(texts)
        return [{"chunk": first + part, "marks": place} for part, place in draft.places]

    def add(self, columns: Columns) -> int:
        """Take the columns as one more chunk, whatever is left; return its number."""
        self.take(Draft([], [], [columns]), must=True)
        return len(self.chunks) - 1

    def _may_fit(self, size: int, ratio: float, share: float) -> bool:
        return size <= self.memory and size * ratio * 0.9 <= self.left * share
