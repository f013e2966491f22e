"""Rates of computation and communication, where the capture states the amount of work.

docs/definitions.md "Collectives" defines the bandwidth of collectives; "Speed of light" defines how fast matrix kernels
compute by precision, and how fast a GPU computes in its steady part and could compute.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Rows
from traceview.measure.activity import COMMUNICATION
from traceview.measure.base import CaptureInput, DeviceInput, Measure
from traceview.measure.exposure import COMMUNICATION_WORK, ExposedTime, rest_sums, with_causes
from traceview.measure.kernels import DIGITS, costliest, rounded_share
from traceview.measure.kernels.families import MATRIX, shape_kinds
from traceview.measure.shared_work import once_per_frame
from traceview.model.analysis import EXPOSED_CAUSES, DeviceUse, NotMeasured
from traceview.model.columns import Table, partial_row
from traceview.model.frozen import dataclass
from traceview.model.peaks import peak_flops
from traceview.model.rows import Collective, MatrixPrecision, SpeedOfLight
from traceview.model.trace import Trace
from traceview.model.units import share

MAX_COLLECTIVES = 200
COLLECTIVE_KEYS = ("collective", "group", "group_size", "element_type", "message_bytes")
# Kernels of NCCL have their kind and type in their names: ncclDevKernel_AllReduce_Sum_bf16_RING_LL,
# ncclKernel_AllGather_RING_LL_...
KINDS = {
    "AllReduce": "all_reduce",
    "ReduceScatter": "reduce_scatter",
    "AllGather": "all_gather",
    "Broadcast": "broadcast",
    "SendRecv": "send_receive",
    "Reduce": "reduce",
}
KIND = re.compile("|".join(KINDS))
# Kernels that only copy handle all types as bytes, so the type in their names is not that of the elements.
ELEMENT_TYPE = re.compile(r"(?:Sum|Prod|Min|Max|sum|prod|min|max|PreMulSum|SumPostDiv)_(?:__nv_)?([a-z]+[0-9]*)")
ELEMENT_TYPES = {
    **dict.fromkeys(("f32", "float"), "fp32"),
    **dict.fromkeys(("f16", "half"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16"), "bf16"),
    **dict.fromkeys(("f64", "double"), "fp64"),
}
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
# The name of a group, such as mesh_tp, TENSOR_MODEL_PARALLEL_GROUP or dp_shard. Few captures have one, so these
# patterns are compiled when they are searched.
PARALLELISMS = tuple(
    (name, rf"(?i)(?:^|[^a-z])(?:{words})(?:[^a-z]|$)")
    for name, words in (
        ("TP", "tp|tensor|tensor_(?:model_)?parallel"),
        ("EP", "ep|expert|moe"),
        ("PP", "pp|pipe|pipeline|pipeline_(?:model_)?parallel"),
        ("CP", "cp|context|sp|sequence|ulysses"),
        ("DP", "dp|ddp|fsdp|hsdp|data|shard|replicate"),
    )
)


def collectives(given: DeviceInput) -> tuple[Collective, ...]:
    """Return one row for each kind, group, type and size of messages, the costliest first.

    Medians and shortest lengths are those of whole kernels, which may reach beyond the window.
    """
    chosen = np.flatnonzero(given.activity.codes == COMMUNICATION)
    if not len(chosen):
        return ()
    rows = given.activity.rows[chosen]
    lengths = given.trace.operations.select(pl.col("end") - pl.col("start"))[rows]["end"]
    start, end = given.activity.start[chosen], given.activity.end[chosen]
    kernels = _messages(given.trace, rows).with_columns(
        pl.Series("part_ns", end - start),
        pl.Series("busy_ns", intervals.own_lengths(start, end)),
        *_exposed_by_cause(given.exposed, rows),
        ns=lengths,
    )
    sums = kernels.group_by(COLLECTIVE_KEYS).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("part_ns").sum().alias("total_ns"),
        pl.col("ns").min().alias("min_ns"),
        pl.col("ns").median().cast(pl.Int64).alias("median_ns"),
        pl.col("busy_ns", *EXPOSED_CAUSES).sum(),
    )
    sums = with_causes(sums)
    first, rest = costliest(sums, COLLECTIVE_KEYS, MAX_COLLECTIVES)
    shown = [_collective(row) for row in first.iter_rows(named=True)]
    return (*shown, *([_rest_row(rest)] if len(rest) else []))


def _exposed_by_cause(exposed: ExposedTime, rows: Rows) -> Iterator[pl.Series]:
    """Yield the exposed ns of communication kernels (rows of Trace.operations) by cause, a column for each cause."""
    some = np.flatnonzero(exposed.work == exposed.works.index(COMMUNICATION_WORK))
    sums = exposed.sums(np.searchsorted(rows, exposed.operation[some]), len(rows), some)
    yield from map(pl.Series, EXPOSED_CAUSES, sums.T)


def bus_factor(collective: str, ranks: int | None) -> float | None:
    """Return bus bandwidth over algorithm bandwidth, as nccl-tests define it (doc/PERFORMANCE.md); None if unknown."""
    if collective in ("broadcast", "reduce", "send", "receive", "send_receive"):
        return 1.0
    if ranks is None or collective in ("barrier", "other"):
        return None
    return round((2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks, DIGITS)


def parallelism(group: str | None) -> str | None:
    """Return the first parallelism in the name of a process group."""
    matches = ((re.search(pattern, group), name) for name, pattern in PARALLELISMS) if group else ()
    first = min(((match.start(), name) for match, name in matches if match), default=None)
    return first and first[1]


def _messages(trace: Trace, rows: Any) -> pl.DataFrame:
    """Return KEYS for kernels (rows of Trace.operations), from their messages or, where these lack, their names."""
    names = trace.operations["name"][rows].cast(pl.String)
    unique = names.unique().to_list()
    known = {name: _kind_and_type(name) for name in unique}
    plain = pl.DataFrame(
        {
            "operation": pl.Series(rows, dtype=pl.Int32),
            "named": names.replace_strict({name: kind for name, (kind, _) in known.items()}, return_dtype=pl.String),
            "typed": names.replace_strict({name: kind for name, (_, kind) in known.items()}, return_dtype=pl.String),
        }
    )
    sized = trace.sizes.messages.with_columns(pl.col("collective").cast(pl.String))
    joined = plain.join(sized, on="operation", how="left", maintain_order="left")
    return joined.select(
        pl.coalesce("collective", "named").alias("collective"),
        "group",
        pl.col("group_size").cast(pl.Int64),
        pl.coalesce("element_type", "typed").alias("element_type"),
        pl.col("bytes").alias("message_bytes"),
    )


def _kind_and_type(name: str) -> tuple[str, str | None]:
    kind = KIND.search(name)
    collective = KINDS[kind[0]] if kind else "other"
    element = ELEMENT_TYPE.search(name) if collective in REDUCTIONS else None
    return collective, ELEMENT_TYPES.get(element[1]) if element else None


def _collective(row: dict[str, Any]) -> Collective:
    size, factor = row["message_bytes"], bus_factor(row["collective"], row["group_size"])
    mean = row["total_ns"] / row["count"]
    return Collective(
        **row,
        parallelism=parallelism(row["group"]),
        bytes=None if size is None else size * row["count"],
        bus_factor=factor,
        algorithm_bandwidth=_bandwidth(size, row["median_ns"], 1),
        bus_bandwidth=_bandwidth(size, row["median_ns"], factor),
        best_bus_bandwidth=_bandwidth(size, row["min_ns"], factor),
        mean_bus_bandwidth=_bandwidth(size, mean, factor),
    )


def _bandwidth(size: int | None, ns: float, factor: float | None) -> float | None:
    return None if size is None or factor is None or not ns else round(size / ns * factor, DIGITS)


def _rest_row(rest: pl.DataFrame) -> Collective:
    """Return one row for many kinds of messages."""
    sums = rest_sums(rest, "count", "total_ns", "busy_ns")
    least, median = rest["min_ns"].min(), sums["total_ns"] // sums["count"]
    return partial_row(Collective, collective=f"({len(rest)} other sizes)", median_ns=median, min_ns=least, **sums)


COLLECTIVES = Measure(
    Table(
        name="collectives",
        title="Collectives",
        note="Bandwidth of the median and of the shortest kernel: a kernel that waits for a late rank has a low one.",
        row_type=Collective,
        shown=(
            "collective",
            "message_bytes",
            "count",
            "total_ns",
            "exposed_ns",
            "because",
            "bus_bandwidth",
            "best_bus_bandwidth",
            "group_size",
            "group",
            "parallelism",
            "element_type",
            "algorithm_bandwidth",
            "mean_bus_bandwidth",
        ),
    ),
    collectives,
)


PRECISION_KEYS = ("precision", "tensor_core")
GIGA = 10**9
SUMS = ("count", "total_ns", "flops", "known_ns", "working_ns")


def matrix_precisions(given: DeviceInput) -> tuple[MatrixPrecision, ...]:
    """Return one row for each precision of the device's matrix kernels, the costliest first."""
    kinds, gpu = matrix_kinds(given.trace.shapes), str(given.trace.devices["name"][given.activity.device])
    if not given.kernels.counts[kinds["matrix"].to_numpy()].any():
        return ()
    by_shape = pl.concat([kinds, _sums_by_shape(given, kinds)], how="horizontal")
    sums = by_shape.filter(pl.col("matrix"), pl.col("count") > 0).group_by(PRECISION_KEYS).agg(pl.col(SUMS).sum())
    total = int(sums["total_ns"].sum())
    ordered = sums.sort(["total_ns", *PRECISION_KEYS], descending=[True, False, False])
    return tuple(_matrix_precision(row, total, gpu) for row in ordered.iter_rows(named=True))


