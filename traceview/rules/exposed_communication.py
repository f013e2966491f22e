"""Communication is not hidden behind compute.

Symptom: NCCL kernels run while nothing computes. Waits for another rank are `communication_wait`.
With one rank alone, its waits for others count: only the others' captures show when they arrive.
Cause: gradients are reduced after the backward pass instead of during it, or in buckets that are too large to start
early or too small to be efficient.
Remedy: tune the bucket size, overlap with backward, send fewer bytes. In a pipeline, whose stages wait for each other's
micro-batches, more micro-batches or an interleaved schedule. Where nothing computes, fewer messages or a late rank.

Claims the exposed communication that is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from traceview.model.analysis import NotMeasured
from traceview.model.units import duration, quantity, share
from traceview.pricing.accounts import COMMUNICATION
from traceview.pricing.base import MEDIUM_SHARE, FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import TimeClaim

# Ranges of pipeline schedules: instrument's "stage 1 forward 3", torch's "Forward 3", Megatron's "recv_forward".
PIPELINE = re.compile(
    r"\bstage[ _]?[\d#]+ |micro.?batch|1f1b|pipeline|nccl:recv|recv_(?:forward|backward)|^(?:forward|backward) [\d#]+$",
    re.IGNORECASE,
)
OTHERS = "Whether it waits for a late rank, traceview fleet says from the reports of all. "


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield a finding for a GPU with exposed communication."""
    communication = device.use.communication
    if not communication.count:
        return
    alone = sum(each.use.communication.count > 0 for each in capture.devices) < 2
    values = {
        "count": quantity(communication.count, "communication kernel"),
        "hidden": share(communication.overlapped_ns, communication.busy_ns),
        "total": duration(communication.busy_ns),
        "waits": "included" if alone else "excluded",
        "others": OTHERS if alone else "",
    }
    is_sharded = any(row.collective == "reduce_scatter" for row in device.use.tables["collectives"].rows)
    case = "pipeline" if waits_for_stages(capture, device) else "sharded" if is_sharded else ""
    case = "alone" if capture.analysis.compute_share(device.use) < MEDIUM_SHARE else case
    yield FindingDraft("exposed_communication", device, (TimeClaim((COMMUNICATION,)),), values, case)


def waits_for_stages(capture: MeasuredCapture, device: GpuWork) -> bool:
    """Return whether most communication of a device is between the stages of a pipeline.

    All-to-all exchanges use the same kernels, so a range must name a stage, a micro-batch or a receive.
    """
    rows = device.use.tables["collectives"].rows
    between = sum(row.total_ns for row in rows if row.collective == "send_receive")
    if 2 * between <= sum(row.total_ns for row in rows):
        return False
    ranges = capture.analysis.nvtx
    return not isinstance(ranges, NotMeasured) and any(PIPELINE.search(row.name) for row in ranges)


exposed_communication = Rule("exposed_communication", find)
