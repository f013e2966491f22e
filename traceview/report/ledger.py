"""The ledger of predicted and measured gains, as values, as JSON and as text (docs/optimize.md).

Times are ns of an iteration in captures, so with the profiler's part on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from traceview.model.findings import MIN_GAIN
from traceview.model.units import duration, durations, plain, quantity, share, time_range
from traceview.report.json import Document, Shapes, names, rounded
from traceview.report.screen import PLAIN, Screen, left, wrap


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


MAX_EXPECTED = 6  # predictions that the text lists
NAME_WIDTH = 30  # a row has 80 columns


SHAPES: Shapes = {
    GainLedger: {
        **names("entries", "open_step", "inside_count"),
        "mean_error_fraction": rounded("mean_error"),
        "bias_fraction": rounded("bias"),
    },
    LedgerEntry: {
        **names("before", "after", "before_ns", "measured_ns", "expected", "verdict", "why"),
        **{f"{name}_fraction": rounded(name) for name in ("predicted_gain", "measured_gain", "error")},
        "inside": "is_inside",
    },
}
JSON = Document[GainLedger](SHAPES)
document, to_json = JSON.values, JSON.text


def render_step(step: OpenStep, screen: Screen = PLAIN) -> str:
    """Return the predictions of a step as text."""
    shown = [row for row in step.expected if row.iteration_ns <= (1 - MIN_GAIN) * step.iteration_ns][:MAX_EXPECTED]
    gains = "each change alone would give" if shown else f"no change is predicted to save {share(MIN_GAIN)} of it"
    head = f"{plain(step.recording, 60)} · {duration(step.iteration_ns)} per iteration; {gains}"
    return screen.text([[*wrap(head, "", "  ", screen.columns), *_expected_lines(step, shown)]])


def _expected_lines(step: OpenStep, shown: Sequence[ExpectedTime]) -> Iterator[str]:
    for row, time in zip(shown, durations([row.iteration_ns for row in shown]), strict=True):
        gain = f"{row.iteration_ns / step.iteration_ns - 1:+.0%}"
        between = time_range(row.low_ns, row.high_ns)
        yield f"  {left(plain(row.change, 100), NAME_WIDTH)}{time:>11}{gain:>6}{between:>20}"


def render_entry(entry: LedgerEntry, screen: Screen = PLAIN) -> str:
    """Return what a change gave as text."""
    expected: ExpectedTime = entry.expected
    measured = f"went from {time_range(entry.before_ns, entry.measured_ns)} ({_change(entry.measured_gain)})"
    predicted = f"predicted {duration(expected.iteration_ns)} ({_change(entry.predicted_gain)})"
    inside = "inside" if entry.is_inside else "outside"
    error = f"error {entry.error:+.1%}, {inside} the range {time_range(expected.low_ns, expected.high_ns)}"
    verdict = f"{entry.verdict}: {plain(entry.why, 200)}"
    text = f"{plain(expected.change, 100)}: an iteration {measured}, {predicted}; {error}; {verdict}"
    return screen.text([wrap(text, "", "  ", screen.columns)])


def render(ledger: GainLedger, screen: Screen = PLAIN) -> str:
    """Return the ledger and its error as text."""
    if not ledger.entries:
        return screen.text([["The ledger has no change yet."]])
    title = f"  {'change':<{NAME_WIDTH}}{'before':>10}{'predicted':>11}{'measured':>10}{'error':>8}  range"
    lines = [
        f"  {left(plain(entry.expected.change, 100), NAME_WIDTH)}{duration(entry.before_ns):>10}"
        f"{duration(entry.expected.iteration_ns):>11}{duration(entry.measured_ns):>10}{entry.error:>+8.1%}  "
        f"{'inside' if entry.is_inside else 'outside'}"
        for entry in ledger.entries
    ]
    assert ledger.mean_error is not None and ledger.bias is not None, "the ledger has entries"
    summary = (
        f"{quantity(len(ledger.entries), 'change')}: mean error {share(ledger.mean_error)}, bias {ledger.bias:+.1%}, "
        f"{ledger.inside_count} inside the predicted range"
    )
    return screen.text([["Predicted and measured time of an iteration", title, *lines], [summary]])


def _change(gain: float) -> str:
    return f"{-gain:+.0%}"
