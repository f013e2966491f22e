"""The results of a what-if: the run as it is, the prediction for each change, and the bound. Times are in ns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceview.model.analysis import IterationSummary
from traceview.model.trace import Note, ReportInfo
from traceview.model.unprofiled import UnprofiledTime

PATH = ("compute", "communication", "copy", "memset", "gap", "launch", "host", "call", "wait")


@dataclass(frozen=True, slots=True)
class PathSpan:
    """One part of the critical path of the run as it is, on the capture's clock."""

    kind: str  # one of PATH
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one change, or for several together.

    `low_ns` to `high_ns` is the range that results from uncertain constants and the replay's own error. `path` has the
    ns per iteration of each kind of PATH on the critical path after the change. These add up to `iteration_ns`, except
    for rounding.
    """

    change: str
    title: str
    iteration_ns: int
    low_ns: int
    high_ns: int
    rests_on: str
    note: str
    path: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Combinations:
    """What a page predicts: each change alone, the best first, then the best ones together.

    The changes of a prediction are joined by "+" in `Prediction.change`. The first `combined` changes are combined.
    """

    base_ns: int  # an iteration without a change
    path: Mapping[str, int]  # its critical path, as Prediction.path
    predictions: tuple[Prediction, ...]
    combined: int


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """A change that does not apply to this run, and the reason."""

    change: str
    title: str
    reason: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Everything that `traceview whatif` shows.

    `measured_ns` is Iterations.time_ns, `replayed_ns` the time that the unchanged model predicts. If `unprofiled` is
    known, predictions are for runs without the profiler.
    """

    info: ReportInfo
    range: str
    iterations: IterationSummary
    counted: int  # iterations whose mean is `measured_ns`
    modelled: int  # counted iterations in the model
    measured_ns: int
    replayed_ns: int
    unprofiled: UnprofiledTime | None
    path: Mapping[str, int]
    spans: tuple[PathSpan, ...]
    predictions: tuple[Prediction, ...]  # each change alone, best first
    together: tuple[Prediction, ...]  # one more change each time, best first
    left_out: tuple[NotApplicable, ...]
    notes: tuple[Note, ...]

    @property
    def base_ns(self) -> int:
        """The time without a change that predictions are compared with."""
        return self.measured_ns if self.unprofiled is None else self.unprofiled.mean_ns

    @property
    def error(self) -> float:
        """The replay's error, as a signed fraction of the measured time."""
        return self.replayed_ns / self.measured_ns - 1
