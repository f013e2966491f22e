"""The copies among a device's work, by kind and memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.measure.activity import COPY, Activity
from traceview.model.trace import KINDS, MEMORIES, Trace


class Copies(NamedTuple):
    """Copies as places in the device's Activity, ascending, each with its code of KINDS and of MEMORIES."""

    at: Times
    kind: NDArray[np.uint8]
    memory: NDArray[np.uint8]

    @classmethod
    def of(cls, trace: Trace, work: Activity) -> Copies:
        """Find the copies of one device."""
        at = np.flatnonzero(work.codes == COPY)
        chosen = trace.operations.select("kind", "memory")[work.rows[at]]
        return cls(at, chosen["kind"].to_physical().to_numpy(), chosen["memory"].to_physical().to_numpy())

    def those(self, kind: str, memory: str) -> Times:
        """Return the places of the copies of one kind and memory."""
        found: Times = self.at[(self.kind == KINDS.index(kind)) & (self.memory == MEMORIES.index(memory))]
        return found

    def by_pair(self) -> Iterator[tuple[str, str, Times]]:
        """Yield each kind and memory that there is, in the order of KINDS and MEMORIES, with its copies' places."""
        pair = self.kind * np.uint8(len(MEMORIES)) + self.memory
        for code in np.flatnonzero(np.bincount(pair)).tolist():
            kind, memory = divmod(code, len(MEMORIES))
            yield KINDS[kind], MEMORIES[memory], self.at[pair == code]
