"""The GPU waits for the host in gaps that are too long for launch-bound.

Symptom: idle time with the cause `host`: the thread that launches the next work is not in a CUDA call.
Cause: data loading, collation, logging, Python code. Data are loaded if a range is named after it, if the wait ends
with the copies of a batch, if a loader's thread or process works meanwhile, or if the thread reads files. Otherwise an
op of torch.profiler that runs on the CPU for most of the wait, or the NVTX ranges that overlap it, show what the host
does.
Remedy: workers and prefetching for data loading; in MPI, start the transfer earlier or fix the late rank; otherwise
move the work off the launching thread, or profile it.

Yields one finding for data loading, one for each of the three other ranges with the longest waits, and one for the
rest. Numbers in the names of ranges are folded. Claims the idle cause `host` of the steady gaps.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Coverage, Intervals, Times, union, values_at
from traceview.measure.loading import D2H, H2D, MIN_LOADING, BatchCopies, is_input
from traceview.measure.shared_work import launch_rows
from traceview.model.analysis import NotMeasured
from traceview.model.names import loading_words
from traceview.model.stacks import OP
from traceview.model.trace import Trace, names_load_data, names_match
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule, fold_numbers
from traceview.pricing.ledger import GapClaim
from traceview.rules.launch_bound import MAX_SHORT_GAP

MAX_RANGES = 3
MIN_RANGE_SHARE = 0.01  # share of the steady time; ranges with a shorter wait belong to the rest
# A long wait is divided by range name if none has nearly all of it; then the two with the most time count.
WHOLE_SHARE, MIN_DIVIDED, MAX_NAMES = 0.9, 1_000_000, 2
MIN_BATCHES = 3  # with fewer waits, or one that has most of the time, no loop loads data
MOSTLY = 0.5
OPTIMIZER = re.compile(r"optim|adam|sgd", re.IGNORECASE)
MPI = re.compile(r"MPI_(?!File_)[A-Z]")
READS = r"^(?:p?readv?(?:64)?|fread|fgets|getline|fscanf)\b"


class _Waits(NamedTuple):
    """Long waits for the host: rows of the device's gaps, their time until the launch, thread, and ns of `host`."""

    rows: Times
    times: Intervals
    thread: Times
    ns: Times


