"""How fast each GPU computes in its steady part, and how fast it could (docs/definitions.md "Speed of light")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from traceview.measure.base import CaptureInput, CaptureMeasure
from traceview.measure.kernels import DIGITS
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.columns import Table
from traceview.model.devices import DeviceUse
from traceview.model.peaks import peak_flops
from traceview.model.rates import MatrixPrecision, SpeedOfLight
from traceview.model.trace import Trace

GIGA = 10**9
NO_FLOPS = (
    "the capture does not tell FLOPs; give those of an iteration on one GPU: --flops-per-iteration X, "
    'or write a mark in each iteration: torch.cuda.nvtx.mark("flops_per_iteration X")'
)
NO_SHAPES = (
    "the trace has no shapes of ops: profile(record_shapes=True), or give the FLOPs of an iteration on one GPU: "
    "--flops-per-iteration X"
)
NO_ITERATIONS = "FLOPs of an iteration are known, but not the iterations: name their range with --iteration"
NO_PEAK = "the peak of this GPU in the precision of its matrix kernels is not known"
NO_PRECISION = "the names of the matrix kernels do not tell their precision"


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations on a GPU, and the time in which it does them."""

    source: str
    count: int
    flops: int
    ns: int


def speeds_of_light(given: CaptureInput) -> tuple[SpeedOfLight, ...]:
    """Return one row for each device."""
    return tuple(_speed_of_light(given, device) for device in given.devices)


def _speed_of_light(given: CaptureInput, device: DeviceUse) -> SpeedOfLight:
    rows: Sequence[MatrixPrecision] = device.steady.tables["matrix_precisions"].rows
    main = _main_precision(rows)
    work = _work(given, device, rows)
    peak = None if main is None else main.peak_flops_per_s
    is_fp32 = main is not None and main.precision == "fp32"
    rate = None if isinstance(work, str) or not work.ns else work.flops * GIGA // work.ns
    shapes = not isinstance(work, str) and work.source == "shapes"
    total = sum(row.total_ns for row in rows)
    reason = work if isinstance(work, str) else _missing_peak(main)
    return SpeedOfLight(
        device=device.id,
        source=None if isinstance(work, str) else work.source,
        count=0 if isinstance(work, str) else work.count,
        window_ns=device.steady.window.length if isinstance(work, str) else work.ns,
        flops=None if isinstance(work, str) else work.flops,
        flops_per_iteration=_per_iteration(given.iterations, rate),
        flops_per_s=rate,
        precision=None if main is None else main.precision,
        peak_flops_per_s=peak,
        mfu=None if rate is None or peak is None else round(rate / peak, DIGITS),
        tf32_peak_flops_per_s=peak_flops(device.name, "tf32") if is_fp32 else None,
        bf16_peak_flops_per_s=peak_flops(device.name, "bf16") if is_fp32 else None,
        at_peak_ns=_at_peak_ns(rows) if shapes else None,
        known_fraction=round(sum(row.known_ns for row in rows) / total, DIGITS) if shapes and total else None,
        unknown_because=reason,
    )


def _main_precision(rows: Sequence[MatrixPrecision]) -> MatrixPrecision | None:
    """Return the row of the precision that takes most of the time of matrix kernels; None if that one is unknown."""
    times: dict[str | None, int] = {}
    for row in rows:
        times[row.precision] = times.get(row.precision, 0) + row.total_ns
    main = max(times, key=lambda name: times[name], default=None)
    return None if main is None else next(row for row in rows if row.precision == main)


def _missing_peak(main: MatrixPrecision | None) -> str | None:
    if main is None:
        return NO_PRECISION
    return NO_PEAK if main.peak_flops_per_s is None else None


def _work(given: CaptureInput, device: DeviceUse, rows: Sequence[MatrixPrecision]) -> Work | str:
    """Return the operations of a device in its steady part or in its iterations, or why they are unknown.

    What the user states counts first, then what the program states, then the shapes of ops.
    """
    window = device.steady.window
    stated = given.flops_per_iteration
    source = "option" if stated is not None else "mark"
    if stated is None:
        stated = _marked_flops(given.trace, device)
    if stated is not None:
        iterations = given.iterations
        if isinstance(iterations, NotMeasured):
            return NO_ITERATIONS
        return Work(source, iterations.count - iterations.skipped, stated, iterations.time_ns)
    flops = sum(row.flops or 0 for row in rows)
    if flops:
        return Work("shapes", sum(row.count for row in rows), flops, window.length)
    return NO_SHAPES if given.trace.info.profiler == "torch.profiler" else NO_FLOPS


def _marked_flops(trace: Trace, device: DeviceUse) -> int | None:
    """Return the mean of the program's own numbers for an iteration in the steady part, else in the capture."""
    own = trace.sizes.marks.filter(pl.col("process").is_in(device.process_ids))
    window = device.steady.window
    steady = own.filter(pl.col("time").is_between(window.start, window.end))
    chosen = steady if len(steady) else own
    return int(chosen["flops"].sum()) // len(chosen) if len(chosen) else None


def _per_iteration(iterations: Iterations | NotMeasured, rate: int | None) -> int | None:
    if rate is None or isinstance(iterations, NotMeasured):
        return None
    return rate * iterations.time_ns // GIGA


def _at_peak_ns(rows: Sequence[MatrixPrecision]) -> int | None:
    """Return the time that the operations take at the peaks of their precisions; None if a peak is unknown."""
    counted = [(row.flops, row.peak_flops_per_s) for row in rows if row.flops]
    if any(peak is None for _, peak in counted):
        return None
    return sum(flops * GIGA // peak for flops, peak in counted if peak)


SPEED_OF_LIGHT = CaptureMeasure(
    Table(
        name="speed_of_light",
        title="Speed of light",
        note="FLOPs over the steady part, against the dense peak of the precision of most matrix kernels.",
        row_type=SpeedOfLight,
        shown=("device", "flops_per_s", "mfu", "precision", "peak_flops_per_s", "flops_per_iteration", "source"),
    ),
    speeds_of_light,
)
