"""The time of iterations: how long each takes, and what fills it.

How long an iteration takes is measured on the host, or on the GPU where the host runs ahead (docs/definitions.md
"Iterations").

A host that runs ahead launches an iteration long before the GPU executes it, and waits only where a queue is full. The
starts of its iterations then say little. The times when the GPU finishes each iteration do not have this defect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import BEFORE_ALL, EMPTY, MULTIPLIER, Coverage, Times, sorted_unique
from traceview.measure.activity import COMMUNICATION, COMPUTE, KERNEL, Activity, Copies
from traceview.measure.gaps import ThreadStates, attribute
from traceview.measure.shared_work import codes_of
from traceview.model.analysis import CAUSES, Gaps, Spread
from traceview.model.trace import KINDS, ROLES, Trace, Window

SYNC = ROLES.index("sync")
BLOCKED = "blocked_ns"

Integer = TypeVar("Integer", bound=np.signedinteger)


class Breakdown(NamedTuple):
    """One value per period: `figures` by the field names of model.Iteration, `idle` by cause.

    `idle` has the shape (len(CAUSES), periods). All values are in ns, except kernel_count.
    """

    figures: Mapping[str, Times]
    idle: NDArray[np.int64]


class MeasuredDevices(NamedTuple):
    """The devices that count, and the gaps of each by its row of Trace.devices."""

    activities: Sequence[Activity]
    gaps: Mapping[int, Gaps]

    @property
    def devices(self) -> list[int]:
        """The devices that count, rows of Trace.devices."""
        return [work.device for work in self.activities]


def unmeasured_processes(trace: Trace, devices: Collection[int]) -> list[int]:
    """Return the processes that use GPUs, but none of `devices` (rows of Trace.devices)."""
    processes = trace.devices["processes"].to_list()
    used = {process for device in devices for process in processes[device]}
    return sorted({process for users in processes for process in users} - used)


def breakdown(
    trace: Trace, threads: ThreadStates, measured: MeasuredDevices, process: int, start: Times, end: Times
) -> Breakdown:
    """Clip the work of the process's GPUs to each [start, end), and add up the GPUs. Periods may overlap."""
    names = ("compute", "communication", "exposed_h2d", "exposed_d2h", "exposed_communication")
    figures = {name: np.zeros(len(start), np.int64) for name in (*(f"{name}_ns" for name in names), "kernel_count")}
    idle = np.zeros((len(CAUSES), len(start)), np.int64)
    processes = trace.devices["processes"].to_list()
    for device in measured.activities:
        if process not in processes[device.device]:
            continue
        for name, ns in _work_lengths(trace, device, start, end):
            figures[f"{name}_ns"] += ns
        figures["kernel_count"] += _kernel_counts(trace, device, start, end)
        idle += _idle_by_cause(trace, threads, device, measured.gaps[device.device], start, end)
    figures[BLOCKED] = _blocked_time(trace, process, start, end)
    return Breakdown(figures, idle)


def _work_lengths(trace: Trace, device: Activity, start: Times, end: Times) -> Iterator[tuple[str, Times]]:
    """Yield the ns of compute and communication in each period, and of communication and copies without compute."""
    copies = Copies.from_activity(trace, device)
    overlappable = {"communication": device.communication}
    for kind in ("h2d", "d2h"):
        members = copies.members[copies.kind == KINDS.index(kind)]
        overlappable[kind] = intervals.union(device.start[members], device.end[members], ordered=True)
    compute = Coverage.from_union(device.compute)
    yield "compute", compute.length_between(start, end)
    yield "communication", intervals.covered_length(device.communication, start, end)
    for name, union in overlappable.items():
        pieces = intervals.parts_in_queries(union, start, end)
        hidden = compute.length_between(pieces.start, pieces.end)
        exposed = np.zeros(len(start), np.int64)
        np.add.at(exposed, pieces.query, pieces.end - pieces.start - hidden)
        yield f"exposed_{name}", exposed


