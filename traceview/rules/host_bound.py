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
from collections.abc import Iterator, Mapping
from functools import reduce
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
from traceview.model.sums import Counts
from traceview.model.trace import Trace, names_load_data, names_match
from traceview.pricing.base import (
    CaptureFacts,
    CapturePart,
    DeviceFacts,
    DevicePart,
    FindingDraft,
    OldRule,
    fold_numbers,
)
from traceview.pricing.claims import STEADY, Collected, GapGroup, IdleClaim
from traceview.rules.launch_bound import MAX_SHORT_GAP

MAX_RANGES = 3
MIN_RANGE_SHARE = 0.01  # share of the steady time; ranges with a shorter wait belong to the rest
# A long wait is divided by range name if none has nearly all of it; then the two with the most time count.
WHOLE_SHARE, MIN_DIVIDED, MAX_NAMES = 0.9, 1_000_000, 2
MIN_BATCHES = 3  # with fewer waits, or one that has most of the time, no loop loads data
MOSTLY = 0.5
OPTIMIZER = re.compile(r"optim|adam|sgd", re.IGNORECASE)  # traceview.captures.redact keeps this word
MPI = re.compile(r"MPI_(?!File_)[A-Z]")
READS = r"^(?:p?readv?(?:64)?|fread|fgets|getline|fscanf)\b"


class _HostBoundSums(NamedTuple):
    """The ns of long waits by the name of a range or op, and the lengths of those with other evidence of loading.

    `evident` are the ns in which a loader works or files are read; in the others, input is copied afterwards. `ops` are
    the ns of waits by the op that runs on the CPU.
    """

    waits: dict[str, int]
    loading: dict[str, Counts]
    evident: int
    ops: dict[str, int]


class _Waits(NamedTuple):
    """Long waits for the host: rows of the device's gaps, their time until the launch, thread, and ns of `host`."""

    rows: Times
    times: Intervals
    thread: Times
    ns: Times


def _collect(part: CapturePart, device: DevicePart) -> Collected[_HostBoundSums]:
    """Label the long waits for the host with the names of the ranges that overlap them most."""
    waits = _long_waits(part.trace, device)
    ops = _ops_on_the_cpu(part.trace, waits)
    names, shares = _overlapping_names(part, waits, ops)
    first = shares.filter(pl.col("place") == 0)["name"].to_numpy()
    groups = {}
    for place in range(-1, MAX_NAMES):
        own = shares.filter(pl.col("group") == place)
        limits = None if place < 0 else own["ns"].to_numpy()
        groups[_group(place)] = GapGroup(waits.rows[own["wait"].to_numpy()], own["name"].to_numpy(), names, limits)
    evident = _are_evident(part.trace, waits)
    loading = np.flatnonzero(evident | _end_with_input(part.trace, device, waits))
    groups["loading"] = GapGroup(waits.rows[loading], first[loading], names)
    totals = np.zeros(len(names), np.int64)
    np.add.at(totals, shares["name"].to_numpy(), shares["ns"].to_numpy())
    lengths = {
        names[at]: Counts.from_values(waits.ns[loading[first[loading] == at]]) for at in np.unique(first[loading])
    }
    waited = dict(zip(names, totals.tolist(), strict=True))
    on_cpu = {name: waited[name] for name in ops.values()}
    sums = _HostBoundSums(waited, lengths, int(waits.ns[evident].sum()), on_cpu)
    return Collected(sums, groups)


def _group(place: int) -> str:
    """Return the name of the group of waits that have a name at this place; -1 for waits with one name."""
    return "range" if place < 0 else f"range {place}"


def _long_waits(trace: Trace, device: DevicePart) -> _Waits:
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
    part: CapturePart, waits: _Waits, ops: Mapping[int, str]
) -> tuple[tuple[str, ...], pl.DataFrame]:
    """Return the names of ranges, and those of each wait: wait, name, place (0: most time), ns and group (see _group).

    The ns of a divided wait are shared in proportion to the time in which each name is that of the innermost range.
    A wait in one of the `ops` has its name, unless the range loads data.
    """
    owner, ranges, overlap = part.ranges_during(waits.thread, waits.times)
    names, which = part.range_names(ranges)
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
            group=pl.when("divided").then("place").otherwise(-1),
            ns=pl.when("divided").then((pl.col("whole") * pl.col("share")).cast(pl.Int64)).otherwise("whole"),
        )
    )
    return tuple(number), named


