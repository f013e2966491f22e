"""`compare --fail-if 'time > 3%'`: the quantities of a comparison.

A condition applies to the change: after minus before, per iteration. `time` is the mean time per iteration. Other times
are medians, and host figures means (a call in every tenth iteration has a median of 0). `%` refers to the base's mean
time for `time`, to its count for a count, and else to its median wall time. A decrease is negative: `time > -10%` holds
unless AFTER is 10% faster. A time of kernels is the mean per iteration, or per call, and its `%` refers to the
base's time of these kernels. Only `--fail-on-regression` considers noise.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from traceview.cli.conditions import Condition, parse_condition, unknown_kernel
from traceview.comparison.sample import COUNTS, HOST_FIGURES, PARTS, SYNCS
from traceview.errors import RequestError
from traceview.model.analysis import CAUSES
from traceview.model.comparison import CaptureDifference, ComparedCapture, Comparison, KernelChange
from traceview.model.units import exact_duration

CALL_FIGURES = tuple(f"{kind}.{figure}" for kind in SYNCS for figure in ("count", "blocked"))
API_FIGURES = tuple(name for name in HOST_FIGURES if name not in ("kernels", "copies"))
RECORDED_CALLS = ("launches", *(f"{kind}.count" for kind in SYNCS))
KNOWN_CAUSES = tuple(f"idle.{cause}" for cause in CAUSES if cause not in ("profiler", "unknown"))
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

    Raises RequestError for a name that no kernel has, and for a quantity that was not measured in both captures.
    """
    for condition in conditions:
        if condition.kernel:
            _check_name(condition.kernel[0], comparison)
        for against in comparison.against:
            for capture, means in (
                (comparison.base, {name: change.mean_before for name, change in against.figures().items()}),
                (against.capture, {name: change.mean_after for name, change in against.figures().items()}),
            ):
                if reason := _not_measured(condition.quantity, capture, means):
                    condition.refuse(f"{condition.quantity} was not measured in {capture.file}: {reason}")
            unit, difference, total = _change(condition, against)
            value = difference * 100 / total if condition.unit == "%" and total else difference
            if condition.unit == "%" and not total and difference:
                value = Decimal("Infinity").copy_sign(difference)  # a change from nothing
            if condition.holds(value):
                text = _change_text(unit, difference, total, is_call=condition.is_per_call)
                yield f"{condition.text}: {condition.quantity} changed by {text} in {against.capture.file}"


def _not_measured(quantity: str, capture: ComparedCapture, means: Mapping[str, float]) -> str | None:
    """Return why a capture, with these mean figures, does not show a quantity; None if it does."""
    if quantity in ("time", "wall"):
        return None
    if quantity in API_FIGURES and not any(means[name] for name in RECORDED_CALLS):
        return "it holds no CUDA API calls"
    if not capture.devices and quantity not in (*CALL_FIGURES, "launches"):
        return "it holds no GPU work"
    if quantity in KNOWN_CAUSES and means["idle.unknown"] and means["idle.unknown"] >= means["idle"]:
        return "it does not show what launched the work, so the causes of idle time are unknown"
    return None


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
