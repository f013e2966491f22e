"""`compare --fail-if 'time > 3%'`: the quantities of a comparison.

A condition applies to the change: after minus before, per iteration. `time` is the mean time per iteration. Other times
are medians, and host figures means (a call in every tenth iteration has a median of 0). `%` refers to the base's mean
time for `time`, to its count for a count, and else to its median wall time. A decrease is negative: `time > -10%` holds
unless AFTER is 10% faster. Only `--fail-on-regression` considers noise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from decimal import Decimal

from traceview.cli.conditions import Condition, parse_condition
from traceview.comparison.sample import COUNTS, HOST_FIGURES, PARTS
from traceview.model.comparison import CaptureDifference, Comparison, FigureChange

QUANTITIES = ("time", "wall", "idle", *PARTS, *HOST_FIGURES)


def parse(text: str) -> Condition:
    """Parse one condition. Raises RequestError."""
    condition = parse_condition(text, QUANTITIES, example="time > 3%", signed=True)
    if condition.quantity in COUNTS and condition.unit not in ("", "%"):
        condition.refuse(f"{condition.quantity} is a count; compare it with a plain number or %")
    return condition


def failures(conditions: Iterable[Condition], comparison: Comparison) -> Iterator[str]:
    """Yield one line for each condition and capture where it holds, with the change."""
    for condition in conditions:
        for against in comparison.against:
            change = against.figures()[condition.quantity]
            difference, total = _difference(change), _total(change, against)
            value = difference * 100 / total if condition.unit == "%" and total else difference
            if condition.unit == "%" and not total and difference:
                value = Decimal("Infinity").copy_sign(difference)  # a change from nothing
            if condition.holds(value):
                text = _change_text(change, difference, total)
                yield f"{condition.text}: {condition.quantity} changed by {text} in {against.capture.file}"


def _difference(change: FigureChange) -> Decimal:
    if change.name in HOST_FIGURES:
        return Decimal(str(change.mean_after)) - Decimal(str(change.mean_before))
    return Decimal(change.difference)


def _total(change: FigureChange, against: CaptureDifference) -> Decimal:
    """Return the figure that is 100%."""
    if change.unit == "count":
        return Decimal(str(change.mean_before))
    return Decimal((change if change.name == "time" else against.wall).before)


def _change_text(change: FigureChange, difference: Decimal, total: Decimal) -> str:
    amount = f"{difference:+.2f}" if change.unit == "count" else f"{difference / 1_000_000:+.3f} ms"
    share = f" ({difference * 100 / total:+.2f}%)" if total else ""
    return f"{amount}{share} per iteration"
