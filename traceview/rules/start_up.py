"""Rules on the time outside the loop: what occurs once, and what is idle before and after the counted iterations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import (
    EMPTY,
    Intervals,
    Times,
    clip,
    length,
    own_lengths,
    rows_by_code,
    subtract,
    union,
    values_at,
)
from traceview.measure.iterations.compilation import LOADS_CODE
from traceview.measure.run import TORCH_PROFILER, WORKING_ROLES, ProgramCalls, calls_in, own_times
from traceview.model.findings import Place
from traceview.model.names import fold_numbers, title_name
from traceview.model.trace import Trace, Window, enum_texts, names_load_data, names_match
from traceview.model.units import duration
from traceview.pricing.base import FindingDraft, GpuWork, Mask, MeasuredCapture, once_per_capture
from traceview.pricing.ledger import GapClaim
from traceview.pricing.texts import join_words
from traceview.rules.launches import MAX_SHORT_GAP
from traceview.rules.outside import first_kernel, is_lazy, range_of

ONE_TIME = 0.5  # share of a cost from which what occurs once explains it, and of the run from which it comes first
MAX_NAMES, MAX_PLACES = 2, 5
FEW = 0.15  # share of the run; start-up can lead only where the iterations take less (METRICS "Start-up")
MIN_NAMED = 0.02  # share of a finding's calls; shorter ones are not named
# The causes of idle time in which a call does work of its own. In the others it waits for the GPU, or copies.
MEMORY = "memory"
ACCOUNTS = ((MEMORY,), ("launch", "api"))
CASE, BEFORE = "first_work", "before_loop"
COMPILES = re.compile(  # a Thunk of XLA runs what is compiled
    r"^(?!Thunk:).*(?<![A-Za-z])(?i:nvrtc|jit|compil(?!ed)\w*|dynamo_timed|autotun\w*|lazy_?(?:load|init)\w*)(?![A-Za-z])"
    r"|^Xla(?:Compile|Pass|Emit|Optimize|Autotun)"
)
# What cuBLAS, cuDNN and other libraries call when they make a handle, and loops do not.
STARTS_LIBRARY = r"^(?:cuda|hip)(?:GetDeviceProperties|GetSymbolAddress|StreamCreate)"
MAKES_CODE = r"^(?:cu|hip)(?:Link|Module)|^nvrtc"  # the others, and programs without a framework, also load built code
COMPILATION, LOADING = "the compilation of kernels", "the loading or compilation of kernels"
LIBRARIES, RANKS = "the start of libraries", "the start of MPI or NCCL"
DIRECTIVES = ("openacc", "openmp")
STARTS_RANKS = r"^(?:MPI_Init|p?ncclCommInit)"
GIVES_BACK = r"Free|Destroy|Unload|Reset|Unregister|Release"  # calls of a program that ends
RESETS = r"^(?:cuda|hip)DeviceReset"
# The first such call creates a context.
NEEDS_CONTEXT = r"Create|Launch|Mem|Malloc|Alloc|Free|Synchronize|IsCapturing|CtxSetCurrent"
ROW = {"name": pl.String, "kernel": pl.String, "start": pl.Int64, "end": pl.Int64, "thread": pl.Int64}
# The case of the texts by the name of the call that takes most of start-up.
CASES = (
    (re.compile(r"^hip"), ""),  # the settings below are those of CUDA
    (re.compile(r"Host|cuMemAllocHost"), "pinned"),
    (re.compile(r"^`|^the compilation"), "compiled"),
    (re.compile(r"^the loading|[Ll]ibrar|Module|Link|Launch|Func|Nvrtc|nvrtc|ompil|utotun|Graph"), "modules"),
)


class _Calls(NamedTuple):
    """The calls of the processes that use a GPU, and the time of the work of all their GPUs.

    `before` has the calls before `until` (ROW, ns), `long` those that can fill long gaps (ROW, role). `until` is the
    first work, and before iterations of a program that loads nothing later, the first kernel. `code` are
    the starts of the calls that load code, `made` of those before which it is compiled, and `libraries` of those that
    start a library.
    """

    every: ProgramCalls
    before: pl.DataFrame
    long: pl.DataFrame
    code: Times
    made: Times
    libraries: Times
    work: Window
    until: int


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
    last work: no gap has these times. So it is with the time before iterations that take little of the run, if it is
    most of the run; `host_bound` is then also what the host does between the first kernel and them.
    """
    calls = _calls(capture, device.process_ids)
    if not capture.analysis.covers_run:
        yield from _before_iterations(capture, device, calls)
        return
    yield from _before_work(
        capture, device, calls, _pauses(capture, calls, Window(capture.analysis.run.start, calls.until))
    )
    if not capture.analysis.info.trust.failed:  # else the last recorded work is not the last
        yield _end(capture, device, calls)


