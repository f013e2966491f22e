"""`--fail-if 'exposed_h2d > 5%'`: a comparison of one figure with one bound, for continuous integration.

    QUANTITY OPERATOR NUMBER[UNIT]     operators > >= < <= == !=; units % ns us ms s; none: ns, or a count

A quantity of a device is compared on each device, and fails when it holds on any. `%` is of the device's
window; of the longest window for what a process's calls did; of iteration.wall.median for an iteration's
figures. Which quantities there are stands in traceview.cli.conditions.quantities.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from traceview.cli.conditions import grammar
from traceview.cli.conditions.grammar import Bound
from traceview.cli.conditions.quantities import KNOWN, Value, is_count, is_share, values
from traceview.errors import RequestError
from traceview.model.analysis import Analysis


def parse(text: str) -> Bound:
    """Read one comparison; raises RequestError that says what would be understood."""
    check = grammar.read(
        text,
        signed=False,
        expected="is not a comparison; write QUANTITY > NUMBER with %, ns, us, ms or s, as in 'exposed_h2d > 5%'",
    )
    quantity = check.quantity
    if quantity not in KNOWN:
        raise RequestError(f"--fail-if {text!r}: no quantity is called {quantity!r}; {_hint(quantity)}")
    if is_count(quantity) and check.unit:
        raise RequestError(f"--fail-if {text!r}: {quantity} is a count; compare it with a plain number")
    if is_share(quantity) and check.unit != "%":
        raise RequestError(f"--fail-if {text!r}: {quantity} is a share; compare it with a percentage")
    return check


def _hint(quantity: str) -> str:
    # The figures of iterations are many and alike.
    short = [name for name in KNOWN if not name.startswith("iteration.")]
    known = f"known are {', '.join(short)} and iteration.FIGURE.median, .p5 or .p95"
    return grammar.like(quantity, KNOWN) or known


def failures(checks: tuple[Bound, ...], analysis: Analysis) -> Iterator[str]:
    """Yield one line for each check and device where the comparison holds, with both values.

    Raises RequestError where a figure that a check needs was not measured.
    """
    for check in checks:
        for value in values(check.quantity, analysis):
            if check.holds(_comparable(check, value)):
                yield f"{check.text}: {check.quantity} is {_shown(check, value)}{_where(value)}"


def _comparable(check: Bound, value: Value) -> Decimal:
    if check.unit != "%":
        return Decimal(value.figure)
    return Decimal(100 * value.figure) / value.whole if value.whole else Decimal(0)


def _shown(check: Bound, value: Value) -> str:
    if is_count(check.quantity):
        return str(value.figure)
    time = f"{value.figure / 1e6:.3f} ms"
    if check.unit != "%":
        return time
    return f"{_comparable(check, value):.3f}% ({time} of {value.whole / 1e6:.3f} ms)"


def _where(value: Value) -> str:
    return f" on {value.device}" if value.device else ""