def _kernel_counts(trace: Trace, device: Activity, start: Times, end: Times) -> Times:
    kernels = np.flatnonzero(device.select(codes_of(trace.operations, "source")) == KERNEL)
    # Unclipped starts: a kernel that began before the window did not start inside it.
    starts = device.select(trace.operations["start"].to_numpy())[kernels]
    counts: Times = np.searchsorted(starts, end) - np.searchsorted(starts, start)
    return counts


def _idle_by_cause(
    trace: Trace, threads: ThreadStates, device: Activity, gaps: Gaps, start: Times, end: Times
) -> NDArray[np.int64]:
    """Return the ns of each cause in each period: add up complete gaps, and attribute cut gaps again."""
    window = device.window
    # The device is also idle before its first and after its last operation.
    outer_end = np.array([window.start, max(int(end.max()), window.end)], np.int64)
    outer_start = np.array([min(int(start.min()), window.start), window.end], np.int64)
    outer_operation = device.next_operation(outer_end)
    outer_causes = attribute(trace, threads, outer_start, outer_end, outer_operation)
    rows = _cut_gap_rows(gaps, start, end)
    starts = _insert_between(outer_start, gaps.frame["start"].to_numpy()[rows])
    ends = _insert_between(outer_end, gaps.frame["end"].to_numpy()[rows])
    operation = _insert_between(outer_operation, gaps.frame["operation"].gather(rows).fill_null(-1).to_numpy())
    # Order the borders by period, so that consecutive look-ups are near each other.
    borders = np.stack([start, end], axis=1).ravel()
    place = np.maximum(np.searchsorted(starts, borders, side="right") - 1, 0)
    cut_end = np.clip(borders, starts[place], ends[place])
    before_border = np.stack(attribute(trace, threads, starts[place], cut_end, operation[place]))
    first, last = place[::2], place[1::2]
    idle = before_border[:, 1::2] - before_border[:, ::2]
    for code, cause in enumerate(CAUSES):
        # Each sum has a gap that is cut and the complete gaps up to the next cut one.
        sums = np.add.reduceat(gaps.frame[cause].to_numpy(), rows) if gaps.causes[cause] else np.zeros_like(rows)
        running = np.cumsum(_insert_between(outer_causes[code], sums))
        idle[code] += np.where(last > 0, running[last - 1], 0) - np.where(first > 0, running[first - 1], 0)
    return idle


def _cut_gap_rows(gaps: Gaps, start: Times, end: Times) -> Times:
    """Return the row of the first gap, and of each gap at or after which a period starts or ends."""
    row = np.searchsorted(gaps.frame["start"].to_numpy(), np.concatenate([start, end]), side="right") - 1
    return sorted_unique(np.append(np.maximum(row, 0), 0)) if gaps.count else EMPTY.start


def _insert_between(outer: NDArray[Integer], inner: NDArray[Integer]) -> NDArray[Integer]:
    """Return outer[0], all of `inner`, and outer[1]."""
    return np.concatenate([outer[:1], inner, outer[1:]])


def _blocked_time(trace: Trace, process: int, start: Times, end: Times) -> Times:
    """Return the time of the process's threads in explicit synchronizations, added up call by call."""
    rows = np.flatnonzero(trace.api["role"].to_physical().to_numpy() == SYNC)
    rows = rows[(trace.api.select("process")[rows]["process"] == process).to_numpy()]
    if len(rows) == 0:
        return np.zeros(len(start), np.int64)
    call_start, call_end = trace.api["start"].to_numpy()[rows], np.sort(trace.api["end"].to_numpy()[rows])
    base = int(call_start[0])

    def time_before(moments: Times) -> Times:
        return _elapsed_since(call_start, moments, base) - _elapsed_since(call_end, moments, base)

    return time_before(end) - time_before(start)


