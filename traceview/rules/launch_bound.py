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

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model import Place
from traceview.rules.base import DeviceFacts, Draft, Facts
from traceview.rules.ledger import Idle
from traceview.rules.words import duration, share

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


def launch_bound(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each device that waits for launches in short gaps."""
    for device in facts.devices:
        waits = sum(
            (device.use.gaps.frame[cause].to_numpy() for cause in CAUSES),
            np.zeros(len(device.gap_start), np.int64),
        )
        rows = _dense(device, (device.gap_length <= SHORT) & device.in_steady & (waits > 0), waits)
        if rows.sum() >= FEW:
            yield _draft(facts, device, rows, waits)


def _draft(facts: Facts, device: DeviceFacts, rows: NDArray[np.bool_], waits: NDArray[np.int64]) -> Draft:
    work = device.activity
    length = work.end - work.start
    count = int(rows.sum())
    half = duration(float(np.median(length)))
    each = duration(int(waits[rows].sum()) / count)
    return Draft(
        id="launch_bound",
        device=device,
        title="Launch-bound: the GPU idles {cost} in {gaps} short gaps between small kernels",
        advice=f"Half of the GPU's operations take less than {half}, and it then waits {each} for the "
        f"host to launch the next{_threads(facts, device, rows, waits)}. {ADVICE}",
        code=CODE,
        claims=(Idle(CAUSES, rows=rows),),
        fewest=FEW,
        evidence=_places(device, rows, waits),
    )


def _dense(device: DeviceFacts, rows: NDArray[np.bool_], waits: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Keep the gaps of stretches of BIN in which at least DENSE of the time is such waiting."""
    _, index = _stretches(device, rows)
    kept = rows.copy()
    kept[rows] = np.bincount(index, weights=waits[rows])[index] >= DENSE * BIN
    return kept


def _stretches(device: DeviceFacts, rows: NDArray[np.bool_]) -> tuple[Times, Times]:
    """Return the numbers of the stretches that hold these gaps, and for each gap the position of its own."""
    # Only those that hold gaps: a damaged time may make the window a century long.
    number = (device.gap_start[rows] - device.steady.start) // BIN
    first = np.diff(number, prepend=number[:1] - 1) > 0  # they ascend, as the gaps do
    return number[first], np.cumsum(first) - 1


def _threads(facts: Facts, device: DeviceFacts, rows: NDArray[np.bool_], waits: NDArray[np.int64]) -> str:
    """Return " (59% of the wait is for thread pt_autograd_0)": the thread that the GPU waits for most."""
    known = rows & (device.gap_thread >= 0)
    if not known.any():
        return ""
    sums = np.bincount(device.gap_thread[known], weights=waits[known])
    name = facts.analysis.trace.threads["name"][int(sums.argmax())]
    return f" ({share(float(sums.max()), float(waits[rows].sum()))} of the wait is for thread {name})"


def _places(device: DeviceFacts, rows: NDArray[np.bool_], waits: NDArray[np.int64]) -> tuple[Place, ...]:
    """Return the five stretches of BIN with the most such waiting."""
    numbers, index = _stretches(device, rows)
    sums = np.bincount(index, weights=waits[rows])
    counts = np.bincount(index)
    found = []
    for worst in np.argsort(-sums, kind="stable")[:PLACES]:
        start = device.steady.start + int(numbers[worst]) * BIN
        text = f"{counts[worst]} short gaps: the GPU waits {duration(sums[worst])} of {duration(BIN)}"
        found.append(Place(text, start, min(start + BIN, device.use.window.end), device.use.id))
    return tuple(found)
