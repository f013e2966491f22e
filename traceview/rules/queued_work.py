"""The GPU is idle although work is already launched.

Symptom: idle time with the cause `queued`: the launch call has returned and the GPU still does nothing.
Cause: the GPU's own step from one operation to the next (1 to 10 µs), an operation of another stream or of another
process that had to end first, or something that the capture lacks. What runs before a gap and its length show which.
Remedy: fewer operations or fewer dependencies; for long gaps, a search for what holds the GPU.

Claims the idle cause `queued` that is left, in gaps longer than the hardware needs. Short gaps count only where they
take 5% of the time: then the kernels are too small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.model.sums import KeyedSums
from traceview.model.trace import Trace
from traceview.normalise.codes import categories
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, Rule
from traceview.pricing.claims import Collected, GapGroup, IdleClaim
from traceview.pricing.fixes import Fixes
from traceview.rules.advice.launches import DEPENDENCY_WAIT, LATE_START, OPERATION_GAPS, PROCESS_WAIT
from traceview.rules.shared_gpu import is_shared
from traceview.units import duration, quantity, share

HARDWARE_GAP = 2_000  # ns; from one kernel to the next, 1 to 1.5 µs on an H200
MAX_HARDWARE_GAP = 100_000  # ns; events, CUDA graphs and copies between GPUs need less
MIN_SHORT_SHARE = 0.05
MIN_HELD_SHARE = 0.5  # share of the gaps in which one call blocks the host


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why launched work does not start: the finding's id, the end of its title, a label for places, and fixes."""

    id: str
    title: str
    place_label: str
    fixes: Fixes


PROCESS = _Reason(
    "process_wait",
    "after work of another process: the GPU takes {mean} on average to start what is launched",
    "launched work waits for another process",
    PROCESS_WAIT,
)
STREAM = _Reason(
    "dependency_wait",
    "after work of another stream: the GPU takes {mean} on average to start what waits for it",
    "launched work waits for another stream",
    DEPENDENCY_WAIT,
)
LATE = _Reason(
    "late_start",
    "before launched work that starts {mean} late on average",
    "launched work has not started",
    LATE_START,
)
STEP = _Reason(
    "operation_gaps",
    "between operations that are already launched: the GPU takes {mean} on average from one to the next",
    "launched work has not started",
    OPERATION_GAPS,
)
REASONS = (PROCESS, STREAM, LATE, STEP)


class _Sums(NamedTuple):
    """Gaps with queued work by reason and length (columns `count` and `ns`).

    `late_ns` is the length of the gaps before work that starts late, and `calls` the part of it in which a thread is in
    long CUDA calls, by name.
    """

    gaps: KeyedSums
    late_ns: int
    calls: dict[str, int]


def _collect(part: CapturePart, device: DevicePart) -> Collected[_Sums]:
    """Label the gaps with the number of their reason, negative and less one in short gaps."""
    queued = device.use.gaps.frame["queued"].to_numpy()
    few = device.use.gaps.causes["queued"] < MIN_SHORT_SHARE * device.use.window.length
    rows = np.flatnonzero(queued > HARDWARE_GAP if few else queued)  # where few ns are queued, short gaps do not count
    reason, short = _reasons(part.trace, device, rows, queued[rows]), queued[rows] <= HARDWARE_GAP
    members = pl.DataFrame({"reason": reason, "short": short, "ns": queued[rows]}).select(
        "reason", "short", "ns", count=pl.lit(1, pl.Int64)
    )
    late = rows[reason == REASONS.index(LATE)]
    idle = Intervals(device.gap_start[late], device.gap_end[late])
    sums = _Sums(
        KeyedSums.from_rows(members, "reason", "short"),
        intervals.length(idle),
        _time_in_calls(part.trace, device, idle) if len(late) else {},
    )
    return Collected(sums, {"queued": GapGroup(rows, np.where(short, -1 - reason, reason))})


def _reasons(trace: Trace, device: DevicePart, gaps: Times, queued: Times) -> Times:
    """Return the index in REASONS of each gap; all gaps end with an operation."""
    if len(gaps) == 0:
        return gaps
    before = device.operations_before(gaps)
    after = device.gap_operation[gaps]
    process, stream = (trace.operations[name].to_numpy() for name in ("process", "stream"))
    long = queued > MAX_HARDWARE_GAP
    rules = [process[before] != process[after], ~long & (stream[before] != stream[after]), long]
    return np.select(rules, range(len(rules)), len(rules))


def _time_in_calls(trace: Trace, device: DevicePart, idle: Intervals) -> dict[str, int]:
    """Return the ns of the idle time in which a thread is in a long CUDA call, by the call's name.

    Synchronizations do not count: they wait for the GPU, not the GPU for them.
    """
    long = trace.api.filter(
        (pl.col("end") - pl.col("start") > MAX_HARDWARE_GAP)
        & (pl.col("role") != "sync")
        & (pl.col("start") < device.use.window.end)
        & (pl.col("end") > device.use.window.start)
        & pl.col("process").is_in(list(device.use.process_ids))
    )
    start, end, name = (long[column].to_physical().to_numpy() for column in ("start", "end", "name"))
    texts = categories(long["name"])
    return {
        texts[code]: intervals.overlap_length(intervals.union(start[name == code], end[name == code]), idle)
        for code in np.unique(name).tolist()
    }


def _decide(facts: CaptureFacts, sums: Mapping[int, _Sums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device and reason for which it is idle while work is queued."""
    for device in facts.devices:
        gaps, labels = sums[device.row].gaps.frame, range(-len(REASONS), len(REASONS))
        if gaps.filter("short")["ns"].sum() < MIN_SHORT_SHARE * device.use.window.length:
            gaps, labels = gaps.filter(~pl.col("short")), range(len(REASONS))
        for number, reason in enumerate(REASONS):
            own = gaps.filter(pl.col("reason") == number)
            if len(own):
                claimed = np.array([label for label in labels if label in (number, -1 - number)], np.int64)
                yield _draft(facts, device, reason, claimed, own, sums[device.row])


def _draft(
    facts: CaptureFacts, device: DeviceFacts, reason: _Reason, labels: Times, gaps: pl.DataFrame, sums: _Sums
) -> FindingDraft:
    """Return the finding on the gaps with these labels; `gaps` has their number and their queued ns."""
    fix = reason.fixes.choose(facts.program)
    count, queued = gaps.select(pl.col("count", "ns").sum()).row(0)
    mean = duration(queued / count)
    title = f"{quantity(count, 'gap')} {reason.title.format(mean=mean)}"
    advice, remedy = fix.advice, ""
    if reason is LATE:
        call = max(sums.calls, key=lambda name: (sums.calls[name], name), default="")
        ns, whole = sums.calls.get(call, 0), sums.late_ns
        if is_shared(device.use):
            title, remedy = f"{title}, while another program uses the GPU", "Capture alone on the GPU."
        elif ns >= MIN_HELD_SHARE * whole:
            title = f"{title}, while a thread is in `{call}`"
            advice = (
                f"In {share(ns, whole)} of this time a thread of the program is in `{call}`. Launched "
                f"work can wait for such a call: move it out of the loop, or use its asynchronous form. {advice}"
            )
            remedy = f"Move `{call}` out of the loop, or make it asynchronous."
        else:
            title = f"{title}; the capture does not show why"
    return FindingDraft(
        id=reason.id,
        device=device,
        title=title,
        advice=advice,
        remedy=remedy,
        claims=(IdleClaim(("queued",), "queued", labels),),
        code=fix.code,
        place_label=reason.place_label,
    )


queued_work = Rule("queued_work", _decide, _collect)
