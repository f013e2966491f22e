"""Rules on CUDA calls that keep the GPU idle: synchronizations, allocations, and slow calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Intervals, Rows, Times, parts_in_queries, rows_by_code
from traceview.measure.gaps import MEMORY_ROLE
from traceview.measure.run import PINS
from traceview.measure.shared_work import calls_during, codes_of, launch_rows
from traceview.model.trace import ROLES, Window, enum_texts, names_match
from traceview.model.units import duration, quantity, verb
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, once_per_capture
from traceview.pricing.ledger import GapClaim, Grant
from traceview.pricing.texts import join_words

MAX_RESTART = 1_000_000  # ns; a host that takes longer to launch again is busy with something else: `host_bound`
MIN_CALLS = 10  # fewest calls that count in a capture without iterations


def synchronize(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """The host synchronizes with the GPU in every iteration.

    Symptom: cudaStreamSynchronize, cudaDeviceSynchronize or cudaEventSynchronize at least once in each step; the GPU
    runs out of work and restarts.
    Cause: `loss.item()`, `print(tensor)`, `.cpu()`, `torch.cuda.synchronize()`, `if tensor > x`, boolean indexing.
    Remedy: keep the value on the device, read it every N steps, or use a non-blocking copy and an event.

    Claims the idle cause `sync`, and after the return of each wait the causes `launch`, `api` and `host`, together at
    most the cost of the calls (docs/definitions.md "Synchronization"), not the time for which they block.
    """
    calls = calls_of_device(capture, device, "sync")
    count = len(calls)
    if count < 2 or count < (capture.counted / 2 if capture.counted else MIN_CALLS):
        return
    values = {
        "count": quantity(count, "synchronization"),
        "per_iteration": capture.per_iteration(calls["start"].to_numpy()),
        "range": _main_range(capture, calls),
        "calls": join_words([f"{each:,} {name}" for name, each in count_names(calls)]),
        "blocked": duration(int(calls["blocked"].sum())),
        "waited": duration(int(calls["waited"].sum())),
    }
    claims = (GapClaim(("sync",), device.steady_gaps), restart_claim(device, calls))
    yield FindingDraft("synchronize", device, claims, values, at_most=total_cost(calls))


def _main_range(capture: MeasuredCapture, calls: pl.DataFrame) -> str:
    """Return " (mostly in `sync`)", the range with most of the calls, or ""."""
    ranges = capture.ranges_at(calls["thread"].cast(pl.Int64).to_numpy(), calls["start"].to_numpy())
    names, which = capture.range_names(ranges[ranges >= 0])
    counts = np.bincount(which, minlength=1)
    return f" (mostly in `{names[counts.argmax()]}`)" if 2 * counts.max() > len(calls) else ""


def calls_of_device(capture: MeasuredCapture, device: GpuWork, kind: str) -> pl.DataFrame:
    """Return the blocking calls of a kind (rows of SyncUse.frame) of the device's processes in its steady time.

    `kind` is "sync" or "implicit_sync".
    """
    return _calls_of_processes(capture, device.process_ids, device.steady, kind)


@once_per_capture
def _calls_of_processes(
    capture: MeasuredCapture, processes: tuple[int, ...], steady: Window, kind: str
) -> pl.DataFrame:
    calls: pl.DataFrame = getattr(capture.host, kind).frame
    process, start, end = (calls[name].to_numpy() for name in ("process", "start", "end"))
    return calls[np.flatnonzero(np.isin(process, processes) & (end > steady.start) & (start < steady.end))]


def count_names(calls: pl.DataFrame) -> list[tuple[str, int]]:
    """Return the names of calls and how often each occurs, the most frequent first."""
    texts, counts = enum_texts(calls["name"]), np.bincount(codes_of(calls, "name")).tolist()
    return sorted(((texts[at], count) for at, count in enumerate(counts) if count), key=lambda row: (-row[1], row[0]))


def total_cost(calls: pl.DataFrame) -> int:
    """Return the cost of blocking calls, in ns."""
    return int(calls["cost"].sum())


def restart_claim(device: GpuWork, calls: pl.DataFrame) -> GapClaim:
    """Return the claim on the restart gaps of blocking calls, each at most its share of their cost and MAX_RESTART."""
    ns: Times = np.maximum((calls["cost"] - calls["idle_in_wait"]).to_numpy(), 0)
    gap = device.gaps_at(calls["returned"].to_numpy())
    chosen = np.flatnonzero((ns > 0) & (gap >= device.steady_gaps.start) & (gap < device.steady_gaps.stop))
    rows, which = np.unique(gap[chosen], return_inverse=True)
    limits = np.zeros(len(rows), np.int64)
    np.add.at(limits, which, ns[chosen])
    return GapClaim(("host", "launch", "api"), rows, np.minimum(limits, MAX_RESTART))


MAX_NAMES = 3
MOSTLY = 0.5


def allocation(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Memory is allocated or freed inside the loop.

    Symptom: cudaMalloc, cudaFree, cudaHostAlloc, cuMemMap, cudaHostRegister or similar calls inside iterations; idle
    time with the cause `memory`.
    Cause: a caching allocator that grows or fragments, `torch.cuda.empty_cache()` in the loop, or pinned buffers
    allocated for each batch. cudaMalloc and cudaFree also wait for the GPU, and launches of all threads for a long
    call.
    Remedy: allocate before the loop and let the caching allocator keep its memory.

    Claims the idle cause `memory` of the steady gaps (of all gaps in a capture without iterations) and the restart gaps
    of the calls, at most the cost of the waits that the calls are part of. A call that only queues its work, such as
    cudaMallocAsync, costs at most its length.
    """
    calls = _memory_calls(capture, device.process_ids, device.steady)
    if calls.is_empty():
        return
    count, names = len(calls), count_names(calls)
    other = "" if _on_waiting_threads(device, calls) else " of another thread"
    listed = join_words([f"{each:,} {name}" for name, each in names[:MAX_NAMES]]) + other
    values = {
        "count": listed if len(names) == 1 else quantity(count, "allocation or free", "allocations and frees"),
        "keep": verb(count, "keep"),
        "where": "inside the iterations" if capture.counted else "in the capture",
        "per_iteration": capture.per_iteration(calls["start"].to_numpy()),
        "names": "" if len(names) == 1 else f" ({listed})",
    }
    length = calls["end"] - calls["start"]
    pinned = int(length.filter(names_match(calls["name"], PINS)).sum()) > MOSTLY * int(length.sum())
    own, cost = _calls_and_cost(capture, device, calls)
    restarts = restart_claim(device, own)
    queued = calls.filter(~pl.col("implicit"))
    yield FindingDraft(
        "allocation",
        device,
        (GapClaim(("memory",), device.steady_gaps), restarts),
        values,
        "locked" if other else "pinned" if pinned else "",
        at_most=cost + int((queued["end"] - queued["start"]).sum()),
        same_everywhere=True,
    )


