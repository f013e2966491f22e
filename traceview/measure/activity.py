"""What one device did, as sorted arrays and unions: the ground that the other measures stand on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Rows, Times
from traceview.model.trace import CLASSES, SOURCES, Trace, Window

COMPUTE = CLASSES.index("compute")
COMMUNICATION = CLASSES.index("communication")
COPY = CLASSES.index("copy")
KERNEL = SOURCES.index("kernel")

Value = TypeVar("Value", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Activity:
    """The GPU work of one device inside its window.

    `rows` are rows of Trace.operations, in order; `start` and `end` are theirs, clipped to the window;
    `codes` index CLASSES. `first` are the rows that the members of `busy` begin with. `later` are the rows of
    all the device's operations of some length, clipped by nothing, and `later_start` their starts, ascending:
    what ends a gap.
    """

    device: int
    window: Window
    rows: Rows
    start: Times
    end: Times
    codes: NDArray[np.uint8]
    busy: Intervals
    first: Rows
    compute: Intervals
    communication: Intervals
    later: Rows
    later_start: Times

    def idle(self) -> tuple[Intervals, Rows]:
        """Return the gaps, maximal parts of the window with no GPU work of any class, and the row that ends each."""
        gaps, members = intervals.gaps_between(self.busy, self.window.start, self.window.end)
        if members.stop <= len(self.first):
            return gaps, self.first[members]
        after = self.next_operation(np.array([self.window.end], np.int64))
        return gaps, np.append(self.first, after)[members]

    def of(self, column: NDArray[Value]) -> NDArray[Value]:
        """Return a column of Trace.operations for `rows`; where these are all, no copy."""
        return column if len(self.rows) == len(column) else column[self.rows]

    def next_operation(self, at: Times, among: NDArray[np.bool_] | None = None) -> Rows:
        """Return the row of the first operation of some length that starts at or after each moment; -1 for none.

        `among` keeps some of `later` only: those of one stream, say.
        """
        starts = self.later_start if among is None else self.later_start[among]
        rows = self.later if among is None else self.later[among]
        place = np.searchsorted(starts, at, side="left")
        found = np.full(len(at), -1, np.int32)
        some = np.flatnonzero(place < len(rows))
        found[some] = rows[place[some]]
        return found


def activity(trace: Trace, device: int) -> Activity | None:
    """Collect the work of one device; None where it did nothing inside the trace's window.

    The window runs from the first start to the last end of any GPU work, unless the trace is
    narrowed (METRICS.md "GPU work").
    """
    operations = trace.operations
    rows = intervals.rows_where(operations["device"].to_numpy() == device)
    start = operations["start"].to_numpy()
    end = operations["end"].to_numpy()
    if len(rows) < len(start):
        start, end = start[rows], end[rows]
    some_length = end > start
    later, later_start = (rows, start) if some_length.all() else (rows[some_length], start[some_length])
    if trace.window is not None:
        inside = within(start, end, trace.window)
        rows, start, end = rows[inside], start[inside], end[inside]
        start = np.maximum(start, trace.window.start)
        end = np.minimum(end, trace.window.end)
    if len(rows) == 0:
        return None
    window = trace.window or Window(int(start[0]), int(end.max()))
    codes = operations["class"].to_physical().to_numpy()
    if len(rows) < len(codes):
        codes = codes[rows]
    compute = np.flatnonzero(codes == COMPUTE)
    communication = np.flatnonzero(codes == COMMUNICATION)
    busy, first = intervals.ordered_union(start, end)
    return Activity(
        device=device,
        window=window,
        rows=rows,
        start=start,
        end=end,
        codes=codes,
        busy=busy,
        first=first.astype(np.int32) if len(rows) == len(operations) else rows[first],
        compute=_union_of(compute, start, end, busy),
        communication=_union_of(communication, start, end, busy),
        later=later,
        later_start=later_start,
    )


def _union_of(members: Times, start: Times, end: Times, busy: Intervals) -> Intervals:
    """Return the union of some operations; `busy` is that of all."""
    if len(members) == len(start):
        return busy
    return intervals.union(start[members], end[members], ordered=True)


def within(start: Times, end: Times, window: Window) -> NDArray[np.bool_]:
    """Say which events overlap a window; one of no length does when it starts inside."""
    overlaps = (start < window.end) & (end > window.start)
    points = (start == end) & (start >= window.start) & (start < window.end)
    inside: NDArray[np.bool_] = overlaps | points
    return inside
