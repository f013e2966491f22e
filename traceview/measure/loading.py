"""Data loading: which waits of the host end with the copies of a batch.

In a training loop the host's longest pause ends when the next batch is copied to the GPU, whether or not a range says
so (docs/definitions.md "Data loading"). Rules and `whatif` share this measure.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times, rows_by_code, values_at
from traceview.measure.activity import COMPUTE
from traceview.measure.shared_work import codes_of, launch_rows
from traceview.model.trace import KINDS, Trace

MIN_BATCH = 1_000  # bytes: a smaller copy is a scalar
SOON = 0.1  # share of a wait after which a copy no longer follows it
MIN_LOADING = 0.05  # share of an iteration; a shorter pause before a copy is the loop's own code, not a loader
H2D, D2H = KINDS.index("h2d"), KINDS.index("d2h")


class BatchCopies(NamedTuple):
    """The calls that may copy a batch to the GPU, and those that launch compute, in the order of time.

    `thread` is a row of Trace.threads, and `size` the bytes that a call copies, 0 for compute.
    """

    thread: Times
    start: Times
    size: Times

    @classmethod
    def from_trace(cls, trace: Trace) -> BatchCopies:
        """Find the calls that copy MIN_BATCH bytes or more, or launch compute."""
        launch, size = launch_rows(trace.operations), trace.operations["bytes"].to_numpy()
        copies = (codes_of(trace.operations, "kind") == H2D) & (size >= MIN_BATCH)
        rows = np.flatnonzero((copies | (codes_of(trace.operations, "class") == COMPUTE)) & (launch >= 0))
        calls, first = np.unique(launch[rows], return_index=True)
        thread, start = (trace.api[name].to_numpy()[calls].astype(np.int64) for name in ("thread", "start"))
        return cls(thread, start, np.where(copies, size, 0)[rows[first]])

    def bytes_after(self, thread: Times, moments: Times, waits: Times) -> Times:
        """Return the bytes of the batch that each thread copies soon after a wait, 0 for none.

        `moments` are the ends of the waits and `waits` their ns. A batch follows a wait if its copy starts within SOON
        of the wait after its end, before compute is launched: what is copied after that belongs to a later part of the
        iteration.
        """
        sizes = np.zeros(len(moments), np.int64)
        known, copies_of = np.flatnonzero(thread >= 0), dict(rows_by_code(self.thread))
        for row, some in rows_by_code(thread[known]):
            if row in copies_of:
                own, copies = known[some], copies_of[row]
                at = np.searchsorted(self.start[copies], moments[own])
                copy = values_at(copies, np.where(at < len(copies), at, -1), -1)
                soon = (copy >= 0) & (self.start[copy] - moments[own] <= waits[own] * SOON)
                sizes[own[soon]] = self.size[copy[soon]]
        return sizes


def is_input(batch: Times, copied: Times, read_back: Times) -> NDArray[np.bool_]:
    """Return which batches are input that can be loaded ahead, by their bytes.

    `copied` and `read_back` are the bytes that were copied to the GPU and to the host just before the wait. After a
    copy to the GPU, the wait is one between the copies of a batch. A host that reads back as much as it copies next
    computes the next input from it: no other thread can prepare it.
    """
    return (batch > 0) & (copied < MIN_BATCH) & (read_back < batch)
