"""Copies run on the stream of the kernels.

Symptom: exposed h2d or d2h copies from pinned memory on a stream that also computes.
Cause: the operations of a stream run one after the other, so a copy cannot overlap the kernels of its own stream.
Remedy: a copy stream and a prefetch.

Claims the exposed time of these copies, at most the compute that can hide it. Pageable copies belong to
`pageable_copies`. A stream with less than half of the busiest stream's compute belongs to `exposed_copies`, because the
kernels of other streams can hide its copies.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.model.trace import KINDS, MEMORIES
from traceview.pricing.accounts import copy_key
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import join_words
from traceview.pricing.ledger import ExposedClaim
from traceview.pricing.sums import Counts
from traceview.rules.advice.copies import READ_BACK, SHARED_STREAM
from traceview.units import duration, quantity, size

COPY_KINDS = ("h2d", "d2h")


def shared_stream(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device whose copies queue behind its kernels."""
    for device in facts.devices:
        most = device.use.compute_ns
        computing = {use.stream: use.label for use in device.use.streams if 0 < most <= 2 * use.compute_ns}
        draft = _draft(facts, device, computing)
        if draft is not None:
            yield draft


def _draft(facts: CaptureFacts, device: DeviceFacts, computing: dict[int, str]) -> FindingDraft | None:
    work, operations, copies = device.activity, facts.analysis.trace.operations, device.copies
    kinds = np.isin(copies.kind, [KINDS.index(name) for name in COPY_KINDS])
    candidates = copies.members[kinds & (copies.memory != MEMORIES.index("pageable"))]
    stream = operations["stream"].to_numpy()[work.rows[candidates]]
    shared = np.isin(stream, list(computing))
    chosen = candidates[shared]
    if len(chosen) == 0:
        return None
    within = intervals.union(work.start[chosen], work.end[chosen], ordered=True)
    rows = work.rows[chosen]
    streams = Counts.from_values(stream[shared].astype(np.int64))
    labels = join_words([computing[index] for index in device.shown("shared streams", streams).values.tolist()][:3])
    sizes, kind = operations["bytes"].to_numpy()[rows], operations["kind"].to_physical().to_numpy()[rows]
    figures = {
        "count": len(chosen),
        "bytes": int(sizes.sum()),
        "results": int(sizes[kind == KINDS.index("d2h")].sum()),
        "exposed": intervals.length(intervals.subtract(within, work.compute)),
    }
    count, total, results, exposed = device.shown("copies on shared streams", figures).values()
    hideable = device.compute_to_hide(COPY_KINDS)
    limit = f"; {duration(hideable)} of compute can hide them" if exposed > hideable else ""
    keys = tuple(copy_key(kind, memory) for kind in COPY_KINDS for memory in MEMORIES if memory != "pageable")
    fix = (READ_BACK if 2 * results > total else SHARED_STREAM).choose(facts.program)
    return FindingDraft(
        id="shared_stream",
        device=device,
        title=f"{quantity(count, 'copy', 'copies')} ({size(total)}) run on {labels}, the stream of the "
        f"kernels, and can never overlap them{limit}",
        advice=f"{{cost}} of copying is not hidden behind compute. {fix.advice}",
        code=fix.code,
        claims=(ExposedClaim(keys, within),),
        change="prefetch",
        at_most=hideable,
        place_label="a copy on the stream of the kernels",
    )
