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
Where the iterations are a small part of the run, the calls that occur first before them count, too, and the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, own_lengths
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
from traceview.model.sums import KeyedSums, sum_mappings
from traceview.model.trace import EVERYTHING, Window, names_load_data, names_match
from traceview.model.units import duration, plain
from traceview.pricing.base import (
    CaptureFacts,
    CapturePart,
    DeviceFacts,
    DevicePart,
    FindingDraft,
    OldRule,
    fold_numbers,
)
from traceview.pricing.claims import Collected, GapGroup, IdleClaim
from traceview.pricing.ledger import sum_columns
from traceview.pricing.texts import join_words
from traceview.rules.launch_bound import MAX_SHORT_GAP

ONE_TIME = 0.5  # share of a cost from which what occurs once explains it, and of the run from which it comes first
MAX_NAMES, MAX_PLACES, MAX_LETTERS = 3, 5, 80
FEW = 0.05  # share of the run; start-up can lead only where the iterations take less
MIN_EARLY = 0.01  # share of the run; shorter calls before the iterations are not looked at
MIN_NAMED = 0.02  # share of a finding's calls; shorter ones are not named
# The causes of idle time in which a call does work of its own. In the others it waits for the GPU, or copies.
ACCOUNTS: Mapping[str, tuple[str, ...]] = {"memory": ("memory",), "calls": ("launch", "api")}
CASE = "first_work"
JUST_IN_TIME = ("jax", "cupy", "numba", "warp", "taichi", "julia", "triton")  # kinds that compile at a first call
SINGLE, COMPILING = "single calls", "compiling"
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


class _StartUpSums(NamedTuple):
    """The calls before and after the work of a device, and those that may occur once.

    `before` and `after` have ns by the name of calls, `longest` the longest of those before it (ROW, ns). `first` has
    when each call of CALL occurs first. `waits` has the ns of long gaps in each long call (ROW, by account), and
    `accounts` those of all long gaps. `idle` is the time before the first context in which the host is in no call, and
    `compiling` the ns of long gaps in which it compiles, by the name of the range or of the call that loads the result.
    `early` are the long calls between the first work and the iterations (ROW, ns). `loading` is the time before the
    first work in ranges that load data, by name.
    """

    before: dict[str, int]
    after: dict[str, int]
    longest: KeyedSums
    first: KeyedSums
    waits: KeyedSums
    accounts: dict[str, int]
    idle: int
    compiling: dict[str, int]
    early: KeyedSums
    loading: dict[str, int]


def _collect(part: CapturePart, device: DevicePart) -> Collected[_StartUpSums]:
    """Sum the calls before and after the work, and label long gaps with the call that takes most of each."""
    run, processes = part.analysis.run, part.trace.devices["processes"]
    windows = [
        (processes[row].to_list(), window)
        for row, window in ((use.device, use.window) for use in part.analysis.devices)
    ]
    work = _work_time(windows, device.process_ids)
    calls = calls_of_processes(part.trace, pl.Series(device.process_ids, dtype=pl.Int32))
    own = with_shapes(part.trace, calls)
    outside = Window(run.start, work.start), Window(work.end, run.end)
    before, after = (_named(part, inside(own, window), "ns", "counts") for window in outside)
    longest = before.sort("ns", "start", descending=[True, False]).head(MAX_PLACES)
    waits, group = _single_waits(part, device, own)
    long = device.gap_end - device.gap_start > MAX_SHORT_GAP
    compiling = _compiling(part, device, own)
    early = inside(own, Window(work.start, max(work.start, device.steady.start)))
    early = early.filter(pl.col("role").is_in(WORKING_ROLES), pl.col("ns") >= MIN_EARLY * run.length)
    early = _named(part, early, "ns")
    sums = _StartUpSums(
        _by_name(before),
        _by_name(after),
        KeyedSums.from_rows(longest.select(*ROW, "ns"), *ROW),
        KeyedSums.from_rows(first_calls(part.trace, own).with_columns(seen=1), *CALL, "start"),
        KeyedSums.from_rows(waits, *ROW),
        {name: int(_account(device, causes)[long].sum()) for name, causes in ACCOUNTS.items()},
        _without_context(before, run),
        compiling[0],
        KeyedSums.from_rows(early, *ROW),
        _loading_before(part, Window(run.start, work.start)),
    )
    return Collected(sums, {SINGLE: group, COMPILING: compiling[1]})


