"""The rule on hosts that do something else while the GPU waits in long gaps: they load data, log or compute."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Coverage, Intervals, Times, rows_by_code, union, values_at
from traceview.measure.iterations.pace import pace_ns
from traceview.measure.loading import MIN_LOADING, BatchCopies, is_input
from traceview.measure.nvtx import without_library_ranges
from traceview.measure.shared_work import codes_of, launch_rows
from traceview.model.analysis import NotMeasured
from traceview.model.names import fold_numbers, loading_words
from traceview.model.stacks import OP
from traceview.model.trace import KINDS, Trace, names_load_data, names_match
from traceview.model.units import duration
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, once_per_capture
from traceview.pricing.ledger import GapClaim
from traceview.rules.launches import MAX_SHORT_GAP

MAX_RANGES = 3
MIN_RANGE_SHARE = 0.01  # share of the steady time; ranges with a shorter wait belong to the rest
# A long wait is divided by range name if none has nearly all of it; then the two with the most time count.
WHOLE_SHARE, MIN_DIVIDED, MAX_NAMES = 0.9, 1_000_000, 2
MIN_BATCHES = 3  # with fewer waits, or little time in all but one, no loop loads data
MOSTLY = 0.5
OPTIMIZER = re.compile(r"optim|adam|sgd", re.IGNORECASE)
MPI = re.compile(r"MPI_(?!File_)[A-Z]")
WAITS_FOR_GPU = re.compile(r"(?i)block_until_ready|synchroni[sz]e|wait\w*gpu|gpu\w*wait")
SHOWS = r"^(?:cuda|cu|hip)GraphicsMapResources"
READS = r"^(?:p?readv?(?:64)?|fread|fgets|getline|fscanf)\b"


class _LongWaits(NamedTuple):
    """Long waits for the host: rows of the device's gaps, their time until the launch, thread, and ns of `host`."""

    rows: Times
    times: Intervals
    thread: Times
    ns: Times


class _Shares(NamedTuple):
    """What names have of waits: the wait, the name, its place in the wait (0: most time), ns, and if it is divided."""

    wait: Times
    name: Times
    place: Times
    ns: Times
    divided: NDArray[np.bool_]


class _NamedWaits(NamedTuple):
    """Long waits by the names of the ranges or ops that overlap them most.

    `loading` marks the waits with evidence of data loading other than their name, `evident` those in which a loader
    works or files are read; in the others, input is copied afterwards. `ops` are the names of ops that run on the CPU.
    """

    waits: _LongWaits
    names: tuple[str, ...]
    shares: _Shares
    loading: NDArray[np.bool_]
    evident: NDArray[np.bool_]
    ops: frozenset[str]

    @classmethod
    def from_capture(cls, capture: MeasuredCapture, device: GpuWork) -> _NamedWaits:
        """Name the long waits of a device."""
        waits = _long_waits(capture.trace, device)
        ops = _ops_on_the_cpu(capture.trace, waits)
        names, shares = _overlapping_names(capture, waits, ops)
        evident = _are_evident(capture.trace, waits)
        loading = evident | _end_with_input(capture, device, waits)
        return cls(waits, names, shares, loading, evident, frozenset(ops.values()))

    def waited(self) -> dict[str, int]:
        """Return the ns of waits by name."""
        totals = np.zeros(len(self.names), np.int64)
        np.add.at(totals, self.shares.name, self.shares.ns)
        return dict(zip(self.names, totals.tolist(), strict=True))

    def loading_waits(self, names: Collection[str] | None = None) -> Times:
        """Return the waits with other evidence of loading, or those of them whose first name is one of these."""
        waits = np.flatnonzero(self.loading)
        if names is None:
            return waits
        first = self.shares.name[self.shares.place == 0]
        named: Times = waits[np.array([name in names for name in self.names], np.bool_)[first[waits]]]
        return named

    def claims(self, names: Collection[str]) -> tuple[GapClaim, ...]:
        """Return the claims on the waits with these names; of a divided wait at most the share of the name."""
        wait, name, place, ns, divided = self.shares
        chosen, rows = np.array([name in names for name in self.names], np.bool_)[name], self.waits.rows[wait]
        shared = [chosen & divided & (place == number) for number in range(MAX_NAMES)]
        return (
            GapClaim(("host",), rows[chosen & ~divided]),
            *(GapClaim(("host",), rows[each], ns[each]) for each in shared),
        )


