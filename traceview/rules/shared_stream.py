"""Copies that run on the stream of the kernels.

Symptom: exposed h2d or d2h copies from pinned memory, on a stream that also computes.
Cause: the operations of one stream run one after the other, so such a copy can never hide under that
stream's kernels. Where that stream has less than half of the compute, others' kernels could hide it, and
`exposed_copies` speaks instead.
Remedy: a copy stream and a prefetch.

Claims the exposed time of those copies. Pageable ones are `pageable_copies`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.model.trace import KINDS, MEMORIES
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import listed, many, size
from traceview.pricing.ledger import Exposed, copy_key

KINDS_HERE = ("h2d", "d2h")
ADVICE = (
    "Issue them on a stream of their own, ahead of their use: `with torch.cuda.stream(copy_stream)` "
    "and `non_blocking=True`, then `wait_stream` where the data is needed. It pays if there is other "
    "compute to run meanwhile: fetch the next batch during this step. A copy stream without a "
    "prefetch changes nothing, because the kernels still wait for the copy."
)
CODE = """with torch.cuda.stream(copy_stream):
    following = following.to(device, non_blocking=True)
torch.cuda.current_stream().wait_stream(copy_stream); following.record_stream(torch.cuda.current_stream())"""


def shared_stream(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each device whose copies queue behind its kernels."""
    for device in facts.devices:
        most = device.use.compute_ns
        computing = {use.stream: use.label for use in device.use.streams if 0 < most <= 2 * use.compute_ns}
        draft = _draft(facts, device, computing)
        if draft is not None:
            yield draft


def _draft(facts: Facts, device: DeviceFacts, computing: dict[int, str]) -> Draft | None:
    work, operations, of = device.activity, facts.analysis.trace.operations, device.copies
    among = np.isin(of.kind, [KINDS.index(name) for name in KINDS_HERE]) & (of.memory != MEMORIES.index("pageable"))
    stream = operations["stream"].to_numpy()[work.rows[of.at[among]]]
    here = np.isin(stream, list(computing))
    chosen = of.at[among][here]
    if len(chosen) == 0:
        return None
    within = intervals.union(work.start[chosen], work.end[chosen], ordered=True)
    labels = listed([computing[int(one)] for one in np.unique(stream[here])][:3])
    total = int(operations["bytes"].to_numpy()[work.rows[chosen]].sum())
    keys = tuple(copy_key(name, other) for name in KINDS_HERE for other in MEMORIES if other != "pageable")
    return Draft(
        id="shared_stream",
        device=device,
        title=f"{many(len(chosen), 'copy', 'copies')} ({size(total)}) run on {labels}, the "
        "stream of the kernels, and can never overlap them",
        advice=f"{{cost}} of copying ran with nothing computing. {ADVICE}",
        code=CODE,
        claims=(Exposed(keys, within),),
        place="the copy waits its turn on a stream of kernels",
    )