def _work_time(devices: Iterable[tuple[Sequence[int], Window]], processes: Sequence[int]) -> Window:
    """Return the time from the first to the last work of all GPUs that some processes use.

    `devices` have their processes and their window.
    """
    windows = [window for others, window in devices if not set(processes).isdisjoint(others)]
    return Window(min(window.start for window in windows), max(window.end for window in windows))


def _without_context(before: pl.DataFrame, run: Window) -> int:
    """Return the ns before the first context in which the host is in no call: libraries and the driver start."""
    ready = before.filter(pl.col("name").str.contains(NEEDS_CONTEXT))["end"].head(1).to_list()
    calls = inside(before, Window(run.start, ready[0]))["ns"].sum() if ready else 0
    return ready[0] - run.start - int(calls) if ready else 0


def _loading_before(part: CapturePart, window: Window) -> dict[str, int]:
    """Return the ns in which ranges before the first work load data, by name; every part has all ranges."""
    own = part.trace.window or EVERYTHING
    if not own.start <= window.end < own.end:
        return {}
    ranges = part.trace.ranges.filter(pl.col("start") < window.end, pl.col("end") > window.start)
    loads = ranges.filter(names_load_data(ranges["name"]))
    start, end = (loads[name].to_numpy().clip(window.start, window.end) for name in ("start", "end"))
    names = [fold_numbers(name) for name in loads["name"]]
    return sum_mappings({name: ns} for name, ns in zip(names, own_lengths(start, end).tolist(), strict=True))


def _named(part: CapturePart, calls: pl.DataFrame, *more: str) -> pl.DataFrame:
    return name_calls(part.trace, calls).select(*(pl.col(name).cast(kind) for name, kind in ROW.items()), *more)


def _by_name(calls: pl.DataFrame) -> dict[str, int]:
    return dict(calls.group_by("name", maintain_order=True).agg(pl.col("ns").sum()).iter_rows())


def _account(device: DevicePart, causes: tuple[str, ...]) -> Times:
    return sum_columns([device.gaps.frame[cause].to_numpy() for cause in causes])


def _single_waits(part: CapturePart, device: DevicePart, calls: pl.DataFrame) -> tuple[pl.DataFrame, GapGroup]:
    """Return the idle ns of each long call by account (ROW, ACCOUNTS), and the long gaps by the start of their call."""
    length = pl.col("end") - pl.col("start")
    calls = _named(part, calls.filter("counts", length > MAX_SHORT_GAP, pl.col("role").is_in(WORKING_ROLES)))
    is_long = device.gap_end - device.gap_start > MAX_SHORT_GAP
    frames, gaps, limits = [calls.clear()], list[Times](), list[Times]()
    for thread in calls["thread"].unique().sort().to_list():
        own, gap = calls.filter(pl.col("thread") == thread), np.flatnonzero(is_long & (device.gap_thread == thread))
        call, ns = longest_call(device.gap_start[gap], device.gap_end[gap], own)
        waiting = np.flatnonzero(call >= 0)
        frames.append(own[call[waiting]])
        gaps.append(gap[waiting])
        limits.append(ns[waiting])
    rows, most = (np.concatenate([np.zeros(0, np.int64), *each]) for each in (gaps, limits))
    order = np.argsort(rows)
    in_calls, rows, most = pl.concat(frames)[order], rows[order], most[order]
    ns_of = {name: np.minimum(_account(device, causes)[rows], most) for name, causes in ACCOUNTS.items()}
    group = GapGroup(rows, in_calls["start"].to_numpy(), limits=most)
    return in_calls.with_columns(pl.Series(name, ns, dtype=pl.Int64) for name, ns in ns_of.items()), group


