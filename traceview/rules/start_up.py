"""Rules on the time outside the loop: what occurs once, and what is idle before and after the counted iterations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import EMPTY, Times, clip, length, own_lengths, rows_by_code, subtract, union, values_at
from traceview.measure.iterations.compilation import LOADS_CODE
from traceview.measure.run import TORCH_PROFILER, WORKING_ROLES, ProgramCalls, longest_call, own_times
from traceview.model.analysis import CAUSES, Analysis
from traceview.model.findings import Place
from traceview.model.names import fold_numbers, title_name
from traceview.model.trace import Note, Trace, Window, enum_texts, names_load_data
from traceview.model.units import duration
from traceview.pricing.base import FindingDraft, GpuWork, Mask, MeasuredCapture, once_per_capture
from traceview.pricing.ledger import GapClaim
from traceview.pricing.texts import join_words
from traceview.rules.launches import MAX_SHORT_GAP

ONE_TIME = 0.5  # share of a cost from which what occurs once explains it, and of the run from which it comes first
MAX_NAMES, MAX_PLACES = 2, 5
FEW = 0.15  # share of the run; start-up can lead only where the iterations take less (METRICS "Start-up")
MIN_NAMED = 0.02  # share of a finding's calls; shorter ones are not named
# The causes of idle time in which a call does work of its own. In the others it waits for the GPU, or copies.
ACCOUNTS = (("memory",), ("launch", "api"))
CASE = "first_work"
COMPILES = re.compile(  # a Thunk of XLA runs what is compiled
    r"^(?!Thunk:).*(?<![A-Za-z])(?i:nvrtc|jit|compil(?!ed)\w*|dynamo_timed|autotun\w*|lazy_?(?:load|init)\w*)(?![A-Za-z])"
    r"|^Xla(?:Compile|Pass|Emit|Optimize|Autotun)"
)
# What cuBLAS, cuDNN and other libraries call when they make a handle, and loops do not.
STARTS_LIBRARY = r"^(?:cuda|hip)(?:GetDeviceProperties|GetSymbolAddress|StreamCreate)"
COMPILATION, LIBRARIES = "the compilation of kernels", "the start of libraries"
GIVES_BACK = r"Free|Destroy|Unload|Reset|Unregister|Release"  # calls of a program that ends
RESETS = r"^(?:cuda|hip)DeviceReset"
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
    """The calls of the processes that use a GPU, and the time of the work of all their GPUs.

    `before` has the calls before the first work (ROW, ns), and `long` those that can fill long gaps (ROW). `code` and
    `libraries` are the starts of the calls that load code, and that start a library.
    """

    every: ProgramCalls
    before: pl.DataFrame
    long: pl.DataFrame
    code: Times
    libraries: Times
    work: Window


def start_up(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """What occurs once: start-up, before the first GPU work, and the end of the run, after the last.

    Symptom: calls of milliseconds to seconds that occur once, such as the first CUDA call, the first launch of a kernel
    and the first allocation of pinned memory; or a host that prepares the first GPU work for long.
    Cause: the driver creates the context, and loads or compiles modules. Libraries make handles and try algorithms.
    Memory is pinned or freed page by page.
    Remedy: warm up before measuring, keep the process alive, cache what is compiled. A remedy for a loop does not
    apply.

    A cost is one-time if one call, or the first occurrence of each call, holds more than half of it
    (docs/definitions.md "Start-up and single events"). Claims the idle causes `memory`, `launch` and `api` of long gaps
    that such calls fill. Where findings cover the run, `start_up` also has the calls before the first GPU work,
    `host_bound` what the host does between them (in Python it is start-up, too), and `after_loop` the time after the
    last work: no gap has these times. Where findings cover iterations that take little of the run, all time before them
    is start-up if it is most of the run.
    """
    calls = _calls(capture, device.process_ids)
    yield from (_in_run if capture.analysis.covers_run else _before_iterations)(capture, device, calls)


@once_per_capture
def _calls(capture: MeasuredCapture, processes: tuple[int, ...]) -> _Calls:
    trace, analysis = capture.trace, capture.analysis
    windows = [use.window for use in analysis.devices if not set(processes).isdisjoint(use.process_ids)]
    work = Window(min(window.start for window in windows), max(window.end for window in windows))
    every = ProgramCalls(trace, processes)
    before = _named(every, every.inside(Window(analysis.run.start, work.start)), "ns")
    long = _named(every, every.long().filter(pl.col("role").is_in(WORKING_ROLES)))
    code, libraries = (every.named(pattern)["start"].to_numpy() for pattern in (LOADS_CODE, STARTS_LIBRARY))
    return _Calls(every, before, long, code, libraries, work)


def _in_run(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> Iterator[FindingDraft]:
    """Yield what occurs once in a run, with the time before the first GPU work and after the last."""
    run, work, in_calls = capture.analysis.run, calls.work, int(calls.before["ns"].sum())
    host, loading = work.start - run.start - in_calls, _loading_before(capture.trace, run, work)
    loads = min(sum(loading.values()), host)
    once = _host_once(capture, calls, host - loads)
    rest = host - loads - once
    yield from _start_up(capture, device, calls, calls.before, once, of_run=True)
    if loads:
        place = Place("the host loads data", run.start, work.start, device.id)
        values = {"range": max(loading, key=loading.__getitem__)}
        yield FindingDraft("data_loading", device, (), values, CASE, CASE, outside_ns=loads, evidence=(place,))
    if rest:
        place = Place("the host prepares the first work", run.start, work.start, device.id)
        yield FindingDraft("host_bound", device, (), {}, CASE, CASE, outside_ns=rest, evidence=(place,), once=True)
    if not capture.analysis.info.trust.failed:  # else the last recorded work is not the last
        yield _end(capture, device, calls)


def _before_iterations(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> Iterator[FindingDraft]:
    """Yield what occurs once, with all the time before the counted iterations if that is most of the run."""
    run, outside = capture.analysis.run, calls.before.clear()
    before = Window(run.start, max(_until(capture, device, calls), run.start))
    of_run = device.steady.length <= FEW * run.length and before.length > ONE_TIME * run.length
    if of_run:
        outside = _named(calls.every, calls.every.inside(before), "ns")
    host = before.length - int(outside["ns"].sum()) if of_run else 0
    yield from _start_up(capture, device, calls, outside, host, of_run=of_run)


def _until(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> int:
    """Return when start-up ends: with the first counted iteration, or in a training with the first GPU work.

    A training goes on for longer than a capture, and its first steps work on the GPU. If the first calls for each of
    their kernels take most of the run, these steps load code.
    """
    early = calls.long.filter(pl.col("start") < device.steady.start).sort("start")
    first = early.unique(("name", "kernel"), keep="first")
    loads = int((first["end"] - first["start"]).sum()) > ONE_TIME * capture.analysis.run.length
    return calls.work.start if capture.program.training and not loads else device.steady.start


def _host_once(capture: MeasuredCapture, calls: _Calls, host: int) -> int:
    """Return the ns of `host`, those before the first work outside calls, in which the host does what occurs once.

    In Python it is all but what ranges take that come again. A trace of torch.profiler begins in the middle of a run:
    there it is what compiles. In other programs, it is the time before the first context: libraries and the driver
    start.
    """
    before, trace = calls.before, capture.trace
    window = Window(capture.analysis.run.start, calls.work.start)
    if trace.info.profiler == TORCH_PROFILER:
        return min(_host_in(trace.ranges.filter(_names_compile(trace.ranges["name"])), window, before), host)
    if capture.program.python or capture.program.kind == "julia":  # each function at its first call
        return max(host - _host_in(_ordinary(trace, window), window, before), 0)
    reset = before.filter(pl.col("name").str.contains(RESETS))["end"].max() or 0  # another context follows
    ready = before.filter(pl.col("name").str.contains(NEEDS_CONTEXT), pl.col("start") >= reset)["end"]
    if ready.is_empty():
        return 0
    window = Window(window.start, int(ready[0]))
    reach = before.filter(pl.col("start") < window.end, pl.col("end") > window.start)
    return min(window.length - int(own_times(reach, window)["ns"].sum()), host)


def _names_compile(column: pl.Series) -> Mask:
    """Return which texts of an Enum column name a compilation, searched once in each distinct text."""
    marks = np.array([COMPILES.search(text) is not None for text in enum_texts(column)], np.bool_)
    return values_at(marks, column.to_physical().to_numpy(), False)


def _ordinary(trace: Trace, before: Window) -> pl.DataFrame:
    """Return the ranges (start, end) before the first work that come again, each as long as later ones usually are."""
    folded = fold_numbers(enum_texts(trace.ranges["name"]))
    ranges = trace.ranges.filter(~names_load_data(trace.ranges["name"]))  # _loading_before has these
    ranges = ranges.select("start", "end", name=folded.gather(ranges["name"].to_physical()))
    later, length_ns = pl.col("start") >= before.end, pl.col("end") - pl.col("start")
    usual = ranges.filter(later).group_by("name").agg(usual=length_ns.median().cast(pl.Int64))
    first = ranges.filter(~later, pl.col("end") > before.start).join(usual, on="name", maintain_order="left")
    return first.select("start", end=pl.min_horizontal("end", pl.col("start") + pl.col("usual")))


def _host_in(ranges: pl.DataFrame, window: Window, calls: pl.DataFrame) -> int:
    """Return the ns of a window inside ranges (start, end; in the order of time) and outside of some calls."""
    opened, called = (union(*(each[name].to_numpy() for name in ("start", "end"))) for each in (ranges, calls))
    return length(subtract(clip(opened, window.start, window.end), called))


def _loading_before(trace: Trace, run: Window, work: Window) -> Mapping[str, int]:
    """Return the ns in which ranges before the first work load data, by name."""
    ranges = trace.ranges.filter(pl.col("start") < work.start, pl.col("end") > run.start)
    loads = ranges.filter(names_load_data(ranges["name"]))
    start, end = (loads[name].to_numpy().clip(run.start, work.start) for name in ("start", "end"))
    sums = Counter[str]()
    for name, ns in zip(fold_numbers(loads["name"].cast(pl.String)), own_lengths(start, end).tolist(), strict=True):
        sums[name] += ns
    return sums


def _named(every: ProgramCalls, calls: pl.DataFrame, *more: str) -> pl.DataFrame:
    return every.with_kernels(calls).select(*(pl.col(name).cast(kind) for name, kind in ROW.items()), *more)


def _ns_by_name(calls: pl.DataFrame) -> dict[str, int]:
    return dict(calls.group_by("name", maintain_order=True).agg(pl.col("ns").sum()).iter_rows())


def _start_up(
    capture: MeasuredCapture, device: GpuWork, calls: _Calls, outside: pl.DataFrame, host: int, *, of_run: bool
) -> Iterator[FindingDraft]:
    """Yield a finding on the calls in gaps that occur once, those outside (ROW, ns), and `host` ns between these."""
    once, run = list(_one_time(capture, device, calls)), capture.analysis.run
    in_calls = pl.concat([outside, *(rows for _, rows in once)])
    ns, claims = _ns_by_name(in_calls), [claim for claim, _ in once]
    compiling, gaps = _compiling(capture, device, calls)
    if compiling and (capture.analysis.covers_run or sum(compiling.values()) > ONE_TIME * device.steady.length):
        ns |= compiling
        claims.append(GapClaim(("host",), gaps))
    whole = int(outside["ns"].sum()) + host
    if made := min(_compiled_before(calls, outside), host):
        ns[COMPILATION], host = ns.get(COMPILATION, 0) + made, host - made
    total = sum(ns.values()) + host
    if total == 0:
        return
    main, rest = max(ns, key=ns.__getitem__, default=""), max(run.length - total, 0)
    yield FindingDraft(
        "start_up",
        device,
        tuple(claims),
        {"calls": _words(ns, host), "left": duration(rest)},
        "host" if host > total / 2 else next((case for pattern, case in CASES if pattern.search(main)), ""),
        outside_ns=whole,
        of_run=of_run,
        once=True,
        evidence=_places(device, in_calls),
    )


def _compiled_before(calls: _Calls, outside: pl.DataFrame) -> int:
    """Return the ns of the long pauses between calls (ROW) that end with one that loads code: it was made in them."""
    start, end = (np.sort(outside[name].to_numpy()) for name in ("start", "end"))
    pause = start[1:] - end[:-1]
    return int(pause[np.isin(start[1:], calls.code) & (pause > MAX_SHORT_GAP)].sum())


def _one_time(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> Iterator[tuple[GapClaim, pl.DataFrame]]:
    """Yield the first calls that hold more than half of an account (ROW, ns), with the claim on their gaps."""
    is_long = device.gap_end - device.gap_start > MAX_SHORT_GAP
    if capture.counted:  # later calls are those of the loop
        is_long &= device.gap_start < device.steady.start
    gaps, in_calls, most = _long_waits(device, calls.long, is_long)
    for causes in ACCOUNTS:
        account = device.gap_waits(causes, slice(0, len(is_long)))
        if account is None or len(gaps) == 0:
            continue
        waits = in_calls.with_columns(ns=pl.Series(np.minimum(account[gaps], most), dtype=pl.Int64))
        waits = waits.group_by(*ROW, maintain_order=True).agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)
        least = ONE_TIME * account[is_long].sum()
        if waits["ns"].sum() > least and (once := calls.every.first_of_kind(waits))["ns"].sum() > least:
            chosen = in_calls["start"].is_in(once["start"].implode()).to_numpy()
            yield GapClaim(causes, gaps[chosen], most[chosen]), once


def _longest(calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls (ROW, ns), the longest first."""
    return calls.sort("ns", "start", descending=[True, False])


