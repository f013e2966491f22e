"""`analyze --fail-if 'exposed_h2d > 5%'`: the quantities of one analysis.

A condition on a quantity of devices holds when it holds for any device. Devices and calls count in the steady part, or
in the window if Analysis.whole. `%` refers to this part of the device, for calls to the longest part, for figures of an
iteration to the median wall time, and for an overlap to the busy time of its kind.

A quantity that was not measured is an error, not a condition that does not hold: each names what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

import polars as pl

from traceview.cli.conditions import Condition, ConditionValue, parse_condition, unknown_kernel
from traceview.errors import RequestError
from traceview.measure.activity import no_gpu_work
from traceview.measure.kernels import kernel_totals
from traceview.measure.kernels.families import shape_kinds
from traceview.model.analysis import CAUSES, ITERATION_FIGURES, Analysis, DeviceFigures, NotMeasured, SyncUse
from traceview.model.findings import SEVERITIES
from traceview.model.trace import KINDS

SYNC_FIGURES = ("blocked", "waited", "starved", "refill", "cost")
ITERATION_COUNT = "iteration.count"
KERNEL_FIGURES = ("", "per_call", "total")
API_TABLE = "CUPTI_ACTIVITY_KIND_RUNTIME"  # the table of CUDA API calls in ReportInfo.tables
NO_CALLS = "the capture holds no CUDA API calls; capture them with -t cuda"
NO_TIME = "no time of the GPU is in the part that counts; use --whole"


Need = Callable[[Analysis], str | None]  # why a figure was not measured; None if it was


def _gpu_work(analysis: Analysis) -> str | None:
    return None if analysis.devices else no_gpu_work(analysis.trace)


def _calls_recorded(analysis: Analysis) -> str | None:
    recorded = len(analysis.trace.api) or analysis.info.tables.get(API_TABLE) or analysis.host.sync.count
    return None if recorded or analysis.host.implicit_sync.count else NO_CALLS


def _iterations_found(analysis: Analysis) -> str | None:
    iterations = analysis.iterations
    return iterations.reason if isinstance(iterations, NotMeasured) else None


def _causes_known(analysis: Analysis) -> str | None:
    """Return why the causes of idle time are unknown: no launch is known, or its time cannot be compared."""
    for device in analysis.devices:
        causes = analysis.part(device).gaps.causes
        if causes["unknown"] and causes["unknown"] + causes["profiler"] == sum(causes.values()):
            return f"the capture does not show what launched the work of {device.id}, so the causes are unknown"
    return None


def _kernels_apart(analysis: Analysis) -> str | None:
    """Return why kernels were not counted: those of a graph that was traced whole are not in the capture."""
    return next((note.text for note in analysis.notes if note.id == "whole_graphs"), None)


class Quantity(NamedTuple):
    """A quantity: what its figures are, and a function that yields a value for each device or for the capture.

    Each function in `needs` returns the reason why the figures were not measured, or None. `absent` is the reason why
    measured figures give no value.
    """

    kind: Literal["time", "count", "share"]
    values: Callable[[Analysis], Iterable[ConditionValue]]
    needs: tuple[Need, ...] = ()
    absent: str = NO_TIME


def _device_quantity(kind: Literal["time", "count"], figure: Callable[[DeviceFigures], int], *needs: Need) -> Quantity:
    def values(analysis: Analysis) -> Iterator[ConditionValue]:
        for device in analysis.devices:
            use = analysis.part(device)
            yield ConditionValue(figure(use), use.window.length, device.id)

    return Quantity(kind, values, (_gpu_work, *needs))


def _share_quantity(part_and_total: Callable[[DeviceFigures], tuple[int, int]], what: str) -> Quantity:
    def values(analysis: Analysis) -> Iterator[ConditionValue]:
        for device in analysis.devices:
            part, total = part_and_total(analysis.part(device))
            if total:  # a device without such work has no share
                yield ConditionValue(part, total, device.id)

    return Quantity("share", values, (_gpu_work,), f"no device has {what} in the part that counts")


def _capture_quantity(kind: Literal["time", "count"], figure: Callable[[Analysis], int], *needs: Need) -> Quantity:
    def values(analysis: Analysis) -> list[ConditionValue]:
        longest = max((analysis.part(device).window.length for device in analysis.devices), default=0)
        return [ConditionValue(figure(analysis), longest if kind == "time" else 0)]

    return Quantity(kind, values, needs)


def _exposed(*kinds: str) -> Quantity:
    return _device_quantity("time", lambda device: sum(use.exposed_ns for use in device.copies if use.kind in kinds))


def _overlap(kind: str) -> Quantity:
    def part_and_total(device: DeviceFigures) -> tuple[int, int]:
        copies = [use for use in device.copies if use.kind == kind]
        return sum(use.overlapped_ns for use in copies), sum(use.busy_ns for use in copies)

    return _share_quantity(part_and_total, f"{kind} copies")


def _idle(cause: str) -> Quantity:
    needs = () if cause in ("profiler", "unknown") else (_causes_known,)
    return _device_quantity("time", lambda device: device.gaps.causes[cause], *needs)


def _calls(kind: Literal["time", "count"], group: str, figure: str) -> Quantity:
    def value(analysis: Analysis) -> int:
        use: SyncUse = getattr(analysis.host, group)
        steady = analysis.iterations
        if analysis.whole or isinstance(steady, NotMeasured) or use.frame.is_empty():
            return int(getattr(use, figure))
        begins = pl.col("start").is_between(steady.steady.start, steady.steady.end, closed="left")
        calls = use.frame.filter(begins)
        return len(calls) if kind == "count" else int(calls[figure.removesuffix("_ns")].sum())

    needs = () if figure in ("count", "blocked_ns") else (_gpu_work,)
    return _capture_quantity(kind, value, _calls_recorded, *needs)


def _findings(severity: str) -> Quantity:
    return _capture_quantity(
        "count", lambda analysis: sum(finding.severity == severity for finding in analysis.findings), _gpu_work
    )


def _finding_costs(analysis: Analysis) -> Iterator[ConditionValue]:
    for device in analysis.devices:
        parts = (part for finding in analysis.findings for part in finding.by_device)
        cost = sum(part.cost_ns for part in parts if part.device == device.id)
        yield ConditionValue(cost, analysis.part(device).window.length, device.id)


def _iteration(figure: str, statistic: str) -> Quantity:
    def values(analysis: Analysis) -> Iterator[ConditionValue]:
        iterations = analysis.iterations
        if not isinstance(iterations, NotMeasured):
            yield ConditionValue(int(getattr(iterations.spreads[f"{figure}_ns"], statistic)), iterations.wall_ns.median)

    cause = figure.removeprefix("idle_")
    known = (_causes_known,) if cause in CAUSES and cause not in ("profiler", "unknown") else ()
    calls = (_calls_recorded,) if figure == "blocked" else ()
    gpu = () if figure in ("wall", "blocked") else (_gpu_work,)
    return Quantity("time", values, (_iterations_found, *gpu, *calls, *known))


def _iteration_count(analysis: Analysis) -> int:
    iterations = analysis.iterations
    return 0 if isinstance(iterations, NotMeasured) else iterations.count - iterations.skipped


def _mfu(analysis: Analysis) -> Iterator[ConditionValue]:
    """Yield the time that the operations of an iteration take at the peak, as a part of the iteration's time."""
    for row in analysis.tables["speed_of_light"].rows:
        if row.mfu is not None:
            yield ConditionValue(round(row.mfu * row.time_ns), row.time_ns, row.device)


