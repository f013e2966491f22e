"""The ledger of `traceview optimize`: what each change was predicted to give, and what it gave.

Times are ns of an iteration in captures, so with the profiler's part on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpectedTime:
    """The predicted time of an iteration after a change, with its range."""

    change: str
    title: str
    iteration_ns: int
    low_ns: int
    high_ns: int


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A recording whose change is not made yet, and the predictions from it, the best first."""

    recording: str
    iteration_ns: int
    expected: tuple[ExpectedTime, ...]


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A change: the time before it, the prediction from the recording before it, and the time measured after it."""

    before: str
    after: str
    before_ns: int
    measured_ns: int
    expected: ExpectedTime
    verdict: str  # that of `traceview compare`
    why: str

    @property
    def predicted_gain(self) -> float:
        """The predicted share of the time that the change saves."""
        return 1 - self.expected.iteration_ns / self.before_ns

    @property
    def measured_gain(self) -> float:
        """The measured share of the time that the change saves."""
        return 1 - self.measured_ns / self.before_ns

    @property
    def error(self) -> float:
        """The predicted time relative to the measured one; positive if the prediction is too long."""
        return self.expected.iteration_ns / self.measured_ns - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured time is inside the predicted range."""
        return self.expected.low_ns <= self.measured_ns <= self.expected.high_ns


@dataclass(frozen=True, slots=True)
class GainLedger:
    """All changes, in order, and the step whose change is not made yet."""

    entries: tuple[LedgerEntry, ...] = ()
    open_step: OpenStep | None = None

    @property
    def mean_error(self) -> float | None:
        """The mean size of the errors of the predictions; None without changes."""
        return _mean([abs(entry.error) for entry in self.entries])

    @property
    def bias(self) -> float | None:
        """The mean error; positive if predicted times are too long."""
        return _mean([entry.error for entry in self.entries])

    @property
    def inside_count(self) -> int:
        """The number of changes whose measured time is inside the predicted range."""
        return sum(entry.is_inside for entry in self.entries)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
