"""What a what-if says: the run as it is, each change with its price, and the bound that remains. Times in ns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traceview.model.trace import ReportInfo

PATH = ("compute", "communication", "copy", "memset", "gap", "launch", "host", "call", "wait")


@dataclass(frozen=True, slots=True)
class PathSpan:
    """One part of the critical path of the run as it is, on the capture's own clock."""

    kind: str  # one of PATH
    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """One change, or several together.

    `low_ns` to `high_ns` is what the constants and the replay's own error leave open; `path` says what the
    critical path is made of after the change: ns per iteration of each kind of PATH, adding up to `iteration_ns`
    (to the ns that a division rounds off).
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
class NotApplicable:
    """A change that this run cannot have, and why."""

    change: str
    title: str
    reason: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Everything that `traceview whatif` shows.

    `measured_ns` is the GPU's time per counted iteration; `replayed_ns` what the unchanged model gives.
    """

    info: ReportInfo
    range: str
    counted: int  # iterations that `measured_ns` is the mean of
    modelled: int  # of them, in the model
    measured_ns: int
    replayed_ns: int
    path: Mapping[str, int]
    spans: tuple[PathSpan, ...]
    predictions: tuple[Prediction, ...]  # each change alone, best first
    together: tuple[Prediction, ...]  # one more change each time, best first
    left_out: tuple[NotApplicable, ...]
    notes: tuple[str, ...]

    @property
    def error(self) -> float:
        """The replay's own error, as a signed fraction of the measured time."""
        return self.replayed_ns / self.measured_ns - 1
