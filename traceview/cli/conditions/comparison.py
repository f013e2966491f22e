"""`--fail-if 'wall > 3%'`: one change held against one bound, for continuous integration.

    QUANTITY OPERATOR NUMBER[UNIT]     operators > >= < <= == !=; units % ns us ms s; none: ns, or a count

What is compared is after less before, per iteration: the difference of medians, or of means for what the
host did (a call in every tenth iteration has a median of 0). `%` is of the base's median wall for a time, of the
base's own count for a count. Below zero is less: `wall > -10%` fails unless it is 10% faster. Chance is not
asked; that is what --fail-on-regression does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from traceview.cli.conditions import grammar
from traceview.cli.conditions.grammar import Bound
from traceview.comparison.sample import COUNTS, HOST_FIGURES, PARTS
from traceview.errors import RequestError
from traceview.model.comparison import Against, Change, Comparison

KNOWN = ("wall", "idle", *PARTS, *HOST_FIGURES)


def parse(text: str) -> Bound:
    """Read one condition; raises RequestError that says what would be understood."""
    condition = grammar.read(
        text,
        signed=True,
        expected="is no condition on a change; write QUANTITY > NUMBER with %, ns, us, ms or s, "
        "as in 'wall > 3%' or 'exposed_h2d > 1ms'",
    )
    quantity = condition.quantity
    if quantity not in KNOWN:
        hint = grammar.like(quantity, KNOWN) or f"known are {', '.join(KNOWN)}"
        raise RequestError(f"--fail-if {text!r}: no quantity is called {quantity!r}; {hint}")
    if quantity in COUNTS and condition.unit not in ("", "%"):
        raise RequestError(f"--fail-if {text!r}: {quantity} is a count; compare it with a plain number or %")
    return condition


def failures(conditions: Sequence[Bound], comparison: Comparison) -> Iterator[str]:
    """Yield one line for each condition and capture where it holds, with what was found."""
    for condition in conditions:
        for one in comparison.against:
            change = one.figures()[condition.quantity]
            found, whole = _difference(change), _whole(change, one)
            value = found * 100 / whole if condition.unit == "%" and whole else found
            if condition.unit == "%" and not whole and found:
                value = Decimal("Infinity").copy_sign(found)  # from nothing to something
            if condition.holds(value):
                told = _shown(change, found, whole)
                yield f"{condition.text}: {condition.quantity} changed by {told} in {one.capture.file}"


def _difference(change: Change) -> Decimal:
    if change.name in HOST_FIGURES:
        return Decimal(str(change.mean_after)) - Decimal(str(change.mean_before))
    return Decimal(change.difference)


def _whole(change: Change, one: Against) -> Decimal:
    return Decimal(str(change.mean_before)) if change.unit == "count" else Decimal(one.wall.before)


def _shown(change: Change, found: Decimal, whole: Decimal) -> str:
    amount = f"{found:+.2f}" if change.unit == "count" else f"{found / 1_000_000:+.3f} ms"
    share = f" ({found * 100 / whole:+.2f}%)" if whole else ""
    return f"{amount}{share} per iteration"
