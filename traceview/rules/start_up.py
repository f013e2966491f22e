"""What occurs once: start-up, before the first GPU work, and the end of the run, after the last.

Symptom: calls of milliseconds to seconds that occur once, such as the first CUDA call, the first launch of a kernel and
the first allocation of pinned memory; or a host that prepares the first GPU work for long.
Cause: the driver creates the context, and loads or compiles modules. Libraries make handles and try algorithms. Memory
is pinned or freed page by page.
Remedy: warm up before measuring, keep the process alive, cache what is compiled. A remedy for a loop does not apply.

A cost is one-time if one call, or the first occurrence of each call, holds more than half of it (docs/definitions.md
"Start-up and single events"). Claims the idle causes `memory`, `launch` and `api` of long gaps that such calls fill.
Where findings cover the run, `start_up` also has the calls before the first GPU work, `host_bound` what the host does
between them (in Python it is start-up, too), and `after_loop` the time after the last work: no gap has these times.
Where findings cover iterations, the calls before the first work are a finding if they take more than half of the run.
Where the iterations take little of the run, the calls that occur first before them count, too, and the host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import EMPTY, Times, own_lengths
from traceview.measure.run import (
    CALL,
    WORKING_ROLES,
    calls_of_processes,
    first_calls,
    inside,
    longest_call,
    name_calls,
    with_shapes,
)
from traceview.model.findings import Place
from traceview.model.trace import Trace, Window, names_load_data, names_match
from traceview.model.units import duration, plain
from traceview.pricing.base import FindingDraft, GpuWork, Mask, MeasuredCapture, Rule, fold_numbers
from traceview.pricing.ledger import GapClaim
from traceview.pricing.texts import join_words
from traceview.rules.launch_bound import MAX_SHORT_GAP

ONE_TIME = 0.5  # share of a cost from which what occurs once explains it, and of the run from which it comes first
MAX_NAMES, MAX_PLACES, MAX_LETTERS = 3, 5, 80
FEW = 0.05  # share of the run; start-up can lead only where the iterations take less
MIN_EARLY = 0.01  # share of the run; shorter calls before the iterations are not looked at
MIN_NAMED = 0.02  # share of a finding's calls; shorter ones are not named
# The causes of idle time in which a call does work of its own. In the others it waits for the GPU, or copies.
ACCOUNTS = (("memory",), ("launch", "api"))
CASE = "first_work"
JUST_IN_TIME = ("jax", "cupy", "numba", "warp", "taichi", "julia", "triton")  # kinds that compile at a first call
COMPILES = re.compile(
    r"(?<![A-Za-z])(?i:nvrtc|jit|compil\w*|dynamo_timed|autotun\w*|lazy_?(?:load|init)\w*)(?![A-Za-z])"
    r"|^Xla(?:Compile|Pass|Emit|Optimize|Autotun)"
)
LOADS_CODE = (
    r"^(?:cu|hip)(?:Link|Module|Library)(?:Create|Add(?:Data|File)|Complete|Load(?:Data|FatBinary)?)|^nvrtcCompile"
)
# What cuBLAS, cuDNN and other libraries call when they make a handle, and loops do not.
STARTS_LIBRARY = r"^(?:cuda|hip)(?:GetDeviceProperties|GetSymbolAddress|StreamCreate)"
COMPILATION, LIBRARIES = "the compilation of kernels", "the start of libraries"
NEEDS_CONTEXT = r"Create|Launch|Mem|Malloc|Alloc|Free|Synchronize|IsCapturing"  # the first such call creates a context
ROW = {"name": pl.String, "kernel": pl.String, "start": pl.Int64, "end": pl.Int64, "thread": pl.Int64}
# The case of the texts by the name of the call that takes most of start-up.
CASES = (
    (re.compile(r"^hip"), ""),  # the settings below are those of CUDA
    (re.compile(r"Host|cuMemAllocHost"), "pinned"),
    (re.compile(r"^`|^the compilation"), "compiled"),
    (re.compile(r"[Ll]ibrar|Module|Link|Launch|Func|Nvrtc|nvrtc|ompil|utotun|Graph"), "modules"),
)


class _Calls(NamedTuple):
    """The calls of the processes that use a GPU (rows of with_shapes), and the time of the work of all their GPUs.

    `first` has when each kind of call occurs first (CALL, start), and `before` the calls before the first work (ROW,
    ns, counts).
    """

    every: pl.DataFrame
    first: pl.DataFrame
    before: pl.DataFrame
    work: Window


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield what occurs once on a GPU."""
    trace, analysis = capture.trace, capture.analysis
    windows = [use.window for use in analysis.devices if not set(device.process_ids).isdisjoint(use.process_ids)]
    work = Window(min(window.start for window in windows), max(window.end for window in windows))
    every = with_shapes(trace, calls_of_processes(trace, pl.Series(device.process_ids, dtype=pl.Int32)))
    before = _named(trace, inside(every, Window(analysis.run.start, work.start)), "ns", "counts")
    calls = _Calls(every, first_calls(trace, every), before, work)
    yield from (_in_run if analysis.covers_run else _before_iterations)(capture, device, calls)