def _compiling(part: CapturePart, device: DevicePart, calls: pl.DataFrame) -> tuple[dict[str, int], GapGroup]:
    """Return the long gaps in which the host compiles or a library starts, and their `host` ns by what shows it.

    A range shows it by its name. A call that links or loads a module shows that the host, or a thread or process that
    it waited for, made this code before.
    """
    host = device.gaps.frame["host"].to_numpy()
    gaps = np.flatnonzero((device.gap_end - device.gap_start > MAX_SHORT_GAP) & (host > 0))
    middle = (device.gap_start[gaps] + device.gap_end[gaps]) // 2
    names, which = part.range_names(part.ranges_at(device.gap_thread[gaps].astype(np.int64), middle))
    in_range = np.array([COMPILES.search(name) is not None for name in names], np.bool_)[which]

    def have(pattern: str) -> NDArray[np.bool_]:
        starts = calls.filter("counts", names_match(calls["name"], pattern))["start"].to_numpy()
        first, last = (np.searchsorted(starts, edge) for edge in (device.gap_start[gaps], device.gap_end[gaps]))
        return first < last

    loads, starts = have(LOADS_CODE), have(STARTS_LIBRARY)
    keys = [f"`{name}`" for name in names] + [COMPILATION, LIBRARIES]
    which = np.where(in_range, which, len(names) + ~loads)
    chosen = in_range | loads | starts
    ns = np.bincount(which[chosen], host[gaps[chosen]], minlength=len(keys)).astype(np.int64).tolist()
    return {name: own for name, own in zip(keys, ns, strict=True) if own}, GapGroup(gaps[chosen])


def _decide(facts: CaptureFacts, sums: Mapping[int, _StartUpSums]) -> Iterator[FindingDraft]:
    """Yield what occurs once on each device."""
    for device in facts.devices:
        own, analysis = sums[device.row], facts.analysis
        windows = ((use.process_ids, use.window) for use in analysis.devices)
        work, in_calls = _work_time(windows, device.use.process_ids), sum(own.before.values())
        few = not analysis.covers_run and device.steady.length <= FEW * analysis.run.length
        early = _early(own) if few else own.early.frame.clear()
        host = work.start - analysis.run.start - in_calls if few or analysis.covers_run else 0
        compiles = facts.program.python or facts.program.kind == "julia"  # each function at its first call
        if few and facts.program.kind in JUST_IN_TIME:  # between the first work and the iterations, too
            computing = device.use.compute_ns - device.use.steady.compute_ns
            host += max(device.steady.start - work.start - computing - int(early["ns"].sum()), 0)
        loading = own.loading if analysis.covers_run else {}
        loads = min(sum(loading.values()), host)
        host -= loads
        with_host = host if compiles else min(own.idle, host)
        counts = analysis.covers_run or in_calls + early["ns"].sum() + with_host > ONE_TIME * analysis.run.length
        yield from _start_up(facts, device, own, early, with_host, counts)
        if loads:
            main = max(loading, key=loading.__getitem__)
            place = Place("the host loads data", analysis.run.start, work.start, device.use.id)
            values = {"range": main}
            yield FindingDraft("data_loading", device, (), values, CASE, CASE, outside_ns=loads, evidence=(place,))
        if analysis.covers_run and host > with_host:
            place = Place("the host prepares the first work", analysis.run.start, work.start, device.use.id)
            left = host - with_host
            yield FindingDraft("host_bound", device, (), {}, CASE, CASE, outside_ns=left, evidence=(place,), once=True)
        if analysis.covers_run:
            yield _end(facts, device, own.after, work.end)


def _start_up(
    facts: CaptureFacts, device: DeviceFacts, sums: _StartUpSums, early: pl.DataFrame, host: int, counts: bool
) -> Iterator[FindingDraft]:
    """Yield the calls that occur once.

    With `counts`, they include the calls before the first work, `host` ns between these, and `early` ones (ROW, ns).
    """
    host, early = (host, early) if counts else (0, early.clear())
    once, run = _one_time(sums), facts.analysis.run
    ns = dict(sums.before) if counts else {}
    for name, more in pl.concat([rows.select("name", "ns") for rows in (once, early)]).iter_rows():
        ns[name] = ns.get(name, 0) + more
    mostly = sum(sums.compiling.values()) > ONE_TIME * device.steady.length
    compiling = sums.compiling if mostly or (counts and facts.analysis.covers_run) else {}
    ns |= compiling
    total = sum(ns.values()) + host
    if total == 0:
        return
    main = max(ns, key=ns.__getitem__, default="")
    first = "host" if host > total / 2 else next((case for pattern, case in CASES if pattern.search(main)), "")
    before = sums.longest.frame.filter(pl.col("start") < device.use.window.start)
    singles = [once.select(before.columns), early.select(before.columns)]
    places = pl.concat([before, *singles] if counts else singles)
    left = max(run.length - total, 0)
    yield FindingDraft(
        "start_up",
        device,
        (*_claims(once), *((IdleClaim(("host",), COMPILING),) if compiling else ())),
        {"calls": _words(ns, host), "run": duration(run.length), "left": duration(left)},
        first,
        outside_ns=(sum(sums.before.values()) if counts else 0) + sum(early["ns"]) + host,
        of_run=counts,
        once=True,
        evidence=_places(device, places),
    )