def _calls_and_cost(capture: MeasuredCapture, device: GpuWork, calls: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the blocking calls (rows of SyncUse.frame) among memory calls, and the cost of the waits they are part of.

    A wait shares its cost among all its calls by how long they block, however idle the GPU is in each.
    """
    implicit = calls_of_device(capture, device, "implicit_sync")
    own = implicit.filter(pl.col("api").is_in(calls["row"].implode()))
    every = (implicit, calls_of_device(capture, device, "sync"))
    return own, sum(total_cost(each.filter(pl.col("wait").is_in(own["wait"].implode()))) for each in every)


def _on_waiting_threads(device: GpuWork, calls: pl.DataFrame) -> bool:
    """Return whether a thread makes these calls for which the GPU waits where memory is the cause."""
    waiting = device.gap_thread[device.gaps.frame["memory"].to_numpy() > 0]
    return calls["thread"].is_in(np.unique(waiting).tolist()).any()


@once_per_capture
def _memory_calls(capture: MeasuredCapture, processes: tuple[int, ...], steady: Window) -> pl.DataFrame:
    """Return the memory calls of processes that start in the steady time; `row` is that of Trace.api."""
    api = capture.trace.api
    first, stop = np.searchsorted(api["start"].to_numpy(), (steady.start, steady.end)).tolist()
    rows = np.flatnonzero(codes_of(api, "role")[first:stop] == MEMORY_ROLE) + first
    rows = rows[np.isin(api["process"].to_numpy()[rows], processes)]
    calls: pl.DataFrame = api.select("start", "end", "name", "thread", "implicit")[rows]
    return calls.with_columns(row=pl.Series(rows))


MAX_LAUNCH = 60_000  # ns; a launch with the work of its framework takes 5 to 60 us (rules/launches.py)
LAUNCHING, BLOCKING = ("launch", "api"), ("sync", "blocking_copy", "memory")
CALL_CAUSES = LAUNCHING + BLOCKING
# The case of the texts by the name of the call that takes most of the time.
CASES = (
    (re.compile(r"Graphics(?:Unm|M)ap"), "graphics"),
    (re.compile("Launch|Memset"), "launch"),
    (re.compile("Memcpy"), "copy"),
    (re.compile("Synchronize|Wait"), "sync"),
)


def slow_calls(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """The GPU waits for CUDA calls that no other rule explains.

    Symptom: idle time with the causes `launch`, `api`, `sync`, `blocking_copy` or `memory` that is left, in gaps that
    are too long for launch-bound.
    Cause: the call that takes most of this time names it. The first launch of a kernel loads its module; other launches
    wait for a lock of the driver, for a full queue or for a CPU. Calls create streams and events, or wait for graphics.
    Remedy: warm up before measuring, make calls once and before the loop. A remedy for a loop is for calls of a loop.

    Claims these idle causes of the steady gaps; of blocking calls at most their cost.
    """
    if not any(device.gaps.causes[cause] for cause in CALL_CAUSES):
        return
    steady = device.steady_gaps
    blocking = sum(total_cost(calls_of_device(capture, device, kind)) for kind in ("sync", "implicit_sync"))
    launching = sum(device.use.gaps.causes[cause] for cause in LAUNCHING)
    claims, most = (GapClaim(LAUNCHING, steady), GapClaim(BLOCKING, steady)), launching + blocking
    yield FindingDraft("slow_calls", device, claims, at_most=most, named_by=partial(_slow_words, capture, device))


def _slow_words(capture: MeasuredCapture, device: GpuWork, grant: Grant) -> tuple[dict[str, object], str]:
    """Return the values and the case of the texts on the calls that take what is granted."""
    calls = _granted_calls(capture, device, grant)
    name, main = _longest(capture, calls)
    return {"calls": _words(calls, name, main)}, _case(capture, name, main)


class _GapCalls(NamedTuple):
    """Calls: their row of Trace.api, start and code of their name, and the ns of granted gaps in each."""

    row: Times
    start: Times
    name: NDArray[np.unsignedinteger[Any]]
    ns: Times

    def where(self, chosen: NDArray[np.bool_]) -> _GapCalls:
        """Return some of the calls."""
        return _GapCalls(self.row[chosen], self.start[chosen], self.name[chosen], self.ns[chosen])


def _granted_calls(capture: MeasuredCapture, device: GpuWork, grant: Grant) -> _GapCalls:
    """Return the calls on which the granted gaps wait: those that launch or do other work, and those of each role."""
    parts, api = [np.zeros((2, 0), np.int64)], capture.trace.api
    for causes in (LAUNCHING, *((cause,) for cause in BLOCKING)):
        granted = np.zeros(len(device.gap_start), np.int64)
        for idle in grant.idle_grants:
            granted[idle.rows] += sum(ns for cause, ns in idle.ns.items() if cause in causes)
        if granted.any():
            parts.append(np.stack(_calls_in_gaps(capture, device, granted, causes)))
    row, ns = np.concatenate(parts, axis=1)
    return _GapCalls(row, api["start"].to_numpy()[row], codes_of(api, "name")[row], ns)


def _calls_in_gaps(
    capture: MeasuredCapture, device: GpuWork, granted: Times, causes: tuple[str, ...]
) -> tuple[Times, Times]:
    """Return the calls (rows of Trace.api) with a cause's role, and what they take of the `granted` ns of each gap.

    A gap waits for calls of its thread, and for calls on memory of all threads, which hold a lock.
    """
    gaps = np.flatnonzero(granted)
    start, end = device.gap_start[gaps], device.gap_end[gaps]
    waiting, ending = device.gap_thread[gaps], device.gap_operation[gaps]
    api, role = capture.trace.api, causes[-1]
    counts = codes_of(api, "role") == ROLES.index(role)
    if causes == LAUNCHING:
        launches = launch_rows(capture.trace.operations)[ending[ending >= 0]]
        counts[launches[launches >= 0]] = True
    counts &= np.isin(api["process"].to_numpy(), device.process_ids)
    calls = calls_during(api, Intervals(start, end))
    calls = calls[counts[calls]]
    begin, until, thread = (api[name].to_numpy()[calls] for name in ("start", "end", "thread"))
    call, gap, ns = [calls[:0]], [gaps[:0]], [calls[:0]]
    for caller, own in rows_by_code(thread):
        some = np.flatnonzero((waiting == caller) | (role == "memory"))
        pieces = parts_in_queries(Intervals(start[some], end[some]), begin[own], until[own])
        call.append(calls[own][pieces.query])
        gap.append(some[np.searchsorted(start[some], pieces.start, side="right") - 1])
        ns.append(pieces.end - pieces.start)
    row, at, length = map(np.concatenate, (call, gap, ns))
    part = np.minimum(granted[gaps] / np.maximum(np.bincount(at, length, len(gaps)), 1), 1)
    rows, which = np.unique(row, return_inverse=True)
    sums = np.bincount(which, length * part[at], len(rows)).astype(np.int64)
    return rows[sums > 0], sums[sums > 0]


def _longest(capture: MeasuredCapture, calls: _GapCalls) -> tuple[str, _GapCalls]:
    """Return the name that takes most of the time, and its calls; "" without any."""
    sums, texts = np.bincount(calls.name, calls.ns), enum_texts(capture.trace.api["name"])
    name, code = min(((texts[at], at) for at in np.flatnonzero(sums == sums.max(initial=1)).tolist()), default=("", 0))
    return name, calls.where(calls.name == code)


def _total(calls: _GapCalls) -> int:
    return int(calls.ns.sum())


def _words(calls: _GapCalls, name: str, main: _GapCalls) -> str:
    """Return the calls that take most of the time, as ", mostly 128 cudaStreamCreateWithPriority"; "" without any."""
    if not name:
        return ""
    most = "mostly" if _total(main) > MOSTLY * _total(calls) else "above all"
    return f", {most} {len(main.row):,} {name}"


def _case(capture: MeasuredCapture, name: str, main: _GapCalls) -> str:
    """Return the case of the texts: whether the main call is a first launch, a launch, or one of a loop."""
    if not name:
        return "once"
    case = next((case for pattern, case in CASES if pattern.search(name)), "")
    if case == "launch":
        loading = main.where(np.isin(main.row, _first_launches(capture)))
        return (
            "first"
            if _total(loading) > MOSTLY * _total(main)
            else "late"
            if _total(main) > MAX_LAUNCH * len(main.row)
            else "launch"
        )
    return case if case or _repeat(capture, main) else "once"


@once_per_capture
def _first_launches(capture: MeasuredCapture) -> Rows:
    """Return the calls that launch each shape of kernels first."""
    shape, first = capture.trace.operations["shape"].to_numpy(), np.zeros(len(capture.trace.shapes), np.intp)
    first[shape[::-1]] = np.arange(len(shape))[::-1]  # the first of each is written last
    return launch_rows(capture.trace.operations)[first]


def _repeat(capture: MeasuredCapture, calls: _GapCalls) -> bool:
    """Return whether most counted iterations have such a call."""
    begin = capture.iteration_starts
    return len(begin) > 0 and len(np.unique(np.searchsorted(begin, calls.start, side="right"))) >= MOSTLY * len(begin)
