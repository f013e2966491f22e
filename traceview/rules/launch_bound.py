"""Launch-bound: the GPU finishes kernels faster than the host launches them.

Symptom: thousands of short gaps; the launch call comes back and the kernel starts at once, because the
queue is empty.
Cause: small kernels, each costing its launch (5 to 10 µs) and the Python and dispatcher work before it.
Remedy: a CUDA graph, or torch.compile, or larger kernels (batch size, fused optimizer).

SHORT: an eager operation takes 5 to 60 µs of Python, autograd and launch on the captures measured, so a gap
of up to 100 µs is one operation's worth, or two; a longer one is the host doing something else.
DENSE: next to kernels of milliseconds such gaps are a percent or two of the time, and no launching helps.
Claims the idle causes `launch`, `api` and `host` of gaps up to SHORT, in the steady time, where they are
dense.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from traceview import intervals
from traceview.intervals import EMPTY, Rows, Times
from traceview.model.analysis import Place
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import duration, share
from traceview.pricing.largest import largest, middle
from traceview.pricing.ledger import Idle

SHORT = 100_000  # ns
FEW = 20  # gaps; fewer are no stretch
BIN = 1_000_000  # ns; the length of a stretch
DENSE = 0.05
PLACES = 5
CAUSES = ("launch", "api", "host")
ADVICE = (
    "Launch the step as one CUDA graph (`make_graphed_callables`, or torch.compile with "
    'mode="reduce-overhead"): needs static shapes, no host synchronization and no data-dependent '
    "branch inside, and memory for the graph's own buffers. Otherwise give each kernel more to do: a "
    "larger batch, torch.compile's fusion, `AdamW(..., fused=True)`. More streams do not help: the "
    "host is the limit."
)
CODE = """model = torch.compile(model, mode="reduce-overhead")
# or, by hand: model = torch.cuda.make_graphed_callables(model, (sample_batch,))"""


class _Stretches(NamedTuple):
    """Stretches of BIN: number, ns of such waiting and gaps of each, then the gaps of all and the ns of each gap."""

    number: Times
    ns: Times
    gaps: Times
    rows: Rows
    waits: Times


def launch_bound(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each device that waits for launches in short gaps."""
    for device in facts.devices:
        dense = _dense(device)
        if len(dense.rows) >= FEW:
            yield _draft(facts, device, dense)


def _dense(device: DeviceFacts) -> _Stretches:
    """Return the stretches in which at least DENSE of the time is such waiting."""
    rows, waits = _short(device)
    first, number = _begun(device, rows)
    ns = np.add.reduceat(waits, first) if len(first) else waits
    count = np.diff(first, append=len(rows))
    dense = ns >= DENSE * BIN
    kept = np.repeat(dense, count)
    return _Stretches(number[dense], ns[dense], count[dense], rows[kept], waits[kept])


def _short(device: DeviceFacts) -> tuple[Rows, Times]:
    """Return the steady gaps up to SHORT in which the GPU waits for launches, and the ns of each."""
    steady, count = device.in_steady, 0
    rows, ns = (np.empty(steady.stop - steady.start, kind) for kind in (np.int32, np.int64))
    for block in intervals.blocks(len(rows)):
        gaps = slice(steady.start + block.start, steady.start + block.stop)
        waits = device.waits(CAUSES, gaps)
        if waits is not None:
            short = device.gap_end[gaps] - device.gap_start[gaps] <= SHORT
            some = np.flatnonzero(short & (waits > 0))
            put = slice(count, count + len(some))
            rows[put], ns[put] = some + gaps.start, waits[some]
            count = put.stop
    return rows[:count], ns[:count]


def _begun(device: DeviceFacts, rows: Rows) -> tuple[Times, Times]:
    """Return which of these gaps are the first of their stretch, and the number of that."""
    # Only stretches that hold gaps: a damaged time may make the window a century long.
    firsts, numbers, last = [EMPTY.start], [EMPTY.start], -1
    for block in intervals.blocks(len(rows)):
        number = (device.gap_start[rows[block]] - device.steady.start) // BIN
        begins = np.flatnonzero(np.diff(number, prepend=last))  # they ascend, as the gaps do
        firsts.append(begins + block.start)
        numbers.append(number[begins])
        last = number[-1]
    return np.concatenate(firsts), np.concatenate(numbers)


def _draft(facts: Facts, device: DeviceFacts, dense: _Stretches) -> Draft:
    work = device.activity
    half = duration(middle(work.end - work.start))
    each = duration(int(dense.ns.sum()) / len(dense.rows))
    return Draft(
        id="launch_bound",
        device=device,
        title="Launch-bound: the GPU idles {cost} in {gaps} short gaps between small kernels",
        advice=f"Half of the GPU's operations take less than {half}, and it then waits {each} for the "
        f"host to launch the next{_threads(facts, device, dense)}. {ADVICE}",
        code=CODE,
        claims=(Idle(CAUSES, rows=dense.rows),),
        fewest=FEW,
        evidence=_places(device, dense),
    )


def _threads(facts: Facts, device: DeviceFacts, dense: _Stretches) -> str:
    """Return " (59% of the wait is for thread pt_autograd_0)": the thread that the GPU waits for most."""
    thread = device.gap_thread[dense.rows] + 1  # 0: not known
    sums = np.bincount(thread, weights=dense.waits)[1:]
    if len(sums) == 0:
        return ""
    name = facts.analysis.trace.threads["name"][int(sums.argmax())]
    return f" ({share(float(sums.max()), float(dense.ns.sum()))} of the wait is for thread {name})"


def _places(device: DeviceFacts, dense: _Stretches) -> tuple[Place, ...]:
    """Return the five stretches with the most such waiting."""
    found = []
    for worst in largest(dense.ns, PLACES):
        start = device.steady.start + int(dense.number[worst]) * BIN
        text = f"{dense.gaps[worst]} short gaps: the GPU waits {duration(int(dense.ns[worst]))} of {duration(BIN)}"
        found.append(Place(text, start, min(start + BIN, device.use.window.end), device.use.id))
    return tuple(found)