class _NamedWaits(NamedTuple):
    """Long waits by the names of the ranges or ops that overlap them most.

    `shares` has rows (wait, name, place (0: most time), ns, divided); `loading` marks the waits with evidence of data
    loading other than their name, `evident` those in which a loader works or files are read; in the others, input is
    copied afterwards. `ops` are the names of ops that run on the CPU.
    """

    waits: _Waits
    names: tuple[str, ...]
    shares: pl.DataFrame
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
        loading = evident | _end_with_input(capture.trace, device, waits)
        return cls(waits, names, shares, loading, evident, frozenset(ops.values()))

    def waited(self) -> dict[str, int]:
        """Return the ns of waits by name."""
        totals = np.zeros(len(self.names), np.int64)
        np.add.at(totals, self.shares["name"].to_numpy(), self.shares["ns"].to_numpy())
        return dict(zip(self.names, totals.tolist(), strict=True))

    def loading_waits(self, names: Collection[str] | None = None) -> Times:
        """Return the waits with other evidence of loading, or those of them whose first name is one of these."""
        waits = np.flatnonzero(self.loading)
        if names is None:
            return waits
        first = self.shares.filter(pl.col("place") == 0)["name"].to_numpy()
        named: Times = waits[np.array([name in names for name in self.names], np.bool_)[first[waits]]]
        return named

    def claims(self, names: Collection[str]) -> tuple[GapClaim, ...]:
        """Return the claims on the waits with these names; of a divided wait at most the share of the name."""
        chosen = self.shares.filter(pl.col("name").is_in([at for at, name in enumerate(self.names) if name in names]))
        whole = chosen.filter(~pl.col("divided"))["wait"].to_numpy()
        shared = [chosen.filter("divided", pl.col("place") == place) for place in range(MAX_NAMES)]
        return (
            GapClaim(("host",), self.waits.rows[whole]),
            *(GapClaim(("host",), self.waits.rows[each["wait"].to_numpy()], each["ns"].to_numpy()) for each in shared),
        )


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield data loading, the other ranges in which the GPU waits longest for the host, and the rest."""
    if device.use.gaps.causes["host"] == 0:
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
    rest = {"where": " outside any dominant range" if dominant else ""}
    yield FindingDraft("host_bound", device, (GapClaim(("host",), device.steady_gaps),), rest, "elsewhere")


def _long_waits(trace: Trace, device: GpuWork) -> _Waits:
    steady = device.steady_gaps
    rows = np.flatnonzero(device.gap_end[steady] - device.gap_start[steady] > MAX_SHORT_GAP) + steady.start
    ns = device.gap_waits(("host",), slice(None))
    rows = rows[:0] if ns is None else rows[ns[rows] > 0]
    start, end = device.gap_start[rows], device.gap_end[rows]
    call = values_at(launch_rows(trace.operations), device.gap_operation[rows], -1)
    launched = values_at(trace.api["start"].to_numpy(), call, 0)
    until = np.where(call >= 0, np.clip(launched, start, end), end)
    return _Waits(
        rows, Intervals(start, until), device.gap_thread[rows].astype(np.int64), rows if ns is None else ns[rows]
    )


def _ops_on_the_cpu(trace: Trace, waits: _Waits) -> dict[int, str]:
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
    capture: MeasuredCapture, waits: _Waits, ops: Mapping[int, str]
) -> tuple[tuple[str, ...], pl.DataFrame]:
    """Return the names of ranges, and those of each wait: wait, name, place (0: most time), ns and divided.

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
    shares = pl.DataFrame({"wait": owner, "name": which, "overlap": np.maximum(overlap, 1)})
    shares = shares.group_by("wait", "name").agg(pl.col("overlap").sum())
    shares = shares.sort("wait", "overlap", "name", descending=[False, True, False])
    share = pl.col("overlap") / pl.col("overlap").sum().over("wait")
    shares = shares.with_columns(pl.int_range(pl.len()).over("wait").alias("place"), share.alias("share"))
    whole = pl.Series("whole", waits.ns[shares["wait"].to_numpy()], pl.Int64)
    divided = (pl.col("share").max().over("wait") < WHOLE_SHARE) & (pl.col("whole") >= MIN_DIVIDED)
    named = (
        shares.with_columns(whole)
        .with_columns(divided.alias("divided"))
        .filter(pl.col("place") < pl.when("divided").then(MAX_NAMES).otherwise(1))
        .with_columns(
            ns=pl.when("divided").then((pl.col("whole") * pl.col("share")).cast(pl.Int64)).otherwise("whole"),
        )
    )
    return tuple(number), named


def _end_with_input(trace: Trace, device: GpuWork, waits: _Waits) -> NDArray[np.bool_]:
    """Return the waits that end with copies of input to the GPU."""
    batch = BatchCopies.from_trace(trace).bytes_after(waits.thread, waits.times.end, _lengths(waits))
    before = device.operations_before(waits.rows)
    kind, size = (trace.operations[name].to_physical().fill_null(0).to_numpy()[before] for name in ("kind", "bytes"))
    is_copy = (trace.operations["class"] == "copy").to_numpy()[before]
    copied, read_back = (np.where(is_copy & (kind == code), size, 0) for code in (H2D, D2H))
    return is_input(batch, copied, read_back)


def _are_evident(trace: Trace, waits: _Waits) -> NDArray[np.bool_]:
    """Return the waits of a loader's thread, and those in which a loader works or files are read most of the time."""
    loaders = [bool(loading_words(name)) for name in trace.threads["name"]]
    evident: NDArray[np.bool_] = np.append(np.array(loaders, np.bool_), False)[waits.thread]
    return evident | (_time_of_loaders(trace, waits) > MOSTLY * _lengths(waits))