def _matrix_precision(row: dict[str, Any], total: int, gpu: str) -> MatrixPrecision:
    known, on_tensor_cores = row["precision"] is not None, row["tensor_core"] is not False
    peak = peak_flops(gpu, row["precision"], tensor_core=on_tensor_cores) if known else None
    rate = round(row["flops"] * GIGA / row["working_ns"]) if row["flops"] else None
    return MatrixPrecision(
        precision=row["precision"],
        tensor_core=row["tensor_core"],
        count=row["count"],
        total_ns=row["total_ns"],
        share=rounded_share(row["total_ns"], total),
        flops=round(row["flops"]) if row["flops"] else None,
        known_ns=row["known_ns"],
        peak_flops_per_s=peak,
        flops_per_s=rate,
        of_peak=round(rate / peak, DIGITS) if rate and peak else None,
    )


def _sums_by_shape(given: DeviceInput, kinds: pl.DataFrame) -> pl.DataFrame:
    """Return SUMS of the device's operations for each of Trace.shapes; `kinds` is the result of matrix_kinds."""
    work, size = given.activity, len(kinds)
    sums: dict[str, NDArray[Any]] = {name: np.zeros(size) for name in SUMS}
    sums["count"], sums["total_ns"] = given.kernels.counts, given.kernels.total
    if not given.trace.sizes.flops.is_empty():
        shape, ns = work.select(given.trace.operations["shape"].to_numpy()), work.end - work.start
        all_rates, all_known = _flops_per_ns(given.trace, kinds)
        rates: NDArray[np.float64] = work.select(all_rates)
        sums["flops"] = np.bincount(shape, rates * ns, size)
        sums["working_ns"] = np.bincount(shape, np.where(rates > 0, ns, 0), size)
        sums["known_ns"] = np.bincount(shape, np.where(work.select(all_known), ns, 0), size)
    # A float holds the sums of lengths exactly: they are below 2**53 ns, which is 104 days.
    return pl.DataFrame(sums).with_columns(pl.exclude("flops").cast(pl.Int64))


