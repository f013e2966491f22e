"""Where the iterations of each capture begin and end, cut in the same way in every capture.

An NVTX range around a step ends when the *host* is done with it. Where the host waits for the GPU in every
step, that is the step. Where it does not, it runs ahead: its ranges are short until a queue is full and one
range takes all the waiting, and their median says nothing of the run. Then an iteration lasts from the moment
at which the GPU finished what the one before had launched to the moment at which it finished this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.model.analysis import Analysis, Iterations, NotMeasured

# How far behind the host's ranges the GPU may end, as a share of them, for them still to be the steps.
AHEAD = 0.05


@dataclass(frozen=True, slots=True)
class Aligned:
    """The steady iterations of one capture, in ns on its clock; arrays of shape (iterations,).

    `start` and `end` hold what the GPU did; calls of the host belong to the iteration in [`host`, `host_end`).
    """

    start: Times
    end: Times
    host: Times
    host_end: Times
    skipped: int


@dataclass(frozen=True, slots=True)
class Ranges:
    """The iterations of one capture as the host saw them, and when the GPU finished each (None: it cannot be said)."""

    start: Times
    end: Times
    done: Times | None
    skipped: int

    @property
    def ahead(self) -> float:
        """How long after its range the GPU finished an iteration, as a share of it: medians."""
        if self.done is None:
            return 0.0
        steady = slice(self.skipped, None)
        lag = float(np.median(self.done[steady] - self.end[steady]))
        wall = float(np.median(self.end[steady] - self.start[steady]))
        return lag / wall if wall else 0.0


def ranges_of(analysis: Analysis) -> Ranges | None:
    """Return the iterations of a capture; None where it has none."""
    found = analysis.iterations
    if isinstance(found, NotMeasured):
        return None
    start = np.array([one.start_ns for one in found.per_iteration], np.int64)
    end = np.array([one.end_ns for one in found.per_iteration], np.int64)
    return Ranges(start, end, _done(analysis, found, start), found.skipped)


def _done(analysis: Analysis, found: Iterations, start: Times) -> Times | None:
    """Return when the GPUs had finished the compute and communication that each iteration launched.

    Copies do not count: a prefetched batch is the work of the next iteration.
    """
    trace = analysis.trace
    devices = [device.device for device in analysis.devices]
    work = trace.operations.filter(
        (pl.col("process") == found.process_id)
        & pl.col("device").is_in(devices)
        & pl.col("class").to_physical().is_in([COMPUTE, COMMUNICATION])
        & pl.col("launch").is_not_null()
    )
    launched = trace.api["start"].to_numpy()[work["launch"].to_numpy()]
    place = np.searchsorted(start, launched, side="right") - 1
    done = np.full(len(start), np.iinfo(np.int64).min)
    known = place >= 0
    np.maximum.at(done, place[known], work["end"].to_numpy()[known])
    if (np.bincount(place[known], minlength=len(start)) == 0).any():
        return None
    return np.maximum.accumulate(done)


def choose_cut(ranges: Sequence[Ranges | None], wanted: str, files: Sequence[str]) -> tuple[str, str]:
    """Return how to cut every capture, and why, in a sentence; `wanted` is auto, range or gpu.

    Raises RequestError when the GPU's cut is asked for and a capture does not have it.
    """
    for file, found in zip(files, ranges, strict=True):
        if found is None:
            return "whole", f"{file} has no iterations, so each capture is compared as a whole"
    known = [found for found in ranges if found is not None]
    unknown = [file for file, found in zip(files, known, strict=True) if found.done is None or len(found.start) < 2]
    if wanted == "gpu" and unknown:
        raise RequestError(f"{unknown[0]}: --cut gpu needs two iterations that each launch kernels; use --cut range")
    if wanted == "gpu":
        return "gpu", "--cut gpu: an iteration lasts from the end of one on the GPU to the end of the next"
    if wanted == "auto" and all(found.done is None for found in known):
        return "range", "iterations are the host's ranges: in no capture does each of them launch kernels"
    late = [(file, found.ahead) for file, found in zip(files, known, strict=True) if found.ahead > AHEAD]
    if wanted == "range" or not late:
        return "range", "--cut range" if wanted == "range" else "the GPU finishes each iteration within its range"
    ahead = ", ".join(file for file, _ in late)
    if unknown:
        return "range", (
            f"iterations are the host's ranges, although the host runs ahead of the GPU ({ahead}): "
            f"{unknown[0]} has iterations without kernels, whose end on the GPU is not known"
        )
    return "gpu", (
        f"the host runs ahead of the GPU ({ahead}), so an iteration lasts "
        "from the end of one on the GPU to the end of the next"
    )


def aligned(found: Ranges, cut: str) -> Aligned:
    """Return the steady iterations of a capture, cut as `cut` says."""
    begins = found.start
    # What the host does between two ranges belongs to the one before; what it does after the last, to none.
    next_begin = np.append(begins[1:], found.end[-1])
    if cut == "range" or found.done is None:
        chosen = slice(found.skipped, None)
        return Aligned(begins[chosen], found.end[chosen], begins[chosen], next_begin[chosen], found.skipped)
    # Nothing says when the GPU began the first iteration of a capture.
    first = max(found.skipped, 1)
    return Aligned(found.done[first - 1 : -1], found.done[first:], begins[first:], next_begin[first:], first)
