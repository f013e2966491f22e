"""Copies from or to pageable memory, which block the host thread that asks for them.

Symptom: cudaMemcpyAsync takes as long as the copy; nothing computes meanwhile; the synchronize after it
gets the blame.
Cause: the driver stages pageable memory through its own pinned buffer, piece by piece, while the caller
waits: such a copy is never asynchronous and never overlaps what the same thread would launch.
Remedy: pinned batches, a copy stream and a prefetch, all three; small copies are better avoided than pinned.

Claims the exposed time of pageable h2d, d2h and h2h copies, the idle cause `blocking_copy`, and the cause
`launch` of gaps that such a copy ends: there the launch call is the staging.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.intervals import Rows
from traceview.model.analysis import CopyOverlap
from traceview.model.trace import KINDS, MEMORIES
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import duration, listed, many, rate, share, size
from traceview.pricing.ledger import Exposed, Idle, copy_key

HOST_KINDS = ("h2d", "d2h", "h2h")
SMALL = (
    65_536  # bytes; a copy below it takes less time than the call that asks for it, so pinning buys nothing
)
ACQUITTED = 10  # a synchronize call is innocent if the copies held the host this many times longer
START_UP_ADVICE = (
    "It is paid once, before the loop (parameters and buffers on their way to the GPU), so it "
    "matters only where starting up does: load the checkpoint with `map_location=device`, or build "
    "the model on the device at once."
)
START_UP_CODE = """with torch.device(device):
    model = Model()"""
LARGE_ADVICE = (
    "Pin the batches, copy them on a stream of their own and fetch one batch ahead, so that the copy "
    "runs under the previous step's kernels. It pays only with all three: pinning alone makes the "
    "copy faster but leaves it exposed, and pinning each batch on the spot (`batch.pin_memory()` in "
    "the loop) has been measured as a loss. It needs compute at least as long as the copy. (CUDA "
    "C++: cudaMallocHost, cudaMemcpyAsync, a second stream.)"
)
LARGE_CODE = """loader = DataLoader(dataset, num_workers=4, pin_memory=True, persistent_workers=True)
copy_stream = torch.cuda.Stream()
with torch.cuda.stream(copy_stream):                      # the next batch, while this one computes
    following = following.to(device, non_blocking=True)
torch.cuda.current_stream().wait_stream(copy_stream)      # before it is used
following.record_stream(torch.cuda.current_stream())"""
SMALL_ADVICE = (
    "They are small ({each} on average), so what costs is the call and the stop, not the bytes: "
    "build such tensors on the device, gather them into one copy, and read scalars back every N "
    "steps. Pinning would not help."
)
SMALL_CODE = (
    "x = torch.arange(n, device=device)   # not torch.arange(n).to(device); loss.item() every N steps"
)


def pageable_copies(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each device that copied from or to pageable memory."""
    for device in facts.devices:
        copies = [one for one in device.use.copies if one.memory == "pageable" and one.kind in HOST_KINDS]
        if copies:
            yield _draft(facts, device, copies)


def _draft(facts: Facts, device: DeviceFacts, copies: list[CopyOverlap]) -> Draft:
    rows = _rows(device)
    count, total = sum(one.count for one in copies), sum(one.bytes for one in copies)
    busy, exposed = sum(one.busy_ns for one in copies), sum(one.exposed_ns for one in copies)
    blocked = _blocked(facts, rows)
    kinds = listed([f"{size(one.bytes)} {one.kind}" for one in copies])
    large = total >= SMALL * count
    start_up = facts.counted is not None and _in_steady(facts, device, rows) == 0
    advice = (
        START_UP_ADVICE
        if start_up
        else LARGE_ADVICE
        if large
        else SMALL_ADVICE.replace("{each}", size(total / count))
    )
    blocks = f" block the host for {duration(blocked)}" if blocked else " run without compute"
    return Draft(
        id="pageable_copies",
        device=device,
        title=f"{many(count, 'copy', 'copies')} from or to pageable memory "
        f"({kinds}){blocks}{_when(facts, device, rows)}",
        advice=f"They ran at {rate(total, busy)}, {share(exposed, busy)} of that time with nothing "
        f"computing. {_blame(facts, blocked)}{advice}",
        code=START_UP_CODE if start_up else LARGE_CODE if large else SMALL_CODE,
        claims=(
            Exposed(tuple(copy_key(one.kind, one.memory) for one in copies)),
            Idle(("launch",), rows=device.ended_by(rows)),
            Idle(("blocking_copy",)),
        ),
        place="a copy from or to pageable memory, its host thread blocked",
    )


def _rows(device: DeviceFacts) -> Rows:
    """Return the rows of Trace.operations that are such copies on this device."""
    of, codes = device.copies, [KINDS.index(name) for name in HOST_KINDS]
    found: Rows = device.activity.rows[of.at[(of.memory == MEMORIES.index("pageable")) & np.isin(of.kind, codes)]]
    return found


def _blocked(facts: Facts, rows: Rows) -> int:
    """Return how long the calls that asked for these copies held their threads, in ns."""
    launches = facts.analysis.trace.operations["launch"][rows].drop_nulls().unique().to_numpy()
    frame = facts.analysis.host.implicit_sync.frame
    return int(frame["blocked"].to_numpy()[np.isin(frame["api"].to_numpy(), launches)].sum())


def _when(facts: Facts, device: DeviceFacts, rows: Rows) -> str:
    if facts.counted is None or len(rows) == 0:
        return ""
    inside = _in_steady(facts, device, rows)
    return facts.per_iteration(inside) if inside else ", all outside the counted iterations (start-up)"


def _in_steady(facts: Facts, device: DeviceFacts, rows: Rows) -> int:
    start = facts.analysis.trace.operations["start"].to_numpy()[rows]
    return int(((start >= device.steady.start) & (start < device.steady.end)).sum())


def _blame(facts: Facts, blocked: int) -> str:
    """Return a sentence that acquits the synchronize call that looks guilty; "" where it is not innocent."""
    calls = facts.analysis.host.sync.calls
    call = max(calls, key=lambda one: one.blocked_ns, default=None)
    if call is None or call.blocked_ns * ACQUITTED > blocked:
        return ""
    held = f"{duration(call.blocked_ns)} in {many(call.count, 'call')}"
    return f"{call.api} looks guilty, but held the host for only {held}. "