@once_per_capture
def _calls(capture: MeasuredCapture, processes: tuple[int, ...]) -> _Calls:
    trace, analysis = capture.trace, capture.analysis
    devices = [use for use in analysis.devices if not set(processes).isdisjoint(use.process_ids)]
    work = Window(min(use.window.start for use in devices), max(use.window.end for use in devices))
    every = ProgramCalls(trace, processes)
    until = work.start if analysis.covers_run or is_lazy(capture.program) else first_kernel(analysis, devices)
    before = _named(every, every.inside(Window(analysis.run.start, until)), "ns", "role")
    long = _named(every, every.long().filter(pl.col("role").is_in(WORKING_ROLES)), "role")
    loads = every.named(LOADS_CODE)
    makes = loads.filter(names_match(loads["name"], MAKES_CODE) & is_lazy(capture.program))
    code, made, libraries = (each["start"].to_numpy() for each in (loads, makes, every.named(STARTS_LIBRARY)))
    return _Calls(every, before, long, code, made, libraries, work, until)


def _before_work(
    capture: MeasuredCapture, device: GpuWork, calls: _Calls, pauses: Mapping[str, Intervals]
) -> Iterator[FindingDraft]:
    """Yield what occurs once, with the time before the first GPU work or kernel, and compilation after it."""
    time, in_calls = Window(capture.analysis.run.start, calls.until), int(calls.before["ns"].sum())
    host, loading = time.length - in_calls, _loading_before(capture.trace, time)
    loads = min(sum(loading.values()), host)
    once, where = _host_once(capture, calls, pauses, host - loads)
    rest = host - loads - once
    outside = calls.before.filter(pl.col("role") != "blocking_copy").drop("role")
    # What is loaded or allocated first after the first kernel; findings on the run have it in its gaps.
    if capture.counted and not capture.analysis.covers_run:
        outside = pl.concat([outside, calls.every.single(_long_between(calls, calls.until, device.steady.start))])
    yield from _start_up(capture, device, calls, outside, once + _after(pauses, calls.until), pauses, where)
    if loads:
        place = Place("the host loads data", time.start, time.end, device.id)
        values = {"range": max(loading, key=loading.__getitem__)}
        yield _of_host("data_loading", device, values, CASE, loads, place)
    if rest:
        place = Place("the host prepares the first work", time.start, time.end, device.id)
        first = "the GPU gets its first work" if calls.until == calls.work.start else "the first kernel"
        yield _of_host("host_bound", device, {"first": first}, CASE, rest, place)


def _long_between(calls: _Calls, start: int, end: int) -> pl.DataFrame:
    """Return the long calls that begin in a time (ROW, ns)."""
    inside = calls.long.filter(pl.col("start").is_between(start, end))
    return inside.select(*ROW, ns=pl.col("end") - pl.col("start"))


def _of_host(name: str, device: GpuWork, values: Mapping[str, str], case: str, ns: int, place: Place) -> FindingDraft:
    """Return a finding on what the host does once, in no gap."""
    return FindingDraft(name, device, (), values, case, case, outside_ns=ns, of_run=True, evidence=(place,), once=True)


