"""The GPU waits inside CUDA calls that no other rule explains.

Symptom: idle causes `launch`, `api`, `sync`, `blocking_copy` or `memory` left over, in gaps too long for
launch-bound.
Cause: a kernel's module loaded at its first launch, event and stream bookkeeping, a rare synchronization.
Remedy: warm up before timing; load modules eagerly; look at the calls named.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.intervals import Times
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import duration, listed
from traceview.pricing.largest import largest
from traceview.pricing.ledger import Idle

LONGEST = 20  # gaps whose calls are named

CAUSES = ("launch", "api", "sync", "blocking_copy", "memory")


def slow_calls(facts: Facts) -> Iterator[Draft]:
    """Name the calls that were running while the GPU idled longest."""
    for device in facts.devices:
        inside = device.waits(CAUSES, device.in_steady)
        if inside is None:
            continue
        yield Draft(
            id="slow_calls",
            device=device,
            title="The GPU waits {cost} for CUDA calls to return" + _named(facts, device, inside),
            advice="A first launch loads its module (set CUDA_MODULE_LOADING=EAGER, or run warm-up "
            "steps of every shape before measuring); the other calls are bookkeeping that a CUDA "
            "graph leaves out of the loop.",
            code="for shape in shapes: model(torch.zeros(shape, device=device))   # warm-up",
            claims=(Idle(CAUSES, rows=device.in_steady),),
            place="inside a CUDA call",
        )


def _named(facts: Facts, device: DeviceFacts, inside: Times) -> str:
    """Return the names of the launches that end the gaps with the most time inside calls."""
    trace = facts.analysis.trace
    longest = largest(inside, LONGEST)
    rows = [int(row) for row in device.gap_operation[device.in_steady][longest] if row >= 0]
    launches = [trace.operations["launch"][row] for row in rows]
    names = list(dict.fromkeys(str(trace.api["name"][call]) for call in launches if call is not None))[:2]
    return f" (up to {duration(int(inside[longest[0]]))} before {listed(names)})" if names else ""
