"""Communication that nothing hides.

Symptom: NCCL kernels run while nothing computes, waiting for another rank set apart (`communication_wait`).
Cause: gradients are reduced after the backward pass instead of during it, or in buckets too large to begin
early or too small to be efficient.
Remedy: buckets, overlap with backward, fewer bytes.

Claims the exposed communication that is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.pricing.base import Draft, Facts
from traceview.pricing.format import duration, many, share
from traceview.pricing.ledger import COMMUNICATION, Exposed

ADVICE = (
    "DDP reduces each bucket while the rest of backward still runs: try `bucket_cap_mb` of 10 to 100 "
    "(smaller starts earlier, larger is more efficient), `gradient_as_bucket_view=True`, and a bf16 "
    "compression hook to halve the bytes. With gradient accumulation, `no_sync()` on all but the "
    "last micro-batch. It pays only as far as backward has compute left to hide it; the last bucket "
    "never hides."
)
CODE = """model = DistributedDataParallel(model, bucket_cap_mb=50, gradient_as_bucket_view=True)
hooks = torch.distributed.algorithms.ddp_comm_hooks.default_hooks
model.register_comm_hook(None, hooks.bf16_compress_hook)"""


def exposed_communication(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each device with exposed communication."""
    for device in facts.devices:
        of = device.use.communication
        if of.count:
            yield Draft(
                id="exposed_communication",
                device=device,
                title=f"{many(of.count, 'communication kernel')} run for {{cost}} with nothing "
                "computing, waits for other ranks apart",
                advice=f"{share(of.overlapped_ns, of.busy_ns)} of {duration(of.busy_ns)} is hidden "
                f"under compute. {ADVICE}",
                code=CODE,
                claims=(Exposed((COMMUNICATION,)),),
                place="communication with nothing computing",
            )