def _before_iterations(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> Iterator[FindingDraft]:
    """Yield what occurs once, with all the time before the counted iterations if that is most of the run.

    In Python and Julia it is start-up: what the first steps use is loaded or compiled there. Other programs start up
    until their first kernel, and then run their own code.
    """
    run = capture.analysis.run
    before = Window(run.start, max(_until(capture, device, calls), run.start))
    if device.steady.length > FEW * run.length or before.length <= ONE_TIME * run.length:
        yield from _start_up(capture, device, calls, calls.before.clear().drop("role"), 0, {})
        return
    pauses = _pauses(capture, calls, before)
    if is_lazy(capture.program):
        outside = _named(calls.every, calls.every.inside(before), "ns")
        host = before.length - int(outside["ns"].sum())
        yield from _start_up(capture, device, calls, outside, host, pauses)
    else:
        yield from _before_work(capture, device, calls, pauses)
        later = Window(calls.until, before.end)
        busy = [calls.every.inside(later), capture.trace.operations.filter(pl.col("start") < before.end)]
        times = (np.concatenate([each[name].to_numpy() for each in busy]) for name in ("start", "end"))
        idle = later.length - length(clip(union(*times), later.start, later.end))
        if host := max(idle - _after(pauses, later.start), 0):
            place = Place("the host works before the counted iterations", later.start, later.end, device.id)
            yield _of_host("host_bound", device, {}, BEFORE, host, place)


def _until(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> int:
    """Return when start-up ends: with the first counted iteration, or in a training with the first GPU work.

    A training goes on for longer than a capture, and its first steps work on the GPU. If the first calls for each of
    their kernels take most of the run, these steps load code.
    """
    early = calls.long.filter(pl.col("start") < device.steady.start).sort("start")
    first = early.unique(("name", "kernel"), keep="first")
    loads = int((first["end"] - first["start"]).sum()) > ONE_TIME * capture.analysis.run.length
    return calls.work.start if capture.program.training and not loads else device.steady.start


def _host_once(capture: MeasuredCapture, calls: _Calls, pauses: Mapping[str, Intervals], host: int) -> tuple[int, str]:
    """Return the ns of `host`, those before the first work outside calls, in which the host does what occurs once.

    In Python it is all but what ranges take that come again. A trace of torch.profiler begins in the middle of a run:
    there it is what compiles. In other programs, it is the time before the first context, in which libraries and the
    driver start, and what compiles. Also returns where the host is then.
    """
    before, trace, where = calls.before, capture.trace, "in host code"
    window = Window(capture.analysis.run.start, calls.until)
    if trace.info.profiler == TORCH_PROFILER:
        return min(_host_in(trace.ranges.filter(_names_compile(trace.ranges["name"])), window, before), host), where
    if is_lazy(capture.program):
        return max(host - _host_in(_ordinary(trace, window), window, before), 0), where
    context = _context(before, capture.program.kind)
    if context.is_empty():
        return 0, where
    window = Window(window.start, int(context["end"][0]))
    reach = before.filter(pl.col("start") < window.end, pl.col("end") > window.start)
    compiled = _after(pauses, window.end) - _after(pauses, calls.until)
    once = window.length - int(own_times(reach, window)["ns"].sum()) + compiled
    return min(once, host), f"before the first {context['name'][0]}"


def _context(before: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return the first of the calls before the first work that needs a context, in one row or none.

    Where the runtime of OpenACC or OpenMP makes it, it is the load of code: until then the runtime starts.
    """
    reset = before.filter(pl.col("name").str.contains(RESETS))["end"].max() or 0  # another context follows
    first = before.filter(pl.col("name").str.contains(NEEDS_CONTEXT), pl.col("start") >= reset).head(1)
    if kind not in DIRECTIVES or first.is_empty() or first["name"][0].startswith("cuda"):
        return first
    load = before.filter(pl.col("name").str.contains("ModuleLoad"), pl.col("start") >= first["start"][0]).head(1)
    return first if load.is_empty() else load


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


def _loading_before(trace: Trace, time: Window) -> Mapping[str, int]:
    """Return the ns of the time before the first work in which ranges load data, by name."""
    ranges = trace.ranges.filter(pl.col("start") < time.end, pl.col("end") > time.start)
    loads = ranges.filter(names_load_data(ranges["name"]))
    start, end = (loads[name].to_numpy().clip(time.start, time.end) for name in ("start", "end"))
    sums = Counter[str]()
    for name, ns in zip(fold_numbers(loads["name"].cast(pl.String)), own_lengths(start, end).tolist(), strict=True):
        sums[name] += ns
    return sums


def _named(every: ProgramCalls, calls: pl.DataFrame, *more: str) -> pl.DataFrame:
    return every.with_kernels(calls).select(*(pl.col(name).cast(kind) for name, kind in ROW.items()), *more)


def _ns_by_name(calls: pl.DataFrame) -> dict[str, int]:
    return dict(calls.group_by("name", maintain_order=True).agg(pl.col("ns").sum()).iter_rows())


def _start_up(
    capture: MeasuredCapture,
    device: GpuWork,
    calls: _Calls,
    outside: pl.DataFrame,
    host: int,
    pauses: Mapping[str, Intervals],
    where: str = "in host code",
) -> Iterator[FindingDraft]:
    """Yield a finding on the calls in gaps that occur once, those outside (ROW, ns), and `host` ns between these.

    In `pauses` of these code is made, by the words for it. Without pauses, the finding is not of the run.
    """
    once, run = list(_one_time(capture, device, calls)), capture.analysis.run
    in_calls = pl.concat([outside, *(rows for _, rows in once)])
    ns, claims = _ns_by_name(in_calls), [claim for claim, _ in once]
    compiling, gaps = _compiling(capture, device, calls)
    if compiling and (capture.analysis.covers_run or sum(compiling.values()) > ONE_TIME * device.steady.length):
        ns |= compiling
        claims.append(GapClaim(("host",), gaps))
    whole = int(outside["ns"].sum()) + host
    for name, times in pauses.items():
        if made := min(length(times), host):
            ns[name], host = ns.get(name, 0) + made, host - made
    total = sum(ns.values()) + host
    if total == 0:
        return
    main, rest = max(ns, key=ns.__getitem__, default=""), max(run.length - total, 0)
    yield FindingDraft(
        "start_up",
        device,
        tuple(claims),
        {"calls": _words(ns, host, where), "left": duration(rest)},
        "host" if host > total / 2 else next((case for pattern, case in CASES if pattern.search(main)), ""),
        outside_ns=whole,
        of_run=bool(pauses),
        once=True,
        evidence=_places(device, in_calls),
    )


def _pauses(capture: MeasuredCapture, calls: _Calls, time: Window) -> dict[str, Intervals]:
    """Return the long pauses between the calls of a time in which the host starts up, by the words for it.

    Where code is loaded at once after a pause, it was made in it. Ranges show the start of MPI and NCCL.
    """
    inside = calls.every.inside(time)
    called = union(*(inside[name].to_numpy() for name in ("start", "end")))
    long = called.start[1:] - called.end[:-1] > MAX_SHORT_GAP
    start, end = called.end[:-1][long], called.start[1:][long]
    code, made = (
        np.searchsorted(each, end + MAX_SHORT_GAP) > np.searchsorted(each, end) for each in (calls.code, calls.made)
    )
    kinds = {COMPILATION: made, LOADING: code & ~made}
    if capture.program.kind in DIRECTIVES:  # they load what was built before
        kinds = {}
    pauses = {name: Intervals(start[chosen], end[chosen]) for name, chosen in kinds.items()}
    ranges = capture.trace.ranges.filter(names_match(capture.trace.ranges["name"], STARTS_RANKS))
    ranks = clip(union(*(ranges[name].to_numpy() for name in ("start", "end"))), time.start, time.end)
    return pauses | {RANKS: subtract(ranks, union(*map(np.concatenate, zip(called, *pauses.values(), strict=True))))}


def _after(pauses: Mapping[str, Intervals], moment: int) -> int:
    """Return the ns of pauses after a moment."""
    return sum(length(clip(times, moment, np.iinfo(np.int64).max)) for times in pauses.values())


def _one_time(capture: MeasuredCapture, device: GpuWork, calls: _Calls) -> Iterator[tuple[GapClaim, pl.DataFrame]]:
    """Yield the first calls that hold more than half of an account (ROW, ns), with the claim on their gaps."""
    is_long = device.gap_end - device.gap_start > MAX_SHORT_GAP
    if capture.counted:  # later calls are those of the loop
        is_long &= device.gap_start < device.steady.start
    in_memory = pl.col("role") == MEMORY
    for causes in ACCOUNTS:
        account = device.gap_waits(causes, slice(0, len(is_long)))
        if account is None:
            continue
        gaps, in_calls, most = _long_waits(device, calls.long.filter(in_memory == (MEMORY in causes)), is_long)
        most = _at_most(most, gaps, account)
        waits = in_calls.select(*ROW, ns=pl.Series(most, dtype=pl.Int64))
        waits = waits.group_by(*ROW, maintain_order=True).agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)
        least = ONE_TIME * account[is_long].sum()
        if waits["ns"].sum() > least and (once := calls.every.single(waits))["ns"].sum() > least:
            chosen = in_calls["start"].is_in(once["start"].implode()).to_numpy()
            rows, which = np.unique(gaps[chosen], return_inverse=True)
            limits = np.zeros(len(rows), np.int64)
            np.add.at(limits, which, most[chosen])
            yield GapClaim(causes, rows, limits), once


def _at_most(ns: Times, gaps: Times, account: Times) -> Times:
    """Return the ns of calls in gaps, cut so that the calls of a gap have no more than its account.

    The calls are in the order of their gaps.
    """
    before = np.cumsum(ns) - ns
    first = np.flatnonzero(np.diff(gaps, prepend=-1))
    before -= np.repeat(before[first], np.diff(first, append=len(gaps)))
    own: Times = np.clip(account[gaps] - before, 0, ns)
    return own


def _longest(calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls (ROW, ns), the longest first."""
    return calls.sort("ns", "start", descending=[True, False])


def _long_waits(device: GpuWork, calls: pl.DataFrame, is_long: Mask) -> tuple[Times, pl.DataFrame, Times]:
    """Return the long gaps that long calls fill, each of these calls (ROW), and its ns there, the longest first."""
    frames, gaps, lengths = [calls.clear()], [EMPTY.start], [EMPTY.start]
    long = np.flatnonzero(is_long & (device.gap_thread >= 0))
    gaps_of = dict(rows_by_code(device.gap_thread[long]))
    for (thread,), own in calls.group_by("thread", maintain_order=True):
        if thread not in gaps_of:
            continue
        gap = long[gaps_of[thread]]
        which, call, ns = calls_in(device.gap_start[gap], device.gap_end[gap], own)
        frames.append(own[call])
        gaps.append(gap[which])
        lengths.append(ns)
    rows, most = np.concatenate(gaps), np.concatenate(lengths)
    order = np.lexsort((-most, rows))
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

    start, end = device.gap_start[gaps], device.gap_end[gaps]
    loads, made, starts = (
        np.searchsorted(each, end) - np.searchsorted(each, start) for each in (calls.code, calls.made, calls.libraries)
    )
    if capture.counted:  # later calls are those of the loop
        starts[start >= device.steady.start] = 0
    if starts.sum() <= ONE_TIME * (calls.libraries >= calls.work.start).sum():  # libraries that call it in a loop
        starts[:] = 0
    kinds = np.select([in_range | (made > 0), loads > 0, starts > 0], [COMPILATION, LOADING, LIBRARIES], "")
    ns = host[gaps]
    sums = {name: int(ns[kinds == name].sum()) for name in (COMPILATION, LOADING, LIBRARIES)}
    return {name: own for name, own in sums.items() if own}, gaps[kinds != ""]


def _words(ns: Mapping[str, int], host: int, in_host: str) -> str:
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
    host, name = whole - sum(after.values()), range_of(capture.trace, window)
    case = "host_after_work" if host > ONE_TIME * whole else "end_of_run"
    if not later["name"].str.contains(GIVES_BACK).any():
        case = "capture_ends"
    where = f"in `{title_name(name)}`" if name else "in host code"
    place, values = Place("after the last GPU work", last, run.end, device.id), {"calls": _words(after, host, where)}
    return FindingDraft("after_loop", device, (), values, case, "end", outside_ns=whole, evidence=(place,), once=True)