def _one_time(sums: _StartUpSums) -> pl.DataFrame:
    """Return the calls that occur once and hold more than half of an account: ROW, `account` and `ns`."""
    waits = sums.waits.frame
    first = sums.first.frame.group_by(CALL).agg(pl.col("start").min())
    once = [waits.clear().select(*ROW, account=pl.lit(""), ns=pl.lit(0, pl.Int64))]
    for account, total in sums.accounts.items():
        rows = waits.filter(pl.col(account) > 0).select(*ROW, account=pl.lit(account), ns=pl.col(account))
        longest = rows.sort("ns", "start", descending=[True, False]).head(1)
        choices = (rows.join(first, on=[*CALL, "start"], how="semi", maintain_order="left"), longest)
        once += [rows for rows in choices if rows["ns"].sum() > ONE_TIME * total][:1]
    return pl.concat(once)


def _early(sums: _StartUpSums) -> pl.DataFrame:
    """Return what occurs once between the first work and the iterations: calls that occur first, or the longest."""
    first = sums.first.frame.group_by(CALL).agg(pl.col("start").min())
    rows = sums.early.frame.select(*ROW, "ns").sort("ns", "start", descending=[True, False])
    choices = (rows.join(first, on=[*CALL, "start"], how="semi", maintain_order="left"), rows.head(1))
    return max(choices, key=lambda chosen: int(chosen["ns"].sum()))


def _claims(once: pl.DataFrame) -> Iterator[IdleClaim]:
    """Yield the claims on the idle time in the calls that _one_time returns."""
    for account, causes in ACCOUNTS.items():
        starts = once.filter(pl.col("account") == account)["start"].unique().sort().to_numpy()
        if len(starts):
            yield IdleClaim(causes, SINGLE, starts)


def _words(ns: Mapping[str, int], host: int = 0) -> str:
    """Return the times of calls, the longest first, and of the host between them."""
    least = MIN_NAMED * sum(ns.values())
    names = [name for name in sorted(ns, key=lambda name: (-ns[name], name)) if ns[name] >= least]
    words = [f"{duration(ns[name])} in {name}" for name in names[:MAX_NAMES]]
    others = sum(ns.values()) - sum(ns[name] for name in names[:MAX_NAMES])
    words += [f"{duration(others)} in other calls"] if others >= least and others else []
    words += [f"{duration(host)} outside CUDA calls"] if host > least else []
    return join_words(words)


def _places(device: DeviceFacts, calls: pl.DataFrame) -> tuple[Place, ...]:
    """Return the longest of some calls (ROW, ns) as places."""
    longest = calls.sort("ns", "start", descending=[True, False]).unique("start", keep="first", maintain_order=True)
    return tuple(
        Place(
            f"{row['name']}: {duration(row['end'] - row['start'])}"
            + f", launches {plain(row['kernel'], MAX_LETTERS)}" * bool(row["kernel"]),
            row["start"],
            row["end"],
            device.use.id,
            thread=row["thread"],
        )
        for row in longest.head(MAX_PLACES).iter_rows(named=True)
    )


def _end(facts: CaptureFacts, device: DeviceFacts, after: Mapping[str, int], last: int) -> FindingDraft:
    """Return the time after the last work of a device's processes."""
    whole = facts.analysis.run.end - last
    place = Place("after the last GPU work", last, facts.analysis.run.end, device.use.id)
    host = whole - sum(after.values())
    case = "host_after_work" if host > ONE_TIME * whole else "end_of_run"
    values = {"calls": _words(after, host)}
    return FindingDraft("after_loop", device, (), values, case, "end", outside_ns=whole, evidence=(place,), once=True)


start_up = OldRule("start_up", _decide, _collect, place=60)
