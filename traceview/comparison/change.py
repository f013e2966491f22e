"""Two samples of one figure into a FigureChange, and the change of the wall into a verdict."""

from __future__ import annotations

from typing import NamedTuple

from traceview.comparison import noise
from traceview.intervals import Times
from traceview.model.comparison import FigureChange

# Two runs of one program differ by about this much although the iterations of each agree (docs/compare.md).
LEAST = 0.01


def changed(name: str, unit: str, before: Times, after: Times, level: float) -> FigureChange:
    """Compare one figure; a difference whose interval holds zero is noise."""
    old, new = noise.median(before), noise.median(after)
    found = noise.interval(before, after, level)
    return FigureChange(
        name=name,
        unit=unit,
        before=old,
        after=new,
        difference=new - old,
        low=None if found is None else found.low,
        high=None if found is None else found.high,
        mean_before=_mean(before, unit),
        mean_after=_mean(after, unit),
        verdict=_direction(new - old, found),
    )


def _mean(values: Times, unit: str) -> float:
    """Return the mean: whole ns, rounded down, or a count with three decimals."""
    total = int(values.sum())
    return total // len(values) if unit == "ns" else round(total / len(values), 3)


def _direction(difference: int, found: noise.Interval | None) -> str:
    if found is None:
        return "unjudged" if difference else "noise"
    if found.low <= 0 <= found.high:
        return "noise"
    return "less" if difference < 0 else "more"


class Verdict(NamedTuple):
    """One of VERDICTS, the sentence that says why, and the confidence in the sign of the difference."""

    word: str
    why: str
    confidence: float | None


def judge(wall: FigureChange, before: Times, after: Times, least: float, level: float) -> Verdict:
    """Say whether an iteration became faster or slower, or whether that is noise; `least` is a share of before."""
    found = noise.interval(before, after, level)
    if found is None:
        fewest = min(len(before), len(after))
        told = "one stretch" if fewest == 1 else f"{fewest} iterations"
        return Verdict("unjudged", f"{told} cannot tell a change from noise; it takes {noise.FEWEST}", None)
    confidence = found.below if wall.difference < 0 else found.above if wall.difference > 0 else 0.0
    if found.low <= 0 <= found.high:
        return Verdict("noise", f"the {100 * level:g}% interval of the difference holds zero", confidence)
    if abs(wall.difference) < least * wall.before:
        return Verdict("noise", f"less than {100 * least:g}%: runs of one program differ by as much", confidence)
    word = "faster" if wall.difference < 0 else "slower"
    return Verdict(word, f"the {100 * level:g}% interval of the difference is on one side of zero", confidence)
