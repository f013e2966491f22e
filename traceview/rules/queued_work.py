"""The GPU is idle although work is already launched.

Symptom: idle time with the cause `queued`: the launch call has returned and the GPU still does nothing.
Cause: the GPU's own step from one operation to the next (1 to 10 µs), an operation of another stream or of another
process that had to end first, or something that the capture lacks. What runs before a gap and its length show which.
Remedy: fewer operations or fewer dependencies; for long gaps, a search for what holds the GPU.

Claims the idle cause `queued` that is left, in gaps longer than the hardware needs. Short gaps count only where they
take 5% of the time: then the kernels are too small.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Rows, Times, rows_where
from traceview.measure.run import WORKING_ROLES
from traceview.model.trace import Trace
from traceview.model.units import duration, quantity, share
from traceview.normalise.codes import categories
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import GapClaim
from traceview.rules.shared_gpu import is_shared

HARDWARE_GAP = 2_000  # ns; from one kernel to the next, 1 to 1.5 µs on an H200
MAX_HARDWARE_GAP = 100_000  # ns; events, CUDA graphs and copies between GPUs need less
MIN_SHORT_SHARE = 0.05
MIN_HELD_SHARE = 0.5  # share of the gaps in which one call blocks the host

LATE = "late_start"
REASONS = ("process_wait", "dependency_wait", LATE, "operation_gaps")  # ids of findings, by why work does not start


Codes: TypeAlias = NDArray[np.int8]


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield one finding for each reason for which the GPU is idle while work is queued."""
    queued = device.gaps.frame["queued"].to_numpy()
    rows = rows_where(queued > 0)
    queued = queued[rows]
    reason, short = _reasons(capture.trace, device, rows, queued), queued <= HARDWARE_GAP
    if queued[short].sum() < MIN_SHORT_SHARE * device.window.length:
        rows, queued, reason = rows[~short], queued[~short], reason[~short]
    for number, name in enumerate(REASONS):
        chosen = np.flatnonzero(reason == number)
        if len(chosen):
            case, values = _late_case(capture.trace, device, rows[chosen]) if name == LATE else ("", {})
            mean = duration(int(queued[chosen].sum()) / len(chosen))
            values = {"count": quantity(len(chosen), "gap"), "mean": mean, **values}
            yield FindingDraft(name, device, (GapClaim(("queued",), rows[chosen]),), values, case)


def _reasons(trace: Trace, device: GpuWork, gaps: Rows, queued: Times) -> Codes:
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


def _time_in_calls(trace: Trace, device: GpuWork, idle: Intervals) -> dict[str, int]:
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


def _late_case(trace: Trace, device: GpuWork, gaps: Rows) -> tuple[str, dict[str, str]]:
    """Return the case of work that starts late, and its values; `gaps` are those before it."""
    if is_shared(device.use):
        return "shared", {}
    idle = Intervals(device.gap_start[gaps], device.gap_end[gaps])
    calls, whole = _time_in_calls(trace, device, idle), intervals.length(idle)
    call = max(calls, key=lambda name: (calls[name], name), default="")
    ns = calls.get(call, 0)
    return ("in_call", {"call": call, "call_share": share(ns, whole)}) if ns >= MIN_HELD_SHARE * whole else ("", {})


queued_work = Rule("queued_work", find)
