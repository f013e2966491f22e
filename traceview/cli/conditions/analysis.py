"""`analyze --fail-if 'exposed_h2d > 5%'`: the quantities of one analysis.

A condition on a quantity of devices holds when it holds for any device. Devices and calls count in the steady part, or
in the window if Analysis.whole. `%` refers to this part of the device, for calls to the longest part, for figures of an
iteration to the median wall time, and for an overlap to the busy time of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Literal

import polars as pl

from traceview.cli.conditions import Condition, parse_condition, unknown_kernel
from traceview.errors import RequestError
from traceview.frozen import frozen
from traceview.measure.kernels import kernel_totals, shape_kinds
from traceview.model.analysis import ITERATION_FIGURES, Analysis, NotMeasured, SyncUse
from traceview.model.devices import CAUSES, DevicePart
from traceview.model.findings import SEVERITIES
from traceview.model.trace import KINDS
from traceview.units import exact_duration

SYNC_FIGURES = ("blocked", "waited", "starved", "refill", "cost")
ITERATION_COUNT = "iteration.count"
KERNEL_FIGURES = ("", "per_call", "total")


@frozen
class Value:
    """A figure in ns or a count, the total that is 100%, and its device ("": the whole capture)."""

    figure: int
    total: int
    device: str = ""


@frozen
class Quantity:
    """A quantity: what its figures are, and a function that yields a value for each device or for the capture."""

    kind: Literal["time", "count", "share"]
    values: Callable[[Analysis], Iterable[Value]]


def _device_quantity(kind: Literal["time", "count"], figure: Callable[[DevicePart], int]) -> Quantity:
    def values(analysis: Analysis) -> Iterator[Value]:
        for device in analysis.devices:
            use = analysis.part(device)
            yield Value(figure(use), use.window.length, device.id)

    return Quantity(kind, values)


def _share_quantity(part_and_total: Callable[[DevicePart], tuple[int, int]]) -> Quantity:
    def values(analysis: Analysis) -> Iterator[Value]:
        for device in analysis.devices:
            part, total = part_and_total(analysis.part(device))
            if total:  # a device without such work has no share
                yield Value(part, total, device.id)

    return Quantity("share", values)


def _capture_quantity(kind: Literal["time", "count"], figure: Callable[[Analysis], int]) -> Quantity:
    def values(analysis: Analysis) -> list[Value]:
        longest = max((analysis.part(device).window.length for device in analysis.devices), default=0)
        return [Value(figure(analysis), longest if kind == "time" else 0)]

    return Quantity(kind, values)


def _exposed(*kinds: str) -> Quantity:
    return _device_quantity("time", lambda device: sum(use.exposed_ns for use in device.copies if use.kind in kinds))


def _overlap(kind: str) -> Quantity:
    def part_and_total(device: DevicePart) -> tuple[int, int]:
        copies = [use for use in device.copies if use.kind == kind]
        return sum(use.overlapped_ns for use in copies), sum(use.busy_ns for use in copies)

    return _share_quantity(part_and_total)


def _idle(cause: str) -> Quantity:
    return _device_quantity("time", lambda device: device.gaps.causes[cause])


def _calls(kind: Literal["time", "count"], group: str, figure: str) -> Quantity:
    def value(analysis: Analysis) -> int:
        use: SyncUse = getattr(analysis.host, group)
        steady = analysis.iterations
        if analysis.whole or isinstance(steady, NotMeasured) or use.frame.is_empty():
            return int(getattr(use, figure))
        begins = pl.col("start").is_between(steady.steady.start, steady.steady.end, closed="left")
        calls = use.frame.filter(begins)
        return len(calls) if kind == "count" else int(calls[figure.removesuffix("_ns")].sum())

    return _capture_quantity(kind, value)


def _findings(severity: str) -> Quantity:
    return _capture_quantity(
        "count", lambda analysis: sum(finding.severity == severity for finding in analysis.findings)
    )


def _finding_costs(analysis: Analysis) -> Iterator[Value]:
    for device in analysis.devices:
        parts = (part for finding in analysis.findings for part in finding.by_device)
        cost = sum(part.cost_ns for part in parts if part.device == device.id)
        yield Value(cost, analysis.part(device).window.length, device.id)


def _iteration(figure: str, statistic: str) -> Quantity:
    def values(analysis: Analysis) -> list[Value]:
        iterations = analysis.iterations
        if isinstance(iterations, NotMeasured):
            quantity = f"iteration.{figure}.{statistic}"
            raise RequestError(f"{analysis.info.file}: --fail-if {quantity} was not measured: {iterations.reason}")
        return [Value(int(getattr(iterations.spreads[f"{figure}_ns"], statistic)), iterations.wall_ns.median)]

    return Quantity("time", values)


def _iteration_count(analysis: Analysis) -> int:
    iterations = analysis.iterations
    return 0 if isinstance(iterations, NotMeasured) else iterations.count - iterations.skipped


def _mfu(analysis: Analysis) -> Iterator[Value]:
    """Yield the time that the operations of an iteration take at the peak, as a part of the iteration's time."""
    for row in analysis.tables["speed_of_light"].rows:
        if row.mfu is None:
            raise RequestError(f"{analysis.info.file}: --fail-if mfu was not measured: {row.unknown_because}")
        yield Value(round(row.mfu * row.time_ns), row.time_ns, row.device)