def _long_waits(device: GpuWork, calls: pl.DataFrame, is_long: Mask) -> tuple[Times, pl.DataFrame, Times]:
    """Return the long gaps that a long call fills, the call that takes most of each (ROW), and its ns there."""
    frames, gaps, limits = [calls.clear()], [EMPTY.start], [EMPTY.start]
    long = np.flatnonzero(is_long & (device.gap_thread >= 0))
    gaps_of = dict(rows_by_code(device.gap_thread[long]))
    for (thread,), own in calls.group_by("thread", maintain_order=True):
        if thread not in gaps_of:
            continue
        gap = long[gaps_of[thread]]
        call, ns = longest_call(device.gap_start[gap], device.gap_end[gap], own)
        waiting = np.flatnonzero(call >= 0)
        frames.append(own[call[waiting]])
        gaps.append(gap[waiting])
        limits.append(ns[waiting])
    rows, most = np.concatenate(gaps), np.concatenate(limits)
    order = np.argsort(rows)
    return rows[order], pl.concat(frames)[order], most[order]


def _compiling(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> tuple[dict[str, int], Times]:
    """Return the long gaps in which the host compiles or a library starts, and the `host` ns of both.

    A range shows it by its name; its gap may be longer than the range. A call that links or loads a module shows that
    the host, or a thread or process that it waited for, made this code before.
    """
    host = device.gaps.frame["host"].to_numpy()
    gaps = np.flatnonzero((device.gap_end - device.gap_start > MAX_SHORT_GAP) & (host > 0))
    middle = (device.gap_start[gaps] + device.gap_end[gaps]) // 2
    names, which = capture.range_names(capture.ranges_at(device.gap_thread[gaps].astype(np.int64), middle))
    in_range = np.array([COMPILES.search(name) is not None for name in names], np.bool_)[which]

    start, end, both = device.gap_start[gaps], device.gap_end[gaps], (calls.code, calls.libraries)
    loads, starts = (np.searchsorted(each, end) - np.searchsorted(each, start) for each in both)
    if starts.sum() <= ONE_TIME * (calls.libraries >= calls.work.start).sum():  # libraries that call it in a loop
        starts[:] = 0
    chosen = in_range | (loads + starts > 0)
    compiles = (in_range | (loads > 0))[chosen]
    ns = host[gaps[chosen]]
    sums = {COMPILATION: int(ns[compiles].sum()), LIBRARIES: int(ns[~compiles].sum())}
    return {name: own for name, own in sums.items() if own}, gaps[chosen]


def _words(ns: Mapping[str, int], host: int = 0, in_host: str = "in host code") -> str:
    """Return the longest times of calls and of the host between them, the longest first."""
    least = MIN_NAMED * (sum(ns.values()) + host)
    times = {**{f"in {name}": own for name, own in ns.items()}, in_host: host}
    longest = sorted(times, key=lambda words: (-times[words], words))[:MAX_NAMES]
    return join_words([f"{duration(times[words])} {words}" for words in longest if times[words] >= max(least, 1)])


def _places(device: GpuWork, calls: pl.DataFrame) -> tuple[Place, ...]:
    """Return the longest of some calls (ROW, ns) as places."""
    longest = _longest(calls).unique("start", keep="first", maintain_order=True)
    return tuple(
        Place(
            f"{row['name']}: {duration(row['end'] - row['start'])}"
            + f", launches {title_name(row['kernel'])}" * bool(row["kernel"]),
            row["start"],
            row["end"],
            device.id,
            thread=row["thread"],
        )
        for row in longest.head(MAX_PLACES).iter_rows(named=True)
    )


def _end(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> FindingDraft:
    """Return the time after the last work of a device's processes.

    If no later call gives back what the program has, the capture ends before the program does.
    """
    run, last = capture.analysis.run, calls.work.end
    window = Window(last, run.end)
    later = _named(calls.every, calls.every.inside(window), "ns")
    after, whole = _ns_by_name(later), window.length
    host, name = whole - sum(after.values()), _range_of(capture.trace, window)
    case = "host_after_work" if host > ONE_TIME * whole else "end_of_run"
    if not later["name"].str.contains(GIVES_BACK).any():
        case = "capture_ends"
    where = f"in `{title_name(name)}`" if name else "in host code"
    place, values = Place("after the last GPU work", last, run.end, device.id), {"calls": _words(after, host, where)}
    return FindingDraft("after_loop", device, (), values, case, "end", outside_ns=whole, evidence=(place,), once=True)


MIN_OUTSIDE = 0.1  # share of the run; a shorter time outside the steady part is not worth a note


def outside_iterations(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft | Note]:
    """The time outside the counted iterations: start-up, warm-up and the end of the run.

    Symptom: the run is longer than its steady part.
    Cause: imports, CUDA initialization, model building, compilation, the first steps.
    Remedy: none needed for the steady part; capture only steady steps to leave it out of the capture.

    Findings of the steady part do not include it, so a note states it. With Analysis.whole, a finding claims all idle
    causes of the gaps that begin outside the steady part. `start_up` has what occurs once, and the time outside all
    gaps.
    """
    if capture.counted is None:
        return
    if not capture.analysis.whole:
        yield from _notes_outside(capture)
        return
    yield _draft_outside(device, "before_loop", slice(0, device.steady_gaps.start))
    yield _draft_outside(device, "after_loop", slice(device.steady_gaps.stop, len(device.gap_start)))


class TimeOutside(NamedTuple):
    """The time of the run before and after the counted iterations of all GPUs.

    `start_up` is the part of the first up to the first kernel, None if a GPU works for half of the first or longer. A
    trace of torch.profiler begins in the middle of a run, and has none.
    """

    before: Window
    after: Window
    start_up: Window | None


def time_outside(analysis: Analysis) -> TimeOutside | None:
    """Return the time outside the counted iterations; None where they are not at the same time on all GPUs."""
    run, steady = analysis.run, [use.steady.window for use in analysis.devices]
    begin, end = max((each.start for each in steady), default=0), min((each.end for each in steady), default=0)
    if begin >= end:
        return None
    before, first_work = Window(run.start, begin), min(use.window.start for use in analysis.devices)
    starts_up = first_work - run.start > ONE_TIME * before.length and analysis.info.profiler != TORCH_PROFILER
    is_early = pl.col("start").is_between(first_work, begin) & pl.col("class").is_in(("compute", "communication"))
    first_kernel: int = analysis.trace.operations.filter(is_early)["start"].min() or begin  # type: ignore[assignment]
    return TimeOutside(before, Window(end, run.end), Window(run.start, first_kernel) if starts_up else None)


def _notes_outside(capture: MeasuredCapture) -> Iterator[Note]:
    """Yield a note for the start and the end of the run, as long as on the device that has the most time there."""
    outside, run = time_outside(capture.analysis), capture.analysis.run
    if outside is None:
        return
    least, before = MIN_OUTSIDE * run.length, outside.before
    if (start := outside.start_up) is not None:
        if before.length >= least:
            part = f"{duration(start.length)} of the run of {duration(run.length)}"
            yield Note("start_up", f"Start-up takes {part}. It is not shown; --whole includes it")
        before = Window(start.end, before.end)
    for where, window in (("before", before), ("after", outside.after)):
        if window.length < least:
            continue
        mostly = ""
        if name := _range_of(capture.trace, window):
            mostly = f", mostly in `{title_name(name)}`"
        elif _copying(capture.trace, window) > ONE_TIME * window.length:
            mostly = ", mostly in copies"
        part = f"{duration(window.length)} of the run of {duration(run.length)}"
        text = f"{part} lie {where} the counted iterations{mostly}. They are not shown; --whole includes them"
        yield Note(f"{where}_loop", text)


def _range_of(trace: Trace, window: Window) -> str:
    """Return the name of the outermost range that covers most of a window and has most of its own time there, or ""."""
    inside = pl.min_horizontal("end", pl.lit(window.end)) - pl.max_horizontal("start", pl.lit(window.start))
    most = pl.max_horizontal(pl.lit(window.length), pl.col("end") - pl.col("start")) * ONE_TIME
    names = trace.ranges.filter(inside > most).sort(inside, descending=True, maintain_order=True)["name"]
    return names[0] if len(names) else ""


def _copying(trace: Trace, window: Window) -> int:
    """Return the ns of a window in which data are copied."""
    copies = trace.operations.filter(pl.col("class") == "copy", pl.col("start") < window.end)
    start, end = (copies[name].to_numpy() for name in ("start", "end"))
    return length(clip(union(start, end, ordered=True), window.start, window.end))


def _draft_outside(device: GpuWork, name: str, gaps: slice) -> FindingDraft:
    ns = {cause: int(device.gaps.frame[cause][gaps].sum()) for cause in CAUSES}
    largest = [cause for cause in sorted(ns, key=lambda cause: -ns[cause])[:2] if ns[cause]]
    words = " and ".join(f"{duration(ns[cause])} `{cause}`" for cause in largest)
    values = {"causes": words or "for unknown causes"}
    return FindingDraft(name, device, (GapClaim(CAUSES, gaps),), values, same_everywhere=True)
