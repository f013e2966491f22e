"""Communication is not hidden behind compute.

Symptom: NCCL kernels run while nothing computes. Waits for another rank are `communication_wait`.
Cause: gradients are reduced after the backward pass instead of during it, or in buckets that are too large to start
early or too small to be efficient.
Remedy: tune the bucket size, overlap with backward, send fewer bytes.

Claims the exposed communication that is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.pricing.accounts import COMMUNICATION
from traceview.pricing.base import CaptureFacts, FindingDraft
from traceview.pricing.ledger import ExposedClaim
from traceview.rules.advice.communication import EXPOSED_COMMUNICATION, SHARDED_COMMUNICATION
from traceview.units import duration, quantity, share


def exposed_communication(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device with exposed communication."""
    whole = EXPOSED_COMMUNICATION.choose(facts.program)
    for device in facts.devices:
        communication = device.use.communication
        if communication.count:
            sharded = any(row.collective == "reduce_scatter" for row in device.use.tables["collectives"].rows)
            fix = SHARDED_COMMUNICATION if sharded and whole is EXPOSED_COMMUNICATION.pytorch else whole
            hidden = share(communication.overlapped_ns, communication.busy_ns)
            yield FindingDraft(
                id="exposed_communication",
                device=device,
                title=f"{quantity(communication.count, 'communication kernel')}: {{cost}} not hidden behind "
                "compute, waits for other ranks excluded",
                advice=f"{hidden} of {duration(communication.busy_ns)} is hidden behind compute. {fix.advice}",
                code=fix.code,
                change="overlap",
                claims=(ExposedClaim((COMMUNICATION,)),),
                place_label="communication while nothing computes",
            )