def _flops_known(analysis: Analysis) -> str | None:
    return next((row.unknown_because for row in analysis.tables["speed_of_light"].rows if row.mfu is None), None)


QUANTITIES: Mapping[str, Quantity] = {
    "busy": _device_quantity("time", lambda device: device.busy_ns),
    "idle": _device_quantity("time", lambda device: device.idle_ns),
    **{f"idle.{cause}": _idle(cause) for cause in CAUSES},
    "compute": _device_quantity("time", lambda device: device.compute_ns),
    "communication": _device_quantity("time", lambda device: device.communication_ns),
    **{f"exposed_{kind}": _exposed(kind) for kind in KINDS},
    "exposed_copies": _exposed(*KINDS),
    "exposed_communication": _device_quantity("time", lambda device: device.communication.exposed_ns),
    "findings.cost": Quantity("time", _finding_costs, (_gpu_work,)),
    **{f"overlap_{kind}": _overlap(kind) for kind in KINDS},
    "overlap_communication": _share_quantity(
        lambda device: (device.communication.overlapped_ns, device.communication.busy_ns), "communication"
    ),
    "mfu": Quantity("share", _mfu, (_gpu_work, _flops_known)),
    "kernels": _device_quantity("count", lambda device: device.kernel_count, _kernels_apart),
    "gaps": _device_quantity("count", lambda device: device.gaps.count),
    **{
        f"{group}.{figure}": _calls("time", group, f"{figure}_ns")
        for group in ("sync", "implicit_sync")
        for figure in SYNC_FIGURES
    },
    "sync.count": _calls("count", "sync", "count"),
    "implicit_sync.count": _calls("count", "implicit_sync", "count"),
    "findings.count": _capture_quantity("count", lambda analysis: len(analysis.findings), _gpu_work),
    **{f"findings.{severity}": _findings(severity) for severity in SEVERITIES},
    "notes.count": _capture_quantity("count", lambda analysis: len(analysis.notes)),
    "unmatched": _capture_quantity(
        "count", lambda analysis: analysis.unmatched.kernels + analysis.unmatched.copies, _gpu_work
    ),
    ITERATION_COUNT: _capture_quantity("count", _iteration_count, _iterations_found),
    **{
        f"iteration.{figure}.{statistic}": _iteration(figure, statistic)
        for figure in (*ITERATION_FIGURES, *(f"idle_{cause}" for cause in CAUSES))
        for statistic in ("median", "p5", "p95")
    },
}


def _kernels(name: str, figure: str) -> Quantity:
    """Return the time of the kernels with a name: per iteration, per call or in total."""

    def values(analysis: Analysis) -> Iterator[ConditionValue]:
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
                yield ConditionValue(total // times, window.length // times, device.id)
            elif count:
                yield ConditionValue(total // count, 0, device.id)

    return Quantity("time", values, (_gpu_work,), "no call of it is in the part that counts")


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
    condition.check_unit(_quantity(condition).kind)
    return condition


def failures(conditions: Iterable[Condition], analysis: Analysis) -> Iterator[str]:
    """Yield one line for each condition and device where it holds, with the figure.

    Raises RequestError where a figure was not measured.
    """
    for condition in conditions:
        quantity = _quantity(condition)
        reason = next((reason for need in quantity.needs if (reason := need(analysis)) is not None), None)
        values = [] if reason else condition.known(quantity.values(analysis))
        if not values:
            raise RequestError(
                f"{analysis.info.file}: --fail-if {condition.quantity} was not measured: {reason or quantity.absent}"
            )
        for value in values:
            if condition.holds(condition.in_unit(value)):
                yield condition.line(value, quantity.kind)