def _end_with_input(trace: Trace, device: DevicePart, waits: _Waits) -> NDArray[np.bool_]:
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


def _decide(facts: CaptureFacts, sums: Mapping[int, _HostBoundSums]) -> Iterator[FindingDraft]:
    """Yield data loading, the other ranges in which the GPU waits longest for the host, and the rest."""
    for device in facts.devices:
        if device.use.gaps.causes["host"] == 0:
            continue
        own = sums[device.row]
        named = frozenset(name for name in own.waits if _names_loading(name))
        loading = {name: own.loading[name].total for name in _unnamed_loading(facts, device, own) - named}
        if named or loading:
            evident = bool(named) or own.evident > MOSTLY * sum(loading.values()) or facts.analysis.program.has_model
            yield _loading_draft(facts, device, {name: own.waits[name] for name in named}, loading, evident=evident)
        waits = [(ns - loading.get(name, 0), name) for name, ns in own.waits.items() if name and name not in named]
        minimum = MIN_RANGE_SHARE * device.steady.length
        dominant = [name for ns, name in sorted(waits, reverse=True) if ns >= minimum]
        for name in dominant[:MAX_RANGES]:
            claims, case = _range_claims(frozenset((name,))), "op" if name in own.ops else _case(facts, name)
            yield FindingDraft("host_bound", device, claims, {"range": name}, case, key=name)
        rest = {"where": " outside any dominant range" if dominant else ""}
        yield FindingDraft("host_bound", device, (IdleClaim(("host",), STEADY),), rest, "elsewhere")


def _case(facts: CaptureFacts, name: str) -> str:
    """Return the case of the texts on waits in a range. The range of an iteration does not say where the host is."""
    iterations = facts.analysis.iterations
    if MPI.match(name):
        return "mpi"
    if OPTIMIZER.search(name):
        return "optimizer"
    return (
        "iteration" if not isinstance(iterations, NotMeasured) and name == fold_numbers(iterations.range) else "range"
    )


def _names_loading(name: str) -> bool:
    return bool(loading_words(name)) and not MPI.match(name)


def _unnamed_loading(facts: CaptureFacts, device: DeviceFacts, sums: _HostBoundSums) -> frozenset[str]:
    """Return the ranges whose waits load data by other evidence: those that say nothing, or none.

    The range of an iteration, which launches kernels too, does not say what the host does in a wait. Another range
    does. Without iterations, the program copies what it loads once: its parameters.
    """
    ranges = facts.analysis.nvtx
    rows = () if isinstance(ranges, NotMeasured) else ranges
    around = {fold_numbers(row.name) for row in rows if row.kernel_count}
    lengths = {name: own for name, own in sums.loading.items() if name == "" or name in around}
    every = reduce(Counts.plus, lengths.values(), Counts.from_values(np.zeros(0, np.int64)))
    in_loop = facts.counted and every.counts.sum() >= MIN_BATCHES and every.values[-1] <= MOSTLY * every.total
    return frozenset(lengths if in_loop and every.total >= MIN_LOADING * device.steady.length else ())


def _loading_draft(
    facts: CaptureFacts, device: DeviceFacts, named: dict[str, int], loading: dict[str, int], *, evident: bool
) -> FindingDraft:
    """Return the finding on data loading in ranges named after it, and in waits with other evidence of it.

    Where nothing but copies of input after the waits says so, a program without a model makes its input there.
    """
    longest = max(named, key=lambda name: (named[name], name), default="")
    is_named = named.get(longest, 0) >= MOSTLY * sum((*named.values(), *loading.values()))
    claims = *_range_claims(frozenset(named)), IdleClaim(("host",), "loading", frozenset(loading))
    if not evident:
        return FindingDraft("host_bound", device, claims, {}, "input", key="input")
    case = "dali" if "dali" in facts.analysis.program.frameworks else "" if is_named else "batch"
    return FindingDraft("data_loading", device, claims, {"range": longest}, case)


def _range_claims(names: frozenset[str]) -> tuple[IdleClaim, ...]:
    return tuple(IdleClaim(("host",), _group(place), names) for place in range(-1, MAX_NAMES))


host_bound = OldRule("host_bound", _decide, _collect, place=190)
