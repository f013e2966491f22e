"""`--fail-if 'exposed_h2d > 5%'`: a comparison of one figure with one bound, for continuous integration.

    QUANTITY OPERATOR NUMBER[UNIT]     operators > >= < <= == !=; units % ns us ms s; none: ns, or a count

A quantity of a device is compared on each device, and fails when it holds on any. `%` is of the device's
window; of the longest window for what a process's calls did; of iteration.wall.median for an iteration's
figures. Which quantities there are stands in traceview.quantities.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from traceview.errors import RequestError
from traceview.model import Analysis
from traceview.moment import NANOSECONDS
from traceview.quantities import KNOWN, Value, is_count, is_share, values

FORM = re.compile(r"\s*([\w.]+)\s*(>=|<=|==|!=|>|<)\s*([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(%|ns|us|µs|ms|s)?\s*")
COMPARE: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison; `unit` is "%", a unit of time, or "" for a count or ns."""

    text: str
    quantity: str
    compare: str
    bound: Decimal
    unit: str


def parse(text: str) -> Check:
    """Read one comparison; raises RequestError that says what would be understood."""
    found = FORM.fullmatch(text)
    if not found:
        raise RequestError(
            f"--fail-if {text!r} is not a comparison; write QUANTITY > NUMBER with %, ns, us, ms or s, "
            "as in 'exposed_h2d > 5%'"
        )
    quantity, compare, number, unit = found.groups()
    if quantity not in KNOWN:
        raise RequestError(f"--fail-if {text!r}: no quantity is called {quantity!r}; {_hint(quantity)}")
    if is_count(quantity) and unit is not None:
        raise RequestError(f"--fail-if {text!r}: {quantity} is a count; compare it with a plain number")
    if is_share(quantity) and unit != "%":
        raise RequestError(f"--fail-if {text!r}: {quantity} is a share; compare it with a percentage")
    return Check(text.strip(), quantity, compare, Decimal(number), unit or "")


def _hint(quantity: str) -> str:
    close = difflib.get_close_matches(quantity, KNOWN, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    # The figures of iterations are many and alike.
    short = [name for name in KNOWN if not name.startswith("iteration.")]
    return f"known are {', '.join(short)} and iteration.FIGURE.median, .p5 or .p95"


def failures(checks: tuple[Check, ...], analysis: Analysis) -> Iterator[str]:
    """Yield one line for each check and device where the comparison holds, with both values.

    Raises RequestError where a figure that a check needs was not measured.
    """
    for check in checks:
        for value in values(check.quantity, analysis):
            found = _comparable(check, value)
            if COMPARE[check.compare](found, check.bound * NANOSECONDS.get(check.unit, 1)):
                yield f"{check.text}: {check.quantity} is {_shown(check, value)}{_where(value)}"


def _comparable(check: Check, value: Value) -> Decimal:
    if check.unit != "%":
        return Decimal(value.figure)
    return Decimal(100 * value.figure) / value.whole if value.whole else Decimal(0)


def _shown(check: Check, value: Value) -> str:
    if is_count(check.quantity):
        return str(value.figure)
    time = f"{value.figure / 1e6:.3f} ms"
    if check.unit != "%":
        return time
    return f"{_comparable(check, value):.3f}% ({time} of {value.whole / 1e6:.3f} ms)"


def _where(value: Value) -> str:
    return f" on {value.device}" if value.device else ""
