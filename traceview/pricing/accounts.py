"""The accounts of a device: its exposed work by kind, the compute of each operation, and when its work ends.

Also the figures of the time that findings cover, with streams, for rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from traceview import intervals
from traceview.intervals import BEFORE_ALL, Intervals, Times
from traceview.measure.activity import COMPUTE, Activity, Copies
from traceview.measure.exposure import COMMUNICATION_WORK, MEMSET_WORK, members_by_kind
from traceview.measure.streams import StreamWork
from traceview.model.analysis import DeviceUse
from traceview.model.trace import Trace, Window
from traceview.pricing.base import GpuWork
from traceview.pricing.ledger import Ledger


def own_compute(work: Activity) -> Times:
    """Return the ns in which each operation computes while no earlier compute runs; the sum is the compute time."""
    return intervals.own_lengths(work.start, np.where(work.codes == COMPUTE, work.end, work.start))


def exposed_work(work: Activity, copies: Copies) -> dict[str, Intervals]:
    """Return when each kind of work runs while nothing computes, each ns once.

    If several kinds run at once, the ns belongs to the first of: communication, copies in the order of KINDS
    (h2d, d2h, ...) and MEMORIES, memset. The lengths add up to the device's busy time less its compute time.
    """
    exposed: dict[str, Intervals] = {}
    earlier = [work.compute]
    for key, members in members_by_kind(work, copies).items():
        times = intervals.union(work.start[members], work.end[members], ordered=True)
        exposed[key] = times
        for other in earlier:
            exposed[key] = intervals.subtract(exposed[key], other)
        earlier.append(times)
    return exposed


def open_ledger(device: GpuWork, *, covers_run: bool, holes: Sequence[Window] = ()) -> Ledger:
    """Open the accounts of the time that a device lost.

    In iterations, time after the end of its work is not lost. In `holes` the capture lacks GPU work. Exposed time
    there is not lost, and a gap that overlaps a hole is not lost.
    """
    exposed = exposed_work(device.activity, device.copies)
    ends = (None, None) if covers_run else _ends_of_work(device, exposed)
    ledger = Ledger.from_gaps(device.gaps, exposed, own_compute(device.activity), *ends)
    if holes:
        times = Intervals(*(np.array([getattr(hole, edge) for hole in holes], np.int64) for edge in ("start", "end")))
        start, end = (device.gaps.frame[edge].to_numpy() for edge in ("start", "end"))
        unknown = intervals.covered_length(times, start, end) > 0
        for account in ledger.idle.values():
            account[unknown] = 0
        ledger.exposed = {key: intervals.subtract(work, times) for key, work in ledger.exposed.items()}
    return ledger


def _ends_of_work(device: GpuWork, exposed: Mapping[str, Intervals]) -> tuple[int | None, int | None]:
    """Return until when exposed work and idle time of a device count as lost.

    They count to the end if it runs neither kernels nor copies that nothing hides. Migrations of managed memory and
    memsets are not the program's work. Work counts until the last kernel; if such copies take longer than compute,
    until the last copy or kernel. Idle time counts until both, because the host keeps a copy of results waiting.
    """
    work = device.activity
    copying = [
        times
        for key, times in exposed.items()
        if key not in (COMMUNICATION_WORK, MEMSET_WORK) and not key.startswith("um_")
    ]
    kernel, copy = (
        max((int(times.end[-1]) for times in unions if len(times.end)), default=BEFORE_ALL)
        for unions in ((work.compute, work.communication), copying)
    )
    is_copying = sum(map(intervals.length, copying)) > intervals.length(work.compute)
    last = max(kernel, copy) if is_copying else kernel
    return (None, None) if last == BEFORE_ALL else (last, max(kernel, copy))


def steady_use(trace: Trace, use: DeviceUse, work: Activity) -> DeviceUse:
    """Return a device's figures in its steady part, in which `work` is its work, with its streams there.

    Gaps of streams are measured for the window alone, so they are 0.
    """
    steady = use.steady
    if steady.window == use.window:
        return use
    figures = StreamWork.of_device(trace, work).figures(trace)
    streams = [
        replace(row, **{**figures[row.stream], "bytes": row.bytes}, gap_count=0, gap_ns=0)
        for row in use.streams
        if row.stream in figures
    ]
    tables = {**use.tables, **steady.tables, "streams": use.tables["streams"].with_rows(tuple(streams))}
    return replace(use, **(steady.figures() | {"tables": tables}))