def _elapsed_since(events: Times, moments: Times, base: int) -> Times:
    """Return, for each moment, the sum of (moment - event) over all earlier events. `events` ascend."""
    count = np.searchsorted(events, moments, side="left")
    running = np.concatenate([np.zeros(1, np.int64), np.cumsum(events - base)])
    total: Times = count * (moments - base) - running[count]
    return total


# The host runs ahead if the GPU finishes later than this share of an iteration after the end of the iteration.
MAX_GPU_LAG = 0.05
MAX_PAUSE_SPREAD = 0.5  # between the quartiles of the pauses between iterations, as a share of the median iteration
RECENT = 8  # iterations of the last loop, where another one has other pauses


class IterationTimes(NamedTuple):
    """When the iterations start and end on the host, and when the GPU finishes each; `skipped` are warm-up.

    `finish` is None where an iteration launches no compute, so that its end on the GPU is unknown.
    """

    start: Times
    end: Times
    finish: Times | None
    skipped: int

    @property
    def gpu_lag(self) -> float:
        """Median time from the end of an iteration to the end of its GPU work, as a share of the median iteration."""
        if self.finish is None:
            return 0.0
        steady = slice(self.skipped, None)
        lag = float(np.median(self.finish[steady] - self.end[steady]))
        wall = float(np.median(self.end[steady] - self.start[steady]))
        return lag / wall if wall else 0.0

    @property
    def runs_ahead(self) -> bool:
        """True if the host launches an iteration long before the GPU finishes it."""
        return self.finish is not None and self.gpu_lag > MAX_GPU_LAG

    @property
    def steady(self) -> Window:
        """The time from the first counted iteration to the last, on the GPU where the host runs ahead."""
        first, last = int(self.start[self.skipped]), int(self.end.max())
        if self.finish is None or not self.runs_ahead:
            return Window(first, last)
        begin = int(self.finish[self.skipped - 1]) if self.skipped else first
        return Window(begin, max(int(self.finish[-1]), begin + 1))

    @property
    def moments(self) -> Times:
        """The borders between counted iterations, at least two: from each to the next is the time of an iteration."""
        if self.finish is not None and self.runs_ahead:
            borders = np.append(self.gpu_start[self.skipped], self.finish[self.skipped :])
        else:
            borders = np.append(self.start[self.skipped :], self.last_border)
        return borders

    @property
    def gpu_start(self) -> Times:
        """When the GPU begins each iteration: when it has finished the one before.

        It begins the first one with the host, unless it still has other work then: the first takes the median at most.
        """
        assert self.finish is not None, "each iteration launches compute"
        begin = int(self.start[0])
        if len(self.finish) > 1:
            begin = max(begin, int(self.finish[0]) - int(np.median(np.diff(self.finish))))
        return np.append(begin, self.finish[:-1])

    @property
    def last_border(self) -> int:
        """When the iteration after the last would begin: its own work has ended, and the typical pause has passed."""
        return max(int(self.end[-1]), int(self._done[-1]) + (self._pause or 0))

    @property
    def lengths(self) -> Times:
        """The time of each counted iteration."""
        return np.diff(self.moments)

    @property
    def last_is_known(self) -> bool:
        """Whether a typical pause says when the iteration after the last would begin: after its work, or after a range.

        Iterations without ranges end where the next begin, so that the end of the last says nothing.
        """
        if self.runs_ahead or self._pause is not None:
            return True
        start, end = self.start[self.skipped :], self.end[self.skipped :]
        return bool((end[:-1] != start[1:]).any()) and typical_pause(start, end) is not None

    @property
    def _done(self) -> Times:
        return self.end if self.finish is None or self.runs_ahead else self.finish

    @property
    def _pause(self) -> int | None:
        return typical_pause(self.start[self.skipped :], self._done[self.skipped :])

    @property
    def time_ns(self) -> int:
        """The mean time from one counted iteration to the next."""
        moments = self.moments
        return int(moments[-1] - moments[0]) // (len(moments) - 1)


