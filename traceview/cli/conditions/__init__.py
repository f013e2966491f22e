"""The grammar of `--fail-if`: QUANTITY OPERATOR NUMBER[UNIT]. Each other module holds one subject's quantities.

Operators: > >= < <= == !=. Units: % ns us ms s. A number without a unit is in ns, or a count.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import NoReturn

from traceview.cli.times import NANOSECONDS
from traceview.errors import RequestError

CONDITION = re.compile(
    r"\s*([\w.]+)\s*(>=|<=|==|!=|>|<)\s*([+-]?)([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(%|ns|us|µs|ms|s)?\s*"
)
OPERATORS: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison. `unit` is "%", a unit of time, or "" for a count or ns."""

    text: str
    quantity: str
    operator: str
    bound: Decimal
    unit: str

    def holds(self, figure: Decimal) -> bool:
        """Return whether the comparison holds for a figure: a percentage for "%", else ns or a count."""
        return OPERATORS[self.operator](figure, self.bound * NANOSECONDS.get(self.unit, 1))

    def refuse(self, reason: str) -> NoReturn:
        """Raise RequestError with the condition and the reason."""
        raise RequestError(f"--fail-if {self.text!r}: {reason}")


def parse_condition(
    text: str, quantities: Collection[str], *, example: str, known: str = "", signed: bool = False
) -> Condition:
    """Parse one condition on one of `quantities`. `known` describes them, by default as a list.

    `signed` allows a sign before the number. Raises RequestError.
    """
    match = CONDITION.fullmatch(text)
    if not match or (match[3] and not signed):
        raise RequestError(
            f"--fail-if {text!r} is not a condition; write QUANTITY > NUMBER with %, ns, us, ms or s, "
            f"for example '{example}'"
        )
    quantity, comparison, sign, number, unit = match.groups()
    condition = Condition(text.strip(), quantity, comparison, Decimal(sign + number), unit or "")
    if quantity not in quantities:
        close = difflib.get_close_matches(quantity, quantities, n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(close)}?" if close else f"use one of {known or ', '.join(quantities)}"
        condition.refuse(f"unknown quantity {quantity!r}; {hint}")
    return condition
