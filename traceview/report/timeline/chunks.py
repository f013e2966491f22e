"""The packed chunks of the page's columns, and how much of the byte budget is left for more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from traceview.intervals import Times
from traceview.report.timeline.columns import Columns
from traceview.report.timeline.marks import Marks, used

MAX_UNPACKED = 7  # bytes of memory for a byte of the budget: the page must fit its browser tab
CHUNK_BYTES = 1_000_000  # of memory, after which the next chunk begins: the page unpacks one chunk at a time
LEAST_SHARE = 0.9  # of the last packing ratio: marks that pack so much better are rare, and packing takes time

Json = dict[str, Any]


@dataclass(slots=True)
class ChunkBudget:
    """The chunks that are packed, and what is left of the budget, in bytes of the file and of memory."""

    zero: int
    left: int
    memory: int
    ratio: float = 0.0  # bytes of the file for a byte of memory, of the chunks packed last
    chunks: list[str] = field(default_factory=list)
    names: list[Times] = field(default_factory=list)  # numbers of the names that the chunks use

    @classmethod
    def from_bytes(cls, zero: int, budget: int) -> ChunkBudget:
        """Return an empty list of chunks that may take `budget` bytes of the file; times count from `zero`."""
        return cls(zero, budget, budget * MAX_UNPACKED)

    def add(self, marks: Sequence[Marks], *, share: float = 1.0, ratio: float = 0.0) -> list[Json]:
        """Pack marks if they fit into `share` of what is left; return the place of each, or nothing if they do not.

        `ratio` is the packing ratio of similar marks: what cannot fit at that ratio is not packed.
        """
        parts, places = self._columns(marks)
        size = sum(part.size for part in parts)
        room = self.left * share
        if size > self.memory or size * ratio * LEAST_SHARE > room:
            return []
        texts = [part.packed() for part in parts]
        if sum(map(len, texts)) > room:
            return []
        return self._keep(marks, texts, size, places)

    def require(self, marks: Sequence[Marks]) -> list[Json]:
        """Pack marks whatever is left; return the place of each."""
        parts, places = self._columns(marks)
        return self._keep(marks, [part.packed() for part in parts], sum(part.size for part in parts), places)

    def require_columns(self, columns: Columns) -> int:
        """Pack columns as a chunk of their own, whatever is left; return the chunk's number."""
        self._keep([], [columns.packed()], columns.size, [])
        return len(self.chunks) - 1

    def _columns(self, marks: Sequence[Marks]) -> tuple[list[Columns], list[tuple[int, Json]]]:
        """Return the marks as columns of one or more chunks, and the chunk and place of each."""
        parts, places = [Columns()], []
        for lane in marks:
            if parts[-1].size > CHUNK_BYTES:
                parts.append(Columns())
            places.append((len(parts) - 1, lane.write(parts[-1], self.zero)))
        return parts, places

    def _keep(
        self, marks: Sequence[Marks], texts: Sequence[str], size: int, places: Sequence[tuple[int, Json]]
    ) -> list[Json]:
        packed = sum(map(len, texts))
        self.ratio = packed / max(size, 1)
        self.left -= packed
        self.memory -= size
        self.names.extend(used(lane.name) for lane in marks if len(lane))
        first = len(self.chunks)
        self.chunks.extend(texts)
        return [{"chunk": first + part, "marks": place} for part, place in places]
