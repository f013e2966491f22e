"""How fast each GPU computes in its steady part, and how fast it could (docs/definitions.md "Speed of light")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from traceview.measure.base import CaptureInput, CaptureMeasure
from traceview.measure.kernels import DIGITS
from traceview.model.analysis import NotMeasured
from traceview.model.columns import Table
from traceview.model.devices import DeviceUse
from traceview.model.peaks import peak_flops
from traceview.model.rows import MatrixPrecision, SpeedOfLight
from traceview.model.trace import Trace
from traceview.units import share

GIGA = 10**9
NO_FLOPS = (
    "the capture does not state FLOPs; give those of an iteration on one GPU: --flops-per-iteration X, "
    'or write a mark in each iteration: torch.cuda.nvtx.mark("flops_per_iteration X")'
)
NO_SHAPES = (
    "the trace has no shapes of ops: profile(record_shapes=True), or give the FLOPs of an iteration on one GPU: "
    "--flops-per-iteration X"
)
LEAST_KNOWN = 0.5  # share of the time of matrix kernels; below it, the known FLOPs say little about the program
FEW_SHAPES = (
    "FLOPs are known from shapes for only {} of the time of matrix kernels; give those of an iteration: "
    "--flops-per-iteration X"
)
NO_ITERATIONS = "FLOPs of an iteration are known, but not the iterations: name their range with --iteration"
NO_PEAK = "the peak of this GPU in the precision of its matrix kernels is not known"
NO_PRECISION = "the names of the matrix kernels do not contain their precision"


@dataclass(frozen=True, slots=True)
class DeviceFlops:
    """Floating-point operations of a GPU, and the time in which it does them; `missing` says why they are unknown."""

    source: str | None
    count: int
    flops: int | None
    ns: int
    missing: str | None = None


def speeds_of_light(given: CaptureInput, totals: pl.DataFrame) -> tuple[SpeedOfLight, ...]:
    """Return one row for each device."""
    return tuple(_speed_of_light(given, device, totals) for device in given.devices)


def _speed_of_light(given: CaptureInput, device: DeviceUse, totals: pl.DataFrame) -> SpeedOfLight:
    rows: Sequence[MatrixPrecision] = device.steady.tables["matrix_precisions"].rows
    main = _main_precision(rows)
    peak = None if main is None else main.peak_flops_per_s
    is_fp32 = main is not None and main.precision == "fp32"
    work = _work(given, device, rows, totals)
    rate = None if work.flops is None or not work.ns else work.flops * GIGA // work.ns
    return SpeedOfLight(
        device=device.id,
        source=work.source,
        count=work.count,
        time_ns=work.ns,
        flops=work.flops,
        flops_per_s=rate,
        precision=None if main is None else main.precision,
        peak_flops_per_s=peak,
        mfu=None if rate is None or peak is None else round(rate / peak, DIGITS),
        tf32_peak_flops_per_s=peak_flops(device.name, "tf32") if is_fp32 else None,
        bf16_peak_flops_per_s=peak_flops(device.name, "bf16") if is_fp32 else None,
        at_peak_ns=_at_peak_ns(rows, work.flops) if work.source == "shapes" else None,
        known_fraction=_known_fraction(rows) if work.source == "shapes" else None,
        unknown_because=work.missing or _missing_peak(main),
    )


def _main_precision(rows: Sequence[MatrixPrecision]) -> MatrixPrecision | None:
    """Return the row of the precision that takes most of the time of matrix kernels; None if that one is work."""
    times: dict[str | None, int] = {}
    for row in rows:
        times[row.precision] = times.get(row.precision, 0) + row.total_ns
    main = max(times, key=lambda name: times[name], default=None)
    return None if main is None else next(row for row in rows if row.precision == main)


def _missing_peak(main: MatrixPrecision | None) -> str | None:
    if main is None:
        return NO_PRECISION
    return NO_PEAK if main.peak_flops_per_s is None else None


def _work(given: CaptureInput, device: DeviceUse, rows: Sequence[MatrixPrecision], totals: pl.DataFrame) -> DeviceFlops:
    """Return the operations of a device in a mean iteration; without iterations, in its window.

    What the user states counts first, then what the program states, then the shapes of ops.
    """
    iterations, window = given.iterations, device.steady.window
    marked = _marked_flops(given.trace, device)
    stated = marked if given.flops_per_iteration is None else given.flops_per_iteration
    if stated is not None and isinstance(iterations, NotMeasured):
        return DeviceFlops(None, 0, None, window.length, NO_ITERATIONS)
    if isinstance(iterations, NotMeasured):
        source, count, flops, ns = "shapes", sum(row.count for row in rows), _flops(rows), window.length
    else:
        count, ns = iterations.count - iterations.skipped, iterations.time_ns
        source = "option" if given.flops_per_iteration is not None else "shapes" if stated is None else "mark"
        launched = 0 if totals.is_empty() else int(totals.filter(pl.col("device") == device.device)["flops"].sum())
        flops = launched // count if stated is None else stated
    known = _known_fraction(rows)
    if flops and source == "shapes" and (known is None or known < LEAST_KNOWN):
        return DeviceFlops(None, 0, None, window.length, FEW_SHAPES.format(share(known or 0)))
    if flops:
        return DeviceFlops(source, count, flops, ns)
    is_trace = given.trace.info.profiler == "torch.profiler"
    return DeviceFlops(None, 0, None, window.length, NO_SHAPES if is_trace else NO_FLOPS)


def _marked_flops(trace: Trace, device: DeviceUse) -> int | None:
    """Return the mean of the program's own numbers for an iteration in the steady part, else in the capture."""
    own = trace.sizes.marks.filter(pl.col("process").is_in(device.process_ids))
    window = device.steady.window
    steady = own.filter(pl.col("time").is_between(window.start, window.end))
    chosen = steady if len(steady) else own
    return int(chosen["flops"].sum()) // len(chosen) if len(chosen) else None