def _in_run(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> Iterator[FindingDraft]:
    """Yield what occurs once in a run, with the time before the first GPU work and after the last."""
    run, work, in_calls = capture.analysis.run, calls.work, int(calls.before["ns"].sum())
    host, loading = work.start - run.start - in_calls, _loading_before(capture.trace, run, work)
    loads = min(sum(loading.values()), host)
    once = _host_once(capture, calls.before, host - loads)
    rest = host - loads - once
    yield from _start_up(capture, device, calls, calls.before.select(*ROW, "ns"), once, of_run=True)
    if loads:
        place = Place("the host loads data", run.start, work.start, device.id)
        values = {"range": max(loading, key=loading.__getitem__)}
        yield FindingDraft("data_loading", device, (), values, CASE, CASE, outside_ns=loads, evidence=(place,))
    if rest:
        place = Place("the host prepares the first work", run.start, work.start, device.id)
        yield FindingDraft("host_bound", device, (), {}, CASE, CASE, outside_ns=rest, evidence=(place,), once=True)
    yield _end(capture, device, calls)


def _before_iterations(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> Iterator[FindingDraft]:
    """Yield what occurs once, with the time before the counted iterations if it is most of the run."""
    run, work, host, outside = capture.analysis.run, calls.work, 0, calls.before.select(*ROW, "ns")
    if device.steady.length <= FEW * run.length:
        early = _early(capture, calls, Window(work.start, max(work.start, device.steady.start)))
        host = work.start - run.start - int(outside["ns"].sum())
        if capture.program.kind in JUST_IN_TIME:  # between the first work and the iterations, too
            computing = device.use.compute_ns - device.use.steady.compute_ns
            host += max(device.steady.start - work.start - computing - int(early["ns"].sum()), 0)
        host, outside = _host_once(capture, calls.before, host), pl.concat([outside, early])
    of_run = outside["ns"].sum() + host > ONE_TIME * run.length
    counted = (outside, host) if of_run else (outside.clear(), 0)
    yield from _start_up(capture, device, calls, *counted, of_run=of_run)


def _host_once(capture: MeasuredCapture, before: pl.DataFrame, host: int) -> int:
    """Return the ns of `host`, those before the first work outside calls, in which the host does what occurs once.

    In Python it is all. In other programs, it is the time before the first context: libraries and the driver start.
    """
    if capture.program.python or capture.program.kind == "julia":  # each function at its first call
        return host
    ready = before.filter(pl.col("name").str.contains(NEEDS_CONTEXT))["end"]
    if ready.is_empty():
        return 0
    window = Window(capture.analysis.run.start, int(ready[0]))
    return min(window.length - int(inside(before, window)["ns"].sum()), host)


def _loading_before(trace: Trace, run: Window, work: Window) -> Mapping[str, int]:
    """Return the ns in which ranges before the first work load data, by name."""
    ranges = trace.ranges.filter(pl.col("start") < work.start, pl.col("end") > run.start)
    loads = ranges.filter(names_load_data(ranges["name"]))
    start, end = (loads[name].to_numpy().clip(run.start, work.start) for name in ("start", "end"))
    sums = Counter[str]()
    for name, ns in zip(loads["name"], own_lengths(start, end).tolist(), strict=True):
        sums[fold_numbers(name)] += ns
    return sums


def _named(trace: Trace, calls: pl.DataFrame, *more: str) -> pl.DataFrame:
    return name_calls(trace, calls).select(*(pl.col(name).cast(kind) for name, kind in ROW.items()), *more)


def _ns_by_name(calls: pl.DataFrame) -> dict[str, int]:
    return dict(calls.group_by("name", maintain_order=True).agg(pl.col("ns").sum()).iter_rows())


def _start_up(
    capture: MeasuredCapture, device: GpuWork, calls: _Calls, outside: pl.DataFrame, host: int, *, of_run: bool
) -> Iterator[FindingDraft]:
    """Yield a finding on the calls in gaps that occur once, those outside (ROW, ns), and `host` ns between these."""
    once, run = list(_one_time(capture.trace, device, calls)), capture.analysis.run
    in_calls = pl.concat([outside, *(rows for _, rows in once)])
    ns, claims = _ns_by_name(in_calls), [claim for claim, _ in once]
    compiling, gaps = _compiling(capture, device, calls.every)
    if compiling and (capture.analysis.covers_run or sum(compiling.values()) > ONE_TIME * device.steady.length):
        ns |= compiling
        claims.append(GapClaim(("host",), gaps))
    total = sum(ns.values()) + host
    if total == 0:
        return
    main, rest = max(ns, key=ns.__getitem__, default=""), max(run.length - total, 0)
    yield FindingDraft(
        "start_up",
        device,
        tuple(claims),
        {"calls": _words(ns, host), "run": duration(run.length), "left": duration(rest)},
        "host" if host > total / 2 else next((case for pattern, case in CASES if pattern.search(main)), ""),
        outside_ns=int(outside["ns"].sum()) + host,
        of_run=of_run,
        once=True,
        evidence=_places(device, in_calls),
    )


def _one_time(trace: Trace, device: GpuWork, calls: _Calls) -> Iterator[tuple[GapClaim, pl.DataFrame]]:
    """Yield the calls that occur once and hold more than half of an account (ROW, ns), with the claim on their gaps."""
    is_long = device.gap_end - device.gap_start > MAX_SHORT_GAP
    gaps, in_calls, most = _long_waits(trace, device, calls.every, is_long)
    for causes in ACCOUNTS:
        account = device.gap_waits(causes, slice(0, len(is_long)))
        if account is None or len(gaps) == 0:
            continue
        waits = in_calls.with_columns(ns=pl.Series(np.minimum(account[gaps], most), dtype=pl.Int64))
        waits = waits.group_by(*ROW, maintain_order=True).agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)
        for once in (_first(calls, waits), _longest(waits).head(1)):
            if once["ns"].sum() > ONE_TIME * account[is_long].sum():
                chosen = in_calls["start"].is_in(once["start"].implode()).to_numpy()
                yield GapClaim(causes, gaps[chosen], most[chosen]), once
                break


def _early(capture: MeasuredCapture, calls: _Calls, window: Window) -> pl.DataFrame:
    """Return what occurs once between the first work and the iterations: calls that occur first, or the longest."""
    early = inside(calls.every, window)
    least = MIN_EARLY * capture.analysis.run.length
    early = _named(capture.trace, early.filter(pl.col("role").is_in(WORKING_ROLES), pl.col("ns") >= least), "ns")
    choices = (_first(calls, early), _longest(early).head(1))
    return max(choices, key=lambda chosen: int(chosen["ns"].sum()))


def _first(calls: _Calls, some: pl.DataFrame) -> pl.DataFrame:
    """Return those of some calls (ROW) that are the first of their kind."""
    return some.join(calls.first, on=[*CALL, "start"], how="semi", maintain_order="left")


def _longest(calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls (ROW, ns), the longest first."""
    return calls.sort("ns", "start", descending=[True, False])


def _long_waits(trace: Trace, device: GpuWork, calls: pl.DataFrame, is_long: Mask) -> tuple[Times, pl.DataFrame, Times]:
    """Return the long gaps that a long call fills, the call that takes most of each (ROW), and its ns there."""
    length = pl.col("end") - pl.col("start")
    calls = _named(trace, calls.filter("counts", length > MAX_SHORT_GAP, pl.col("role").is_in(WORKING_ROLES)))
    frames, gaps, limits = [calls.clear()], [EMPTY.start], [EMPTY.start]
    for (thread,), own in calls.group_by("thread", maintain_order=True):
        gap = np.flatnonzero(is_long & (device.gap_thread == thread))
        call, ns = longest_call(device.gap_start[gap], device.gap_end[gap], own)
        waiting = np.flatnonzero(call >= 0)
        frames.append(own[call[waiting]])
        gaps.append(gap[waiting])
        limits.append(ns[waiting])
    rows, most = np.concatenate(gaps), np.concatenate(limits)
    order = np.argsort(rows)
    return rows[order], pl.concat(frames)[order], most[order]


def _compiling(capture: MeasuredCapture, device: GpuWork, calls: pl.DataFrame) -> tuple[dict[str, int], Times]:
    """Return the long gaps in which the host compiles or a library starts, and their `host` ns by what shows it.

    A range shows it by its name. A call that links or loads a module shows that the host, or a thread or process that
    it waited for, made this code before.
    """
    host = device.gaps.frame["host"].to_numpy()
    gaps = np.flatnonzero((device.gap_end - device.gap_start > MAX_SHORT_GAP) & (host > 0))
    middle = (device.gap_start[gaps] + device.gap_end[gaps]) // 2
    names, which = capture.range_names(capture.ranges_at(device.gap_thread[gaps].astype(np.int64), middle))
    in_range = np.array([COMPILES.search(name) is not None for name in names], np.bool_)[which]

    def have(pattern: str) -> Mask:
        starts = calls.filter("counts", names_match(calls["name"], pattern))["start"].to_numpy()
        first, last = (np.searchsorted(starts, edge) for edge in (device.gap_start[gaps], device.gap_end[gaps]))
        return first < last

    loads, starts = have(LOADS_CODE), have(STARTS_LIBRARY)
    keys = [f"`{name}`" for name in names] + [COMPILATION, LIBRARIES]
    which = np.where(in_range, which, len(names) + ~loads)
    chosen = in_range | loads | starts
    ns = np.bincount(which[chosen], host[gaps[chosen]], minlength=len(keys)).astype(np.int64).tolist()
    return {name: own for name, own in zip(keys, ns, strict=True) if own}, gaps[chosen]


def _words(ns: Mapping[str, int], host: int = 0) -> str:
    """Return the times of calls, the longest first, and of the host between them."""
    least = MIN_NAMED * sum(ns.values())
    names = [name for name in sorted(ns, key=lambda name: (-ns[name], name)) if ns[name] >= least]
    words = [f"{duration(ns[name])} in {name}" for name in names[:MAX_NAMES]]
    others = sum(ns.values()) - sum(ns[name] for name in names[:MAX_NAMES])
    words += [f"{duration(others)} in other calls"] if others >= least and others else []
    words += [f"{duration(host)} outside CUDA calls"] if host > least else []
    return join_words(words)


def _places(device: GpuWork, calls: pl.DataFrame) -> tuple[Place, ...]:
    """Return the longest of some calls (ROW, ns) as places."""
    longest = _longest(calls).unique("start", keep="first", maintain_order=True)
    return tuple(
        Place(
            f"{row['name']}: {duration(row['end'] - row['start'])}"
            + f", launches {plain(row['kernel'], MAX_LETTERS)}" * bool(row["kernel"]),
            row["start"],
            row["end"],
            device.id,
            thread=row["thread"],
        )
        for row in longest.head(MAX_PLACES).iter_rows(named=True)
    )


def _end(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> FindingDraft:
    """Return the time after the last work of a device's processes."""
    run, last = capture.analysis.run, calls.work.end
    after = _ns_by_name(_named(capture.trace, inside(calls.every, Window(last, run.end)), "ns"))
    whole = run.end - last
    host = whole - sum(after.values())
    case = "host_after_work" if host > ONE_TIME * whole else "end_of_run"
    place, values = Place("after the last GPU work", last, run.end, device.id), {"calls": _words(after, host)}
    return FindingDraft("after_loop", device, (), values, case, "end", outside_ns=whole, evidence=(place,), once=True)


start_up = Rule("start_up", find)