def typical_pause(start: Times, done: Times) -> int | None:
    """Return the median pause from the end of an iteration to the next start, in ns, of all or of the last RECENT ones.

    None where the middle half of the pauses spreads over more than half of an iteration in both: then none is typical.
    """
    if len(start) < 2:
        return 0
    pauses, lengths = start[1:] - done[:-1], np.diff(start)
    for recent in (slice(None), slice(-RECENT, None)):
        low, pause, high = np.percentile(pauses[recent], [25, 50, 75])
        if high - low <= MAX_PAUSE_SPREAD * np.median(lengths[recent]):
            return int(pause)
    return None


def end_of_launches(start: Times, end: Times) -> int:
    """Return until when the last iteration launches its work: until the typical pause after its end has passed."""
    return int(end[-1]) + max(typical_pause(start, end) or 0, 0)


class IterationLaunches(NamedTuple):
    """What each iteration launches.

    `last_end` is the last end of its compute and communication, BEFORE_ALL for none. `kernels` is the number of these
    operations, and `names` a sum of hashes of their names, so that iterations with the same contents have equal sums.
    Copies do not count, because a prefetched batch belongs to the next iteration.
    """

    last_end: Times
    kernels: Times
    names: Times

    @classmethod
    def from_trace(
        cls, trace: Trace, process: int, start: Times, until: int, devices: Collection[int]
    ) -> IterationLaunches:
        """Return what the iterations of a process launch: from each of `start` to the next, the last to `until`.

        `devices` are rows of Trace.devices.
        """
        launched = (
            trace.operations.lazy()
            .filter(
                pl.col("class").to_physical() <= max(COMPUTE, COMMUNICATION),
                pl.col("launch").is_not_null(),
                pl.col("process") == process,
                pl.col("device").is_in(list(devices)),
            )
            .select("launch", "end", pl.col("name").to_physical())
            .collect()
        )
        # Number the calls by iteration, so that an operation needs one look-up. The first and the last number are those
        # of calls before and after all iterations.
        calls, count = trace.api["start"].to_numpy(), len(start) + 2
        edges = np.searchsorted(calls, np.append(start, until))
        number = np.repeat(np.arange(count, dtype=np.int32), np.diff(edges, prepend=0, append=len(calls)))
        iteration = number[launched["launch"].to_numpy()]
        last_end, names = np.full(count, BEFORE_ALL), np.zeros(count, np.uint64)
        np.maximum.at(last_end, iteration, launched["end"].to_numpy())
        np.add.at(names, iteration, _hashes(launched["name"].to_numpy()))
        kernels = np.bincount(iteration, minlength=count)
        return cls(last_end[1:-1], kernels[1:-1], names[1:-1].view(np.int64))

    @property
    def finish(self) -> Times | None:
        """When the GPUs finish the work of each iteration; None if an iteration launches nothing."""
        return None if (self.last_end == BEFORE_ALL).any() else np.maximum.accumulate(self.last_end)


def _hashes(codes: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a hash of each code, by two rounds of multiplication that mix the high bits into the low ones."""
    hashes = (codes.astype(np.uint64) + np.uint64(1)) * MULTIPLIER
    hashes = (hashes ^ (hashes >> np.uint64(32))) * MULTIPLIER
    return hashes ^ (hashes >> np.uint64(29))


def spread(values: Times) -> Spread:
    """Return median, p5 and p95 in ns, linearly interpolated between ranks and rounded down."""
    ordered = np.sort(values)
    return Spread(*(_percentile(ordered, percent) for percent in (50, 5, 95)))


def _percentile(ordered: Times, percent: int) -> int:
    where, rest = divmod((len(ordered) - 1) * percent, 100)
    low = int(ordered[where])
    high = int(ordered[min(where + 1, len(ordered) - 1)])
    return low + (high - low) * rest // 100