def _flops_of_calls(given: CaptureInput) -> pl.DataFrame:
    """Return the operations of each call that the counted iterations launch, by device: device, call and flops.

    The GPU runs behind the host, so that the work of the first one begins late in its time.
    """
    trace, iterations = given.trace, given.iterations
    if trace.sizes.flops.is_empty() or isinstance(iterations, NotMeasured):
        return pl.DataFrame()
    sized = trace.sizes.flops
    work = pl.concat([sized, trace.operations.select("device", "launch")[sized["operation"]]], how="horizontal")
    work = work.filter(pl.col("launch").is_not_null())
    calls = work.with_columns(trace.api["start"][work["launch"]].alias("launched"))
    counted = iterations.per_iteration[iterations.skipped :]
    inside = pl.col("launched").is_between(counted[0].start_ns, counted[-1].end_ns, closed="left")
    return calls.filter(inside).select("device", "call", "flops").unique(["device", "call"])


def _flops(rows: Sequence[MatrixPrecision]) -> int:
    return sum(row.flops or 0 for row in rows)


def _known_fraction(rows: Sequence[MatrixPrecision]) -> float | None:
    total = sum(row.total_ns for row in rows)
    return round(sum(row.known_ns for row in rows) / total, DIGITS) if total else None


def _at_peak_ns(rows: Sequence[MatrixPrecision], flops: int | None) -> int | None:
    """Return the time that `flops` take if each precision of `rows` runs at its own peak.

    It is None if a peak is work.
    """
    counted = [(row.flops, row.peak_flops_per_s) for row in rows if row.flops]
    if not flops or not counted or any(peak is None for _, peak in counted):
        return None
    return round(flops * sum(own * GIGA / peak for own, peak in counted if peak) / _flops(rows))


SPEED_OF_LIGHT = CaptureMeasure(
    Table(
        name="speed_of_light",
        title="Speed of light",
        note="FLOPs of a mean iteration, against the dense peak of the precision of most matrix kernels.",
        row_type=SpeedOfLight,
        shown=("device", "flops_per_s", "mfu", "precision", "peak_flops_per_s", "flops", "source"),
    ),
    speeds_of_light,
    totals=_flops_of_calls,
    merge={"device": "key", "flops": "first"},
)
