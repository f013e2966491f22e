"""Communication is not hidden behind compute.

Symptom: NCCL kernels run while nothing computes. Waits for another rank are `communication_wait`.
Cause: gradients are reduced after the backward pass instead of during it, or in buckets that are too large to start
early or too small to be efficient.
Remedy: tune the bucket size, overlap with backward, send fewer bytes.

Claims the exposed communication that is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.pricing.base import CaptureFacts, FindingDraft
from traceview.pricing.figures import duration, quantity, share
from traceview.pricing.ledger import COMMUNICATION, ExposedClaim

ADVICE = (
    "DDP reduces each bucket while the rest of backward runs. Try a `bucket_cap_mb` of 10 to 100 (small buckets "
    "start earlier, large buckets are more efficient), `gradient_as_bucket_view=True`, and a bf16 compression hook "
    "that halves the bytes. With gradient accumulation, use `no_sync()` on all micro-batches except the last. "
    "Backward must compute long enough to hide the communication; the last bucket is always exposed."
)
CODE = """model = DistributedDataParallel(model, bucket_cap_mb=50, gradient_as_bucket_view=True)
hooks = torch.distributed.algorithms.ddp_comm_hooks.default_hooks
model.register_comm_hook(None, hooks.bf16_compress_hook)"""


def exposed_communication(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device with exposed communication."""
    for device in facts.devices:
        communication = device.use.communication
        if communication.count:
            hidden = share(communication.overlapped_ns, communication.busy_ns)
            yield FindingDraft(
                id="exposed_communication",
                device=device,
                title=f"{quantity(communication.count, 'communication kernel')}: {{cost}} not hidden behind "
                "compute, waits for other ranks excluded",
                advice=f"{hidden} of {duration(communication.busy_ns)} is hidden behind compute. {ADVICE}",
                code=CODE,
                claims=(ExposedClaim((COMMUNICATION,)),),
                place_label="communication while nothing computes",
            )
