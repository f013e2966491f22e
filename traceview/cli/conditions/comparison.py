"""`compare --fail-if 'time > 3%'`: the quantities of a comparison.

A condition applies to the change: after minus before, per iteration. `time` is the mean time per iteration. Other times
are medians, and host figures means (a call in every tenth iteration has a median of 0). `%` refers to the base's mean
time for `time`, to its count for a count, and else to its median wall time. A decrease is negative: `time > -10%` holds
unless AFTER is 10% faster. A time of kernels is the mean per iteration, or per call, and its `%` refers to the
base's time of these kernels. Only `--fail-on-regression` considers noise.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal

from traceview.cli.conditions import Condition, parse_condition, unknown_kernel
from traceview.comparison.sample import COUNTS, HOST_FIGURES, PARTS
from traceview.errors import RequestError
from traceview.model.comparison import CaptureDifference, Comparison, KernelChange
from traceview.units import exact_duration

QUANTITIES = ("time", "wall", "idle", *PARTS, *HOST_FIGURES)
KERNEL_FIGURES = ("", "per_call")


def parse(text: str) -> Condition:
    """Parse one condition. Raises RequestError."""
    condition = parse_condition(text, QUANTITIES, example="time > 3%", signed=True, kernels=KERNEL_FIGURES)
    if condition.quantity in COUNTS and condition.unit not in ("", "%"):
        condition.refuse(f"{condition.quantity} is a count; compare it with a plain number or %")
    return condition


def failures(conditions: Iterable[Condition], comparison: Comparison) -> Iterator[str]:
    """Yield one line for each condition and capture where it holds, with the change.

    Raises RequestError for a name that no kernel has.
    """
    for condition in conditions:
        if condition.kernel:
            _check_name(condition.kernel[0], comparison)
        for against in comparison.against:
            unit, difference, total = _change(condition, against)
            value = difference * 100 / total if condition.unit == "%" and total else difference
            if condition.unit == "%" and not total and difference:
                value = Decimal("Infinity").copy_sign(difference)  # a change from nothing
            if condition.holds(value):
                text = _change_text(unit, difference, total, is_call=condition.is_per_call)
                yield f"{condition.text}: {condition.quantity} changed by {text} in {against.capture.file}"


def _change(condition: Condition, against: CaptureDifference) -> tuple[str, Decimal, Decimal]:
    """Return the unit of a quantity, its change, and the figure that is 100%."""
    if condition.kernel:
        before, after = _kernel_times(*condition.kernel, against)
        return "ns", after - before, before
    change = against.figures()[condition.quantity]
    if change.name in HOST_FIGURES:
        difference = Decimal(str(change.mean_after)) - Decimal(str(change.mean_before))
    else:
        difference = Decimal(change.difference)
    if change.unit == "count":
        return change.unit, difference, Decimal(str(change.mean_before))
    return change.unit, difference, Decimal((change if change.name == "time" else against.wall).before)


def _kernel_times(name: str, figure: str, against: CaptureDifference) -> tuple[Decimal, Decimal]:
    """Return the mean time per iteration, or per call, of the kernels with a name before and after."""
    kernels = [kernel for kernel in against.kernels if name in (kernel.name, kernel.label)]
    before, after = (_kernel_time(kernels, figure, side) for side in ("mean_before", "mean_after"))
    return before, after


def _kernel_time(kernels: Sequence[KernelChange], figure: str, side: str) -> Decimal:
    if not figure:
        return Decimal(sum(getattr(kernel.time, side) for kernel in kernels))
    calls = [getattr(kernel.count, side) for kernel in kernels]
    times = [getattr(kernel.per_call, side) for kernel in kernels]
    return Decimal(round(sum(map(operator.mul, calls, times)) / (sum(calls) or 1)))


def _check_name(name: str, comparison: Comparison) -> None:
    kernels = [kernel for against in comparison.against for kernel in against.kernels]
    known = {text for kernel in kernels for text in (kernel.name, kernel.label)}
    if name not in known:
        raise RequestError(unknown_kernel(name, known))


def _change_text(unit: str, difference: Decimal, total: Decimal, *, is_call: bool) -> str:
    time = f"{'+' if difference > 0 else ''}{exact_duration(round(difference))}"
    share = f" ({difference * 100 / total:+.2f}%)" if total else ""
    return f"{f'{difference:+.2f}' if unit == 'count' else time}{share} per {'call' if is_call else 'iteration'}"
