"""The iterations of one rank, cut where its GPU finished them, and numbered so that another rank has the same ones.

A range around a step ends when the *host* is done with it, and hosts run ahead: one rank's ranges may be short while
another's wait. So an iteration lasts from the moment at which the GPU finished what the one before had launched to
the moment at which it finished this one; the first of a capture has no such beginning and is left out.
"""

from __future__ import annotations

import re

import numpy as np

from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, COMPUTE, Activity
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.iterations import IterationRanges
from traceview.measure.iterations.breakdown import MeasuredDevices, breakdown
from traceview.model.analysis import CAUSES
from traceview.model.fleet import STEP_FIGURES, Steps
from traceview.model.trace import Trace

NUMBER = re.compile(r"(?:(?<![\w.])-)?\d+")
MOST = 2000  # iterations kept of a rank
SLOW = 1.5  # times the median: a leading iteration that takes longer is warm-up


def numbers_of(found: IterationRanges) -> tuple[Times, bool]:
    """Return the last number in each iteration's name if those ascend, else 0, 1, 2 ...; and whether they did."""
    texts = [NUMBER.findall(name) for name in found.names]
    if all(texts) and all(len(of[-1]) <= 15 for of in texts):
        numbers = np.array([int(of[-1]) for of in texts], np.int64)
        if (np.diff(numbers) > 0).all():
            return numbers, True
    return np.arange(len(texts), dtype=np.int64), False


def steps_of(
    trace: Trace,
    of: ThreadStates,
    measured: MeasuredDevices,
    found: IterationRanges,
    number: Times,
    named: bool,
    skip: int | None,
) -> Steps:
    """Measure the first MOST iterations of the one GPU in `measured`; `skip` sets so many first ones aside."""
    begin, end = found.start, found.end
    done = finished(trace, measured.activities[0], found.process, begin)
    cut = "range" if done is None or len(done) < 2 else "gpu"
    if cut == "gpu" and done is not None:
        begin, end, number = done[:-1], done[1:], number[1:]
    begin, end, number = begin[:MOST], end[:MOST], number[:MOST]
    parts = breakdown(trace, of, measured, found.process, begin, end)
    idle = tuple(parts.idle[code] for code in range(len(CAUSES)))
    figures = {
        "wall": end - begin,
        "compute": parts.figures["compute_ns"],
        "communication": parts.figures["communication_ns"],
        "exposed_communication": parts.figures["exposed_communication_ns"],
        "idle": parts.idle.sum(axis=0),
        "blocked": parts.figures["blocked_ns"],
        "kernels": parts.figures["kernel_count"],
    }
    return Steps(
        name=found.range,
        named=named,
        cut=cut,
        number=number,
        skipped=_skipped(end - begin, skip, cut),
        figures=tuple(figures[name] for name in STEP_FIGURES),
        idle=idle,
    )


def finished(trace: Trace, device: Activity, process: int, begin: Times) -> Times | None:
    """Return when the GPU had finished the compute and communication that each iteration launched.

    `begin` are the starts of the iterations' ranges. Copies do not count: a prefetched batch is the work of the next
    one. None where an iteration launched nothing.
    """
    operations = trace.operations
    rows = device.rows[np.isin(device.codes, [COMPUTE, COMMUNICATION])]
    rows = rows[operations["process"].to_numpy()[rows] == process]
    launch = operations["launch"].gather(rows)
    known = launch.is_not_null().to_numpy()
    calls = launch.drop_nulls().to_numpy()
    place = np.searchsorted(begin, trace.api["start"].to_numpy()[calls], side="right") - 1
    inside = place >= 0
    if (np.bincount(place[inside], minlength=len(begin)) == 0).any():
        return None
    done = np.full(len(begin), np.iinfo(np.int64).min)
    np.maximum.at(done, place[inside], operations["end"].to_numpy()[rows[known][inside]])
    last: Times = np.maximum.accumulate(done)
    return last


def _skipped(wall: Times, skip: int | None, cut: str) -> int:
    if skip is not None:
        # The first one is gone already where the GPU's ends cut.
        return min(max(skip - (cut == "gpu"), 0), len(wall))
    steady = np.flatnonzero(wall <= SLOW * np.median(wall)) if len(wall) else wall
    return int(steady[0]) if len(steady) else 0
