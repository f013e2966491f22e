"""The grammar of `--fail-if`: QUANTITY OPERATOR NUMBER[UNIT]. Each other module holds one subject's quantities.

Operators: > >= < <= == !=. Units: % ns us ms s. A number without a unit is in ns, or a count. A quantity of kernels is
kernel:"NAME" or kernel:"NAME".FIGURE, where NAME is a short name or a label; all kernels that have it count together.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from typing import NamedTuple, NoReturn

from traceview.errors import RequestError
from traceview.model.times import NANOSECONDS
from traceview.model.units import exact_duration

CONDITION = re.compile(
    r"\s*([\w.]+|kernel:\"[^\"]*\"(?:\.\w+)?)\s*(>=|<=|==|!=|>|<)\s*([+-]?)([0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(%|ns|us|µs|ms|s)?\s*"
)
KERNEL = re.compile(r'kernel:"(.*)"(?:\.(\w+))?')
OPERATORS: Mapping[str, Callable[[Decimal, Decimal], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


class ConditionValue(NamedTuple):
    """A figure in ns or a count, the total that is 100%, and its device or rank ("": all)."""

    figure: int
    total: int = 0
    place: str = ""


class Condition(NamedTuple):
    """One comparison. `unit` is "%", a unit of time, or "" for a count or ns."""

    text: str
    quantity: str
    operator: str
    bound: Decimal
    unit: str

    def holds(self, figure: Decimal) -> bool:
        """Return whether the comparison holds for a figure: a percentage for "%", else ns or a count."""
        return OPERATORS[self.operator](figure, self.bound * NANOSECONDS.get(self.unit, 1))

    @property
    def kernel(self) -> tuple[str, str] | None:
        """The name and the figure ("" for the time per iteration) of a quantity of kernels; None for others."""
        match = KERNEL.fullmatch(self.quantity)
        return (match[1], match[2] or "") if match else None

    @property
    def is_per_call(self) -> bool:
        """Whether the quantity is the time of one call, which is short."""
        return self.kernel is not None and self.kernel[1] == "per_call"

    def known(self, values: Iterable[ConditionValue]) -> list[ConditionValue]:
        """Return the values that can be compared: those with a total if the unit is "%"."""
        return [value for value in values if value.total or self.unit != "%"]

    def in_unit(self, value: ConditionValue) -> Decimal:
        """Return a known value as `holds` takes it: a percentage for "%", else ns or a count."""
        return Decimal(100 * value.figure) / value.total if self.unit == "%" else Decimal(value.figure)

    def line(self, value: ConditionValue, kind: str, more: str = "") -> str:
        """Return one line on a known value of the quantity, for which the condition holds."""
        text = str(value.figure) if kind == "count" else exact_duration(value.figure)
        if self.unit == "%":
            text = f"{self.in_unit(value):.3f}% ({text} of {exact_duration(value.total)})"
        place = f" on {value.place}{more}" if value.place else ""
        return f"{self.text}: {self.quantity} is {text}{place}"

    def check_unit(self, kind: str) -> None:
        """Raise RequestError if the unit does not fit the kind of the quantity: "time", "count" or "share"."""
        if kind == "count" and self.unit:
            self.refuse(f"{self.quantity} is a count; compare it with a plain number")
        if kind == "share" and self.unit != "%":
            self.refuse(f"{self.quantity} is a share; compare it with a percentage")

    def refuse(self, reason: str) -> NoReturn:
        """Raise RequestError with the condition and the reason."""
        raise RequestError(f"--fail-if {self.text!r}: {reason}")


def _similar(name: str, names: Collection[str], cutoff: float) -> list[str]:
    """Return up to three of the names, those most like `name`; `cutoff` is the least similarity, 0 to 1."""
    import difflib  # for errors alone

    return difflib.get_close_matches(name, names, n=3, cutoff=cutoff)


def unknown_kernel(name: str, names: Collection[str]) -> str:
    """Return the error of a name that no kernel has, with similar names."""
    close = _similar(name, sorted(set(names)), 0.5)
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "the kernel table lists the names"
    return f'--fail-if kernel:"{name}": no kernel has this name; {hint}'


def parse_condition(
    text: str,
    quantities: Collection[str],
    *,
    example: str,
    known: str = "",
    signed: bool = False,
    kernels: Collection[str] = (),
) -> Condition:
    """Parse one condition on one of `quantities`. `known` describes them, by default as a list.

    `signed` allows a sign before the number, `kernels` names the figures of kernels. Raises RequestError.
    """
    match = CONDITION.fullmatch(text)
    if not match or (match[3] and not signed):
        raise RequestError(
            f"--fail-if {text!r} is not a condition; write QUANTITY > NUMBER with %, ns, us, ms or s, "
            f"for example '{example}'"
        )
    quantity, comparison, sign, number, unit = match.groups()
    condition = Condition(text.strip(), quantity, comparison, Decimal(sign + number), unit or "")
    if condition.kernel and kernels:
        if condition.kernel[1] not in kernels:
            condition.refuse(f'unknown figure {condition.kernel[1]!r}; use kernel:"NAME"{" or .".join(kernels)}')
    elif quantity not in quantities:
        close = _similar(quantity, quantities, 0.6)
        hint = f"did you mean {' or '.join(close)}?" if close else f"use one of {known or ', '.join(quantities)}"
        condition.refuse(f"unknown quantity {quantity!r}; {hint}")
    return condition
