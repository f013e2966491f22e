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
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Rows, Times, rows_where
from traceview.measure.run import WORKING_ROLES
from traceview.model.sums import KeyedSums
from traceview.model.trace import Trace
from traceview.model.units import duration, quantity, share
from traceview.normalise.codes import categories
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import Collected, GapGroup, IdleClaim
from traceview.rules.shared_gpu import is_shared

HARDWARE_GAP = 2_000  # ns; from one kernel to the next, 1 to 1.5 µs on an H200
MAX_HARDWARE_GAP = 100_000  # ns; events, CUDA graphs and copies between GPUs need less
MIN_SHORT_SHARE = 0.05
MIN_HELD_SHARE = 0.5  # share of the gaps in which one call blocks the host

LATE = "late_start"
REASONS = ("process_wait", "dependency_wait", LATE, "operation_gaps")  # ids of findings, by why work does not start


Codes: TypeAlias = NDArray[np.int8]


class _QueuedWorkSums(NamedTuple):
    """Gaps with queued work by reason and length (columns `count` and `ns`).

    `late_ns` is the length of the gaps before work that starts late, and `calls` the part of it in which a thread is in
    long CUDA calls, by name.
    """

    gaps: KeyedSums
    late_ns: int
    calls: dict[str, int]


def _collect(part: CapturePart, device: DevicePart) -> Collected[_QueuedWorkSums]:
    """Label the gaps with the number of their reason, negative and less one in short gaps."""
    queued = device.gaps.frame["queued"].to_numpy()
    rows = rows_where(queued > 0)
    queued = queued[rows]
    reason = _reasons(part.trace, device, rows, queued)
    label = np.where(queued <= HARDWARE_GAP, ~reason, reason)
    late = rows[reason == REASONS.index(LATE)]
    idle = Intervals(device.gap_start[late], device.gap_end[late])
    sums = _QueuedWorkSums(
        _sums_of_labels(label, queued),
        intervals.length(idle),
        _time_in_calls(part.trace, device, idle) if len(late) else {},
    )
    return Collected(sums, {"queued": GapGroup(rows, label)})


def _sums_of_labels(label: Codes, queued: Times) -> KeyedSums:
    """Return the ns and the number of gaps by reason and length."""
    count, ns = (np.bincount(label + len(REASONS), each, 2 * len(REASONS)) for each in (None, queued))
    used = np.flatnonzero(count)
    short = used < len(REASONS)
    reason = np.where(short, ~(used - len(REASONS)), used - len(REASONS))
    frame = {"reason": reason, "short": short, "ns": ns[used].astype(np.int64), "count": count[used]}
    return KeyedSums(pl.DataFrame(frame), ("reason", "short"))


def _reasons(trace: Trace, device: DevicePart, gaps: Rows, queued: Times) -> Codes:
    """Return the index in REASONS of each gap; all gaps end with an operation."""
    if len(gaps) == 0:
        return np.zeros(0, np.int8)
    before = device.operations_before(gaps)
    after = device.gap_operation[gaps]
    process, stream = (trace.operations[name].to_numpy() for name in ("process", "stream"))
    reason = np.where(stream[before] != stream[after], np.int8(1), np.int8(3))
    reason[queued > MAX_HARDWARE_GAP] = REASONS.index(LATE)
    reason[process[before] != process[after]] = 0
    return reason


def _time_in_calls(trace: Trace, device: DevicePart, idle: Intervals) -> dict[str, int]:
    """Return the ns of the idle time in which a thread is in a long CUDA call, by the call's name.

    Synchronizations and blocking copies do not count: they wait for the GPU, not the GPU for them.
    """
    long = trace.api.filter(
        (pl.col("end") - pl.col("start") > MAX_HARDWARE_GAP)
        & pl.col("role").is_in(WORKING_ROLES)
        & (pl.col("start") < device.window.end)
        & (pl.col("end") > device.window.start)
        & pl.col("process").is_in(list(device.process_ids))
    )
    start, end, name = (long[column].to_physical().to_numpy() for column in ("start", "end", "name"))
    texts = categories(long["name"])
    return {
        texts[code]: intervals.overlap_length(intervals.union(start[name == code], end[name == code]), idle)
        for code in np.unique(name).tolist()
    }


def _decide(facts: CaptureFacts, sums: Mapping[int, _QueuedWorkSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device and reason for which it is idle while work is queued."""
    for device in facts.devices:
        gaps, labels = sums[device.row].gaps.frame, range(-len(REASONS), len(REASONS))
        if gaps.filter("short")["ns"].sum() < MIN_SHORT_SHARE * device.use.window.length:
            gaps, labels = gaps.filter(~pl.col("short")), range(len(REASONS))
        for number, reason in enumerate(REASONS):
            own = gaps.filter(pl.col("reason") == number)
            if len(own):
                claimed = np.array([label for label in labels if label in (number, ~number)], np.int64)
                case, values = _late_case(device, sums[device.row]) if reason == LATE else ("", {})
                count, queued = own.select(pl.col("count", "ns").sum()).row(0)
                values = {"count": quantity(count, "gap"), "mean": duration(queued / count), **values}
                yield FindingDraft(reason, device, (IdleClaim(("queued",), "queued", claimed),), values, case)


def _late_case(device: DeviceFacts, sums: _QueuedWorkSums) -> tuple[str, dict[str, str]]:
    """Return the case of work that starts late, and its values."""
    call = max(sums.calls, key=lambda name: (sums.calls[name], name), default="")
    ns, whole = sums.calls.get(call, 0), sums.late_ns
    if is_shared(device.use):
        return "shared", {}
    return ("in_call", {"call": call, "part": share(ns, whole)}) if ns >= MIN_HELD_SHARE * whole else ("", {})


queued_work = OldRule("queued_work", _decide, _collect, place=210)
