"""QUANTITY OPERATOR NUMBER[UNIT]: one figure held against one bound, as `--fail-if` writes it.

Operators > >= < <= == !=; units % ns us ms s; none: ns, or a count.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from traceview.cli.times import NANOSECONDS
from traceview.errors import RequestError

FORM = re.compile(r"\s*([\w.]+)\s*(>=|<=|==|!=|>|<)\s*([+-]?)([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(%|ns|us|µs|ms|s)?\s*")
COMPARE: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Bound:
    """One comparison; `unit` is "%", a unit of time, or "" for a count or ns."""

    text: str
    quantity: str
    compare: str
    bound: Decimal
    unit: str

    def holds(self, found: Decimal) -> bool:
        """Return whether a figure is on the side that is asked for: in ns for times, a percentage for "%"."""
        return COMPARE[self.compare](found, self.bound * NANOSECONDS.get(self.unit, 1))


def read(text: str, *, signed: bool, expected: str) -> Bound:
    """Read a comparison; `signed` lets the number have a sign. Raises RequestError that says what is `expected`."""
    found = FORM.fullmatch(text)
    if not found or (found[3] and not signed):
        raise RequestError(f"--fail-if {text!r} {expected}")
    quantity, compare, sign, number, unit = found.groups()
    return Bound(text.strip(), quantity, compare, Decimal(sign + number), unit or "")


def like(quantity: str, known: Sequence[str]) -> str:
    """Return "did you mean ...?" for a quantity that is nearly known, "" for another."""
    close = difflib.get_close_matches(quantity, known, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(close)}?" if close else ""
