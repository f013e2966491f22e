"""The GPU waits for CUDA calls that no other rule explains.

Symptom: idle time with the causes `launch`, `api`, `sync`, `blocking_copy` or `memory` that is left, in gaps that are
too long for launch-bound.
Cause: the first launch of a kernel loads its module, calls manage events and streams, or a rare synchronization.
Remedy: warm up before measuring, load modules eagerly, look at the named calls.

Claims these idle causes of the steady gaps; of blocking calls at most their cost.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.intervals import Times
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import join_words, largest_positions
from traceview.pricing.ledger import IdleClaim
from traceview.pricing.waits import calls_of_device, total_cost
from traceview.rules.advice.host import SLOW_CALLS
from traceview.units import duration

MAX_NAMED_GAPS = 20
MAX_NAMES = 2

LAUNCHING, BLOCKING = ("launch", "api"), ("sync", "blocking_copy", "memory")
CAUSES = LAUNCHING + BLOCKING


def slow_calls(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device that waits for CUDA calls."""
    fix = SLOW_CALLS.choose(facts.program)
    for device in facts.devices:
        at_most = _most_claimed(facts, device)
        waits = device.gap_waits(CAUSES, device.steady_gaps)
        if waits is None:
            continue
        yield FindingDraft(
            id="slow_calls",
            device=device,
            title="The GPU waits {cost} for CUDA calls to return" + _launches_after_longest(facts, device, waits),
            advice=fix.advice,
            code=fix.code,
            claims=(IdleClaim(LAUNCHING, rows=device.steady_gaps), IdleClaim(BLOCKING, rows=device.steady_gaps)),
            at_most=at_most,
            place_label="inside a CUDA call",
        )


def _most_claimed(facts: CaptureFacts, device: DeviceFacts) -> int:
    """Return the idle time in launches and other calls, and the cost of blocking calls, in ns."""
    host, causes = facts.analysis.host, device.use.gaps.causes
    blocking = sum(total_cost(calls_of_device(device, use.frame)) for use in (host.sync, host.implicit_sync))
    return sum(causes[cause] for cause in LAUNCHING) + device.total("blocking_ns", blocking)


def _launches_after_longest(facts: CaptureFacts, device: DeviceFacts, waits: Times) -> str:
    """Return the names of the launches that end the gaps with the longest waits."""
    trace = facts.analysis.trace
    first = device.steady_gaps.start
    own = {}
    for at in largest_positions(waits, MAX_NAMED_GAPS):
        row = int(device.gap_operation[first + at])
        call = None if row < 0 else trace.operations["launch"][row]
        name = "" if call is None else trace.api["name"][call]
        own[f"{device.gap_start[first + at]} {name}"] = int(waits[at])
    every = device.total("longest_waits", own)
    longest = sorted(every, key=lambda key: (-every[key], int(key.split()[0])))[:MAX_NAMED_GAPS]
    names = list(dict.fromkeys(key.split(" ", 1)[1] for key in longest if not key.endswith(" ")))[:MAX_NAMES]
    return f" (up to {duration(every[longest[0]])} before {join_words(names)})" if names else ""