@once_per_frame
def matrix_kinds(shapes: pl.DataFrame) -> pl.DataFrame:
    """Return for each of Trace.shapes whether it is a matrix kernel, its precision and its use of tensor cores."""
    return shape_kinds(shapes).select(pl.col("family").is_in(MATRIX).alias("matrix"), *PRECISION_KEYS)


def _flops_per_ns(trace: Trace, kinds: pl.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the operations per ns of each of Trace.operations, and which matrix kernels belong to a counted call.

    The kernels of a call that use tensor cores share its operations in proportion to their lengths. If none uses them,
    the kernels that are known not to use them share the operations. Other kernels of a call add up or prepare pieces.
    """
    sized = trace.sizes.flops
    work = trace.operations.select((pl.col("end") - pl.col("start")).alias("ns"), "shape")[sized["operation"]]
    kind = kinds.select("matrix", pl.col("tensor_core").cast(pl.Int8).fill_null(-1).alias("unit"))[work["shape"]]
    members = pl.concat([sized, work.select("ns"), kind], how="horizontal").filter(pl.col("matrix"), pl.col("ns") > 0)
    shares = members.filter(pl.col("unit") == pl.col("unit").max().over("call"))
    rates, known = np.zeros(len(trace.operations)), np.zeros(len(trace.operations), np.bool_)
    rates[shares["operation"].to_numpy()] = shares.select(pl.col("flops") / pl.col("ns").sum().over("call"))["flops"]
    known[members["operation"].to_numpy()] = True
    return rates, known


MATRIX_PRECISIONS = Measure(
    Table(
        name="matrix_precisions",
        title="Matrix kernels by precision",
        note="Matrix products, convolutions and attention.",
        row_type=MatrixPrecision,
        shown=("precision", "tensor_core", "share", "total_ns", "count", "flops_per_s", "of_peak", "peak_flops_per_s"),
    ),
    matrix_precisions,
)


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


def speed_of_light(given: CaptureInput) -> tuple[SpeedOfLight, ...]:
    """Return one row for each device."""
    flops = _flops_of_calls(given)
    return tuple(_speed_of_light(given, device, flops.get(device.device, 0)) for device in given.devices)


def _speed_of_light(given: CaptureInput, device: DeviceUse, launched: int) -> SpeedOfLight:
    rows: Sequence[MatrixPrecision] = device.steady.tables["matrix_precisions"].rows
    main = _main_precision(rows)
    peak = None if main is None else main.peak_flops_per_s
    is_fp32 = main is not None and main.precision == "fp32"
    work = _work(given, device, rows, launched)
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
        unknown_because=work.missing or (NO_PRECISION if main is None else NO_PEAK if peak is None else None),
    )


def _main_precision(rows: Sequence[MatrixPrecision]) -> MatrixPrecision | None:
    """Return the row of the precision that takes most of the time of matrix kernels; None if that one is work."""
    times: dict[str | None, int] = {}
    for row in rows:
        times[row.precision] = times.get(row.precision, 0) + row.total_ns
    main = max(times, key=lambda name: times[name], default=None)
    return None if main is None else next(row for row in rows if row.precision == main)


def _work(given: CaptureInput, device: DeviceUse, rows: Sequence[MatrixPrecision], launched: int) -> DeviceFlops:
    """Return the operations of a device in a mean iteration; without iterations, in its window.

    `launched` are the operations that all counted iterations launch. What the user states counts first, then what the
    program states, then the shapes of ops.
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


def _flops_of_calls(given: CaptureInput) -> dict[int, int]:
    """Return the operations of the calls that the counted iterations launch, by device.

    The GPU runs behind the host, so that the work of the first one begins late in its time.
    """
    trace, iterations = given.trace, given.iterations
    if trace.sizes.flops.is_empty() or isinstance(iterations, NotMeasured):
        return {}
    sized = trace.sizes.flops
    work = pl.concat([sized, trace.operations.select("device", "launch")[sized["operation"]]], how="horizontal")
    work = work.filter(pl.col("launch").is_not_null())
    calls = work.with_columns(trace.api["start"][work["launch"]].alias("launched"))
    counted = iterations.per_iteration[iterations.skipped :]
    inside = pl.col("launched").is_between(counted[0].start_ns, counted[-1].end_ns, closed="left")
    flops = calls.filter(inside).unique(["device", "call"]).group_by("device").agg(pl.col("flops").sum())
    return {device: int(total) for device, total in flops.iter_rows()}


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


SPEED_OF_LIGHT = Measure(
    Table(
        name="speed_of_light",
        title="Speed of light",
        note="FLOPs of a mean iteration, against the dense peak of the precision of most matrix kernels.",
        row_type=SpeedOfLight,
        shown=("device", "flops_per_s", "mfu", "precision", "peak_flops_per_s", "flops", "source"),
    ),
    speed_of_light,
    "capture",
)
