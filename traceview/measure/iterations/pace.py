"""Whether something outside the program sets the pace of its iterations: a display, a camera, a timer or a client.

Such iterations begin on a grid: an early or late one does not move those after it. Iterations that follow from one
another lose any grid, because their deviations add up. If something outside sets the pace, no change of the program
makes an iteration shorter.
"""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times
from traceview.model.analysis import Analysis, DeviceFigures, Iterations

MIN_ITERATIONS = 100  # with fewer, a loop can look like a grid
MAX_LOOKED_AT = 1_000  # iterations; deviations of a loop have added up by then
MIN_IDLE = 0.5  # share of the steady part; a busier GPU could set the pace itself
MIN_ON_GRID = 0.7  # length of the mean phase, from 0 for a loop to 1 for a grid; 0.88 with a display, at most 0.24 in
# loops of that many iterations among the shared captures
MIN_SCATTER = 1.0  # periods that a loop's deviations would have added up to; with less, a loop looks like a grid
PERIODS = np.linspace(-0.02, 0.02, 801) + 1  # around the median: their steps shift 1,000 iterations by 5% of a period


def pace_ns(analysis: Analysis) -> int | None:
    """Return the ns between iterations that something outside the program sets; None if nothing shows it."""
    iterations = analysis.iterations
    if not isinstance(iterations, Iterations) or iterations.counted < MIN_ITERATIONS:
        return None
    if any(_idle_share(use.steady) < MIN_IDLE for use in analysis.devices):
        return None
    starts = np.array([each.start_ns for each in iterations.per_iteration[iterations.skipped :]], np.int64)
    return grid_of(starts[:MAX_LOOKED_AT])


def _idle_share(use: DeviceFigures) -> float:
    return use.idle_ns / max(use.window.length, 1)


def grid_of(starts: Times) -> int | None:
    """Return the ns of the grid that some ascending starts keep to; None if they keep to none."""
    steps = np.diff(starts)
    median = float(np.median(steps))
    low, high = np.percentile(steps, [25, 75])
    if median <= 0 or (high - low) / 1.35 / median * np.sqrt(len(steps)) < MIN_SCATTER:  # 1.35 sigma between quartiles
        return None
    periods = median * PERIODS
    turns = np.outer(1 / periods, starts - starts[0])
    angles = (2 * np.pi * (turns - np.rint(turns))).astype(np.float32)  # NumPy has vector code for the sines of float32
    strength = np.hypot(np.cos(angles).mean(axis=1), np.sin(angles).mean(axis=1))
    best = int(strength.argmax())
    return round(periods[best]) if strength[best] >= MIN_ON_GRID else None