def host_bound(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """The GPU waits for the host in gaps that are too long for launch-bound.

    Symptom: idle time with the cause `host`: the thread that launches the next work is not in a CUDA call.
    Cause: data loading, collation, logging, Python code. Data are loaded if a range is named after it, if the wait ends
    with the copies of a batch, if a loader's thread or process works meanwhile, or if the thread reads files. Otherwise
    an op of torch.profiler that runs on the CPU for most of the wait, or the NVTX ranges that overlap it, show what the
    host does.
    Remedy: workers and prefetching for data loading; in MPI, start the transfer earlier or fix the late rank; otherwise
    move the work off the launching thread, or profile it.

    Yields one finding for data loading, one for each of the three other ranges with the longest waits, and one for the
    rest. Numbers in the names of ranges are folded. Claims the idle cause `host` of the steady gaps.
    """
    if device.use.gaps.causes["host"] == 0:
        return
    if (pace := _pace(capture)) is not None:
        yield _paced_draft(capture, device, pace)
        return
    waits = _NamedWaits.from_capture(capture, device)
    waited = waits.waited()
    named = frozenset(name for name in waited if _names_loading(name))
    loading = _unnamed_loading(capture, device, waits, named)
    if named or loading:
        yield _loading_draft(capture, device, waits, {name: waited[name] for name in named}, loading)
    others = [(ns - loading.get(name, 0), name) for name, ns in waited.items() if name and name not in named]
    minimum = MIN_RANGE_SHARE * device.steady.length
    dominant = [name for ns, name in sorted(others, reverse=True) if ns >= minimum]
    for name in dominant[:MAX_RANGES]:
        case = "op" if name in waits.ops else _case(capture, name)
        yield FindingDraft("host_bound", device, waits.claims((name,)), {"range": name}, case, key=name)
    case = "elsewhere" if without_library_ranges(capture.trace.ranges).is_empty() else "among_ranges"
    yield FindingDraft("host_bound", device, (GapClaim(("host",), device.steady_gaps),), {}, case)


@once_per_capture
def _pace(capture: MeasuredCapture) -> int | None:
    return pace_ns(capture.analysis)


def _paced_draft(capture: MeasuredCapture, device: GpuWork, pace: int) -> FindingDraft:
    """Return the finding that a source outside the program sets the pace; calls that map a picture name a display."""
    shows = names_match(capture.trace.api["name"], SHOWS).any()
    values = {
        "source": "A display" if shows else "A timer, a client or another source",
        "pace": duration(pace),
        "rate": f"{1e9 / pace:,.0f}",
    }
    return FindingDraft("host_bound", device, (GapClaim(("host",), device.steady_gaps),), values, "paced")


def _long_waits(trace: Trace, device: GpuWork) -> _LongWaits:
    steady = device.steady_gaps
    rows = np.flatnonzero(device.gap_end[steady] - device.gap_start[steady] > MAX_SHORT_GAP) + steady.start
    ns = device.gap_waits(("host",), slice(None))
    rows = rows[:0] if ns is None else rows[ns[rows] > 0]
    start, end = device.gap_start[rows], device.gap_end[rows]
    call = values_at(launch_rows(trace.operations), device.gap_operation[rows], -1)
    launched = values_at(trace.api["start"].to_numpy(), call, 0)
    until = np.where(call >= 0, np.clip(launched, start, end), end)
    return _LongWaits(
        rows, Intervals(start, until), device.gap_thread[rows].astype(np.int64), rows if ns is None else ns[rows]
    )


def _ops_on_the_cpu(trace: Trace, waits: _LongWaits) -> dict[int, str]:
    """Return the name of the op that runs for most of a wait and ends in it: it launches nothing. Keys are waits."""
    start, ops = waits.times.start, trace.scopes
    if ops.is_empty() or len(start) == 0:
        return {}
    ops = ops.filter(pl.col("kind") == OP, pl.col("end") - pl.col("start") > MOSTLY * MAX_SHORT_GAP)
    ops = ops.sort("start", "end", descending=[False, True])  # an op comes before those inside it
    begin, end = (ops[name].to_numpy() for name in ("start", "end"))
    wait = np.maximum(np.searchsorted(start, end) - 1, 0)
    inside = (end <= waits.times.end[wait]) & (ops["thread"].to_numpy() == waits.thread[wait])
    most = end - np.maximum(begin, start[wait]) > MOSTLY * _lengths(waits)[wait]
    rows = np.flatnonzero(inside & most)[::-1]
    return dict(zip(wait[rows].tolist(), ops["name"][rows].cast(pl.String).to_list(), strict=True))


def _overlapping_names(
    capture: MeasuredCapture, waits: _LongWaits, ops: Mapping[int, str]
) -> tuple[tuple[str, ...], _Shares]:
    """Return the names of ranges, and those of each wait.

    The ns of a divided wait are shared in proportion to the time in which each name is that of the innermost range.
    A wait in one of the `ops` has its name, unless the range loads data.
    """
    owner, ranges, overlap = capture.ranges_during(waits.thread, waits.times)
    names, which = capture.range_names(ranges)
    number = {name: at for at, name in enumerate(dict.fromkeys((*names, *ops.values())))}
    loads = np.array([_names_loading(name) for name in names], np.bool_)[which]
    op = np.full(len(waits.rows), -1)
    op[list(ops)] = [number[name] for name in ops.values()]
    op[owner[loads]] = -1
    which = np.where(op[owner] >= 0, op[owner], which)
    return tuple(number), _shares(waits, owner * len(number) + which, np.maximum(overlap, 1), max(len(number), 1))


def _shares(waits: _LongWaits, key: Times, overlap: Times, names: int) -> _Shares:
    """Return the names that count of each wait; `key` is the wait times the number of `names`, plus the name."""
    order = np.argsort(key, kind="stable")
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    (wait, name), overlap = np.divmod(key[order][first], names), np.add.reduceat(overlap[order], first)
    order = np.lexsort((name, -overlap, wait))
    wait, name, overlap = wait[order], name[order], overlap[order]
    begin = np.flatnonzero(np.diff(wait, prepend=-1))
    counts = np.diff(begin, append=len(wait))
    place = np.arange(len(wait)) - np.repeat(begin, counts)
    share, whole = overlap / np.repeat(np.add.reduceat(overlap, begin), counts), waits.ns[wait]
    divided = (np.repeat(share[begin], counts) < WHOLE_SHARE) & (whole >= MIN_DIVIDED)
    ns = np.where(divided, (whole * share).astype(np.int64), whole)
    kept = place < np.where(divided, MAX_NAMES, 1)
    return _Shares(wait[kept], name[kept], place[kept], ns[kept], divided[kept])


@once_per_capture
def _batch_copies(capture: MeasuredCapture) -> BatchCopies:
    return BatchCopies.from_trace(capture.trace)


def _end_with_input(capture: MeasuredCapture, device: GpuWork, waits: _LongWaits) -> NDArray[np.bool_]:
    """Return the waits that end with copies of input to the GPU."""
    batch = _batch_copies(capture).bytes_after(waits.thread, waits.times.end, _lengths(waits))
    before = device.gap_before[waits.rows]
    operations, some = capture.trace.operations, np.maximum(before, 0)
    kind, size = codes_of(operations, "kind")[some], operations["bytes"].to_numpy()[some]
    copied, read_back = (np.where((before >= 0) & (kind == KINDS.index(each)), size, 0) for each in ("h2d", "d2h"))
    return is_input(batch, copied, read_back)


def _are_evident(trace: Trace, waits: _LongWaits) -> NDArray[np.bool_]:
    """Return the waits of a loader's thread, and those in which a loader works or files are read most of the time."""
    loaders = [bool(loading_words(name)) for name in trace.threads["name"]]
    evident: NDArray[np.bool_] = np.append(np.array(loaders, np.bool_), False)[waits.thread]
    return evident | (_time_of_loaders(trace, waits) > MOSTLY * _lengths(waits))


def _lengths(waits: _LongWaits) -> Times:
    return waits.times.end - waits.times.start


def _time_of_loaders(trace: Trace, waits: _LongWaits) -> Times:
    """Return the ns of each wait in which its thread reads files, or waits for a thread or process that loads data."""
    events, inside = trace.evidence.events, np.zeros(len(waits.rows), np.int64)
    if events.is_empty():
        return inside
    chosen = names_load_data(events["waits_for"]) | names_match(events["name"], READS)
    events = events.filter(chosen & (events["state"] == "waiting").to_numpy())
    start, end, thread = (events[name].to_numpy() for name in ("start", "end", "thread"))
    known, calls_of = np.flatnonzero(waits.thread >= 0), dict(rows_by_code(thread))
    for caller, some in rows_by_code(waits.thread[known]):
        if caller in calls_of:
            own, calls = known[some], calls_of[caller]
            times = Coverage.from_union(union(start[calls], end[calls]))
            inside[own] = times.length_between(waits.times.start[own], waits.times.end[own])
    return inside


def _case(capture: MeasuredCapture, name: str) -> str:
    """Return the case of the texts on waits in a range; one that launches kernels does not say where the host is."""
    if MPI.match(name):
        return "mpi"
    if WAITS_FOR_GPU.search(name):
        return "waiting"
    if OPTIMIZER.search(name):
        return "optimizer"
    return "launching" if name in _launching_ranges(capture) else "range"


@once_per_capture
def _launching_ranges(capture: MeasuredCapture) -> frozenset[str]:
    """Return the names of ranges that launch kernels, an iteration's among them; their numbers are folded."""
    ranges, iterations = capture.analysis.nvtx, capture.analysis.iterations
    rows = () if isinstance(ranges, NotMeasured) else ranges
    whole = () if isinstance(iterations, NotMeasured) else (iterations.range,)
    names = [*(row.name for row in rows if row.kernel_count), *whole]
    return frozenset(fold_numbers(pl.Series(names, dtype=pl.String)))


def _names_loading(name: str) -> bool:
    return bool(loading_words(name)) and not MPI.match(name)


def _unnamed_loading(
    capture: MeasuredCapture, device: GpuWork, waits: _NamedWaits, named: Collection[str]
) -> dict[str, int]:
    """Return the ns of waits that load data by other evidence, by their ranges: those that say nothing, or none.

    The range of an iteration, which launches kernels too, does not say what the host does in a wait. Another range
    does. Without iterations, the program copies what it loads once: its parameters.
    """
    around = {"", *_launching_ranges(capture)}
    lengths = {name: waits.waits.ns[waits.loading_waits((name,))] for name in around.intersection(waits.names)}
    every = np.concatenate([np.zeros(0, np.int64), *lengths.values()])
    total = int(every.sum())
    least = MIN_LOADING * device.steady.length
    if not capture.counted or len(every) < MIN_BATCHES or total < least:
        return {}
    if every.max() > MOSTLY * total and total - every.max() < least:
        return {}
    return {name: int(ns.sum()) for name, ns in lengths.items() if len(ns) and name not in named}


def _loading_draft(
    capture: MeasuredCapture, device: GpuWork, waits: _NamedWaits, named: dict[str, int], loading: dict[str, int]
) -> FindingDraft:
    """Return the finding on data loading in ranges named after it, and in waits with other evidence of it.

    Where nothing but copies of input after the waits says so, a program without a model makes its input there, and one
    that trains no model may also work on results.
    """
    evident_ns = int(waits.waits.ns[waits.evident].sum())
    trains = capture.program.has_model and capture.program.training is not False
    evident = bool(named) or evident_ns > MOSTLY * sum(loading.values()) or trains
    longest = max(named, key=lambda name: (named[name], name), default="")
    is_named = named.get(longest, 0) >= MOSTLY * sum((*named.values(), *loading.values()))
    others = GapClaim(("host",), waits.waits.rows[waits.loading_waits(loading)])
    claims = (*waits.claims(named), others)
    if not evident:
        return FindingDraft("host_bound", device, claims, {}, "input", key="input")
    case = "dali" if "dali" in capture.program.frameworks else "" if is_named else "batch"
    return FindingDraft("data_loading", device, claims, {"range": longest}, case)
