"""The grammar of `--fail-if`: QUANTITY OPERATOR NUMBER[UNIT]. Each other module holds one subject's quantities.

Operators: > >= < <= == !=. Units: % ns us ms s. A number without a unit is in ns, or a count. A quantity of kernels is
kernel:"NAME" or kernel:"NAME".FIGURE, where NAME is a short name or a label; all kernels that have it count together.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from typing import NamedTuple, NoReturn

from traceview.errors import RequestError
from traceview.model.times import NANOSECONDS

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
