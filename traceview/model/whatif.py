"""The results of a what-if: the run as it is, the prediction for each change, and the bound. Times are in ns."""

from __future__ import annotations

from collections.abc import Mapping

from traceview.model.analysis import IterationSummary
from traceview.model.columns import Documented
from traceview.model.frozen import dataclass
from traceview.model.trace import Note, ReportInfo
from traceview.model.unprofiled import UnprofiledTime

PATH = ("compute", "communication", "copy", "memset", "gap", "launch", "host", "call", "wait")


@dataclass(frozen=True, slots=True)
class PathSpan:
    """One stretch of the critical path of the run as it is, on the capture's clock."""

    kind: str  # one of PATH
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction for one change, or for several together.

    Attributes:
        change: The name of the change.
        title: The change in words.
        iteration_ns: The time of an iteration after the change, in ns.
        low_ns: The lower end of the range in which measured times came around such predictions, in ns.
        high_ns: The upper end, in ns.
        effort: What the change takes to make: "one line", "a few lines" or "a rewrite".
        rests_on: What the prediction assumes.
        note: What weakens it.
        path: The critical path after the change, in ns of each kind of PATH. These add up to `iteration_ns`, except for
            rounding.
    """

    change: str
    title: str
    iteration_ns: int
    low_ns: int
    high_ns: int
    effort: str
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


@dataclass(frozen=True, slots=True, repr=False)
class WhatIf(Documented):
    """Everything that `traceview whatif` shows.

    Attributes:
        info: The file, the profiler, and what the capture lacks.
        range: The name of the iterations' ranges, or a description of their period.
        iterations: Their source and mean time, in ns.
        counted: The number of iterations whose mean is `measured_ns`.
        modelled: The number of counted iterations in the model.
        measured_ns: The mean time of an iteration, in ns.
        replayed_ns: The time that the unchanged model predicts, in ns.
        unprofiled: The time without the profiler in ns; if it is known, predictions are for runs without the profiler.
        path: The critical path of an iteration, in ns of each kind of PATH.
        spans: The stretches of this path, in ns on the capture's clock.
        predictions: Each change alone, the best first, in ns.
        together: One more change each time, the best first, in ns.
        left_out: Changes that do not apply, with the reason.
        notes: What weakens the predictions.
    """

    info: ReportInfo
    range: str
    iterations: IterationSummary
    counted: int
    modelled: int
    measured_ns: int
    replayed_ns: int
    unprofiled: UnprofiledTime | None
    path: Mapping[str, int]
    spans: tuple[PathSpan, ...]
    predictions: tuple[Prediction, ...]
    together: tuple[Prediction, ...]
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