def _lengths(waits: _Waits) -> Times:
    return waits.times.end - waits.times.start


def _time_of_loaders(trace: Trace, waits: _Waits) -> Times:
    """Return the ns of each wait in which its thread reads files, or waits for a thread or process that loads data."""
    events, inside = trace.evidence.events, np.zeros(len(waits.rows), np.int64)
    if events.is_empty():
        return inside
    chosen = names_load_data(events["waits_for"]) | names_match(events["name"], READS)
    events = events.filter(chosen & (events["state"] == "waiting").to_numpy())
    for thread in np.unique(waits.thread).tolist():
        calls, own = events.filter(pl.col("thread") == thread), np.flatnonzero(waits.thread == thread)
        times = Coverage.from_union(union(calls["start"].to_numpy(), calls["end"].to_numpy()))
        inside[own] = times.length_between(waits.times.start[own], waits.times.end[own])
    return inside


def _case(capture: MeasuredCapture, name: str) -> str:
    """Return the case of the texts on waits in a range. The range of an iteration does not say where the host is."""
    iterations = capture.analysis.iterations
    if MPI.match(name):
        return "mpi"
    if OPTIMIZER.search(name):
        return "optimizer"
    return (
        "iteration" if not isinstance(iterations, NotMeasured) and name == fold_numbers(iterations.range) else "range"
    )


def _names_loading(name: str) -> bool:
    return bool(loading_words(name)) and not MPI.match(name)


def _unnamed_loading(
    capture: MeasuredCapture, device: GpuWork, waits: _NamedWaits, named: Collection[str]
) -> dict[str, int]:
    """Return the ns of waits that load data by other evidence, by their ranges: those that say nothing, or none.

    The range of an iteration, which launches kernels too, does not say what the host does in a wait. Another range
    does. Without iterations, the program copies what it loads once: its parameters.
    """
    ranges = capture.analysis.nvtx
    rows = () if isinstance(ranges, NotMeasured) else ranges
    around = {"", *(fold_numbers(row.name) for row in rows if row.kernel_count)}
    lengths = {name: waits.waits.ns[waits.loading_waits((name,))] for name in around.intersection(waits.names)}
    every = np.concatenate([np.zeros(0, np.int64), *lengths.values()])
    total = int(every.sum())
    in_loop = capture.counted and len(every) >= MIN_BATCHES and every.max() <= MOSTLY * total
    if not in_loop or total < MIN_LOADING * device.steady.length:
        return {}
    return {name: int(ns.sum()) for name, ns in lengths.items() if len(ns) and name not in named}


def _loading_draft(
    capture: MeasuredCapture, device: GpuWork, waits: _NamedWaits, named: dict[str, int], loading: dict[str, int]
) -> FindingDraft:
    """Return the finding on data loading in ranges named after it, and in waits with other evidence of it.

    Where nothing but copies of input after the waits says so, a program without a model makes its input there.
    """
    evident_ns = int(waits.waits.ns[waits.evident].sum())
    evident = bool(named) or evident_ns > MOSTLY * sum(loading.values()) or capture.program.has_model
    longest = max(named, key=lambda name: (named[name], name), default="")
    is_named = named.get(longest, 0) >= MOSTLY * sum((*named.values(), *loading.values()))
    others = GapClaim(("host",), waits.waits.rows[waits.loading_waits(loading)])
    claims = (*waits.claims(named), others)
    if not evident:
        return FindingDraft("host_bound", device, claims, {}, "input", key="input")
    case = "dali" if "dali" in capture.program.frameworks else "" if is_named else "batch"
    return FindingDraft("data_loading", device, claims, {"range": longest}, case)


host_bound = Rule("host_bound", find)