QUANTITIES: Mapping[str, Quantity] = {
    "busy": _device_quantity("time", lambda device: device.busy_ns),
    "idle": _device_quantity("time", lambda device: device.idle_ns),
    **{f"idle.{cause}": _idle(cause) for cause in CAUSES},
    "compute": _device_quantity("time", lambda device: device.compute_ns),
    "communication": _device_quantity("time", lambda device: device.communication_ns),
    **{f"exposed_{kind}": _exposed(kind) for kind in KINDS},
    "exposed_copies": _exposed(*KINDS),
    "exposed_communication": _device_quantity("time", lambda device: device.communication.exposed_ns),
    "findings.cost": Quantity("time", _finding_costs),
    **{f"overlap_{kind}": _overlap(kind) for kind in KINDS},
    "overlap_communication": _share_quantity(
        lambda device: (device.communication.overlapped_ns, device.communication.busy_ns)
    ),
    "mfu": Quantity("share", _mfu),
    "kernels": _device_quantity("count", lambda device: device.kernel_count),
    "gaps": _device_quantity("count", lambda device: device.gaps.count),
    **{
        f"{group}.{figure}": _calls("time", group, f"{figure}_ns")
        for group in ("sync", "implicit_sync")
        for figure in SYNC_FIGURES
    },
    "sync.count": _calls("count", "sync", "count"),
    "implicit_sync.count": _calls("count", "implicit_sync", "count"),
    "findings.count": _capture_quantity("count", lambda analysis: len(analysis.findings)),
    **{f"findings.{severity}": _findings(severity) for severity in SEVERITIES},
    "notes.count": _capture_quantity("count", lambda analysis: len(analysis.notes)),
    "unmatched": _capture_quantity("count", lambda analysis: analysis.unmatched.kernels + analysis.unmatched.copies),
    ITERATION_COUNT: _capture_quantity("count", _iteration_count),
    **{
        f"iteration.{figure}.{statistic}": _iteration(figure, statistic)
        for figure in (*ITERATION_FIGURES, *(f"idle_{cause}" for cause in CAUSES))
        for statistic in ("median", "p5", "p95")
    },
}


def _kernels(name: str, figure: str) -> Quantity:
    """Return the time of the kernels with a name: per iteration, per call or in total."""

    def values(analysis: Analysis) -> Iterator[Value]:
        shapes = analysis.trace.shapes
        labels = [kind.label for kind in shape_kinds(shapes)]
        names = list(zip(shapes["name"].fill_null(""), labels, strict=True))
        rows = [row for row, known in enumerate(names) if name and name in known]
        if not rows:
            known = {text for both in names for text in both if text}
            raise RequestError(f"{analysis.info.file}: {unknown_kernel(name, known)}")
        times = 1 if figure else _iterations_in_part(analysis, name)
        for device in analysis.devices:
            window = analysis.part(device).window
            count, total = kernel_totals(analysis.trace, device.device, window, rows)
            if figure != "per_call":
                yield Value(total // times, window.length // times, device.id)
            elif count:
                yield Value(total // count, 0, device.id)

    return Quantity("time", values)


def _iterations_in_part(analysis: Analysis, name: str) -> int:
    iterations = analysis.iterations
    if isinstance(iterations, NotMeasured):
        quantity = f'kernel:"{name}"'
        raise RequestError(
            f"{analysis.info.file}: --fail-if {quantity} is a time per iteration: {iterations.reason}; "
            "use .per_call or .total"
        )
    return iterations.count if analysis.whole else iterations.count - iterations.skipped


def _quantity(condition: Condition) -> Quantity:
    return _kernels(*condition.kernel) if condition.kernel else QUANTITIES[condition.quantity]


def parse(text: str) -> Condition:
    """Parse one condition. Raises RequestError."""
    # The figures of iterations are many; the hint names their pattern.
    short = [name for name in QUANTITIES if not name.startswith("iteration.")]
    condition = parse_condition(
        text,
        QUANTITIES,
        example="exposed_h2d > 5%",
        known=f'{", ".join(short)}, {ITERATION_COUNT}, iteration.FIGURE.median, .p5, .p95 or kernel:"NAME"',
        kernels=KERNEL_FIGURES,
    )
    if condition.is_per_call and condition.unit == "%":
        condition.refuse("the time of a call is not a share; compare it with ns, us, ms or s")
    kind = _quantity(condition).kind
    if kind == "count" and condition.unit:
        condition.refuse(f"{condition.quantity} is a count; compare it with a plain number")
    if kind == "share" and condition.unit != "%":
        condition.refuse(f"{condition.quantity} is a share; compare it with a percentage")
    return condition


def failures(conditions: Iterable[Condition], analysis: Analysis) -> Iterator[str]:
    """Yield one line for each condition and device where it holds, with the figure.

    Raises RequestError where a figure was not measured.
    """
    for condition in conditions:
        for value in _quantity(condition).values(analysis):
            if condition.holds(_comparable(condition, value)):
                where = f" on {value.device}" if value.device else ""
                yield f"{condition.text}: {condition.quantity} is {_value_text(condition, value)}{where}"


def _comparable(condition: Condition, value: Value) -> Decimal:
    """Return the figure in the unit of the condition: a percentage of the total, ns or a count."""
    if condition.unit != "%":
        return Decimal(value.figure)
    return Decimal(100 * value.figure) / value.total if value.total else Decimal(0)


def _value_text(condition: Condition, value: Value) -> str:
    if _quantity(condition).kind == "count":
        return str(value.figure)
    time = exact_duration(value.figure)
    if condition.unit != "%":
        return time
    return f"{_comparable(condition, value):.3f}% ({time} of {exact_duration(value.total)})"
