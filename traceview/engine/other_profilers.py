"""What other profilers recorded of the same program, for the kernels of a capture (`analyze --with`).

torch.profiler knows the op, the module, the line and the FLOPs of each kernel; nsys knows how long kernels and gaps
take without its overhead. Both runs launch the same kernels in each iteration, so that kernels match by their order.
Nsight Compute knows what limits a kernel: its tables match by name and launch shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.engine.run import find_iterations
from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.measure.iterations import IterationRanges
from traceview.measure.shared_work import launch_rows
from traceview.model.analysis import AnalysisOptions, NotMeasured
from traceview.model.sizes import WorkSizes
from traceview.model.trace import Note, Trace
from traceview.model.units import share
from traceview.normalise.codes import text_enum

LEAST_MATCHED = 0.9  # share of the kernels of iterations; below it, the programs are not the same
MAX_ALIGNED = 4_000  # kernels that differ in an iteration; aligning takes time in proportion to their square
LAUNCH_SHAPE = ("name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
BEFORE_NS = 10**9  # the scopes of the other profiler lie so long before the capture


class _Sequences(NamedTuple):
    """The kernels of each iteration in launch order: rows of Trace.operations, their codes, and when they launch."""

    rows: list[Times]
    codes: list[Times]


def with_torch_trace(trace: Trace, options: AnalysisOptions, theirs: Trace) -> Trace:
    """Return a trace with the ops, modules, lines and FLOPs of a trace of torch.profiler, `theirs`.

    Raises RequestError if one has no iterations, or too few kernels match.
    """
    own_kernels, their_kernels = _sequences((trace, options), (theirs, AnalysisOptions()))
    pairs = list(_pairs(own_kernels, their_kernels))
    total = sum(map(len, own_kernels.rows))
    matched = sum(len(own) for _, own, _ in pairs)
    if matched < LEAST_MATCHED * total:
        raise RequestError(
            f"{theirs.info.file}: {share(matched, total)} of the kernels in iterations of {trace.info.file} are in "
            f"it in the same order, below {share(LEAST_MATCHED)}: record the same program with the same options"
        )
    iteration = np.repeat([number for number, own, _ in pairs], [len(own) for _, own, _ in pairs])
    joined = pl.DataFrame(
        {
            "iteration": pl.Series(iteration, dtype=pl.Int64),
            "operation": np.concatenate([own for _, own, _ in pairs]).astype(np.int32),
            "other": np.concatenate([rows for _, _, rows in pairs]).astype(np.int32),
        }
    )
    text = (
        f"ops, modules, lines and FLOPs are those of {theirs.info.file}, for {share(matched, total)} of the kernels in "
        "iterations, matched by their order"
    )
    return _joined(trace, theirs, joined, Note("other_profiler", text))


def _sequences(*traces: tuple[Trace, AnalysisOptions]) -> tuple[_Sequences, _Sequences]:
    """Return the kernels of the counted iterations of two traces; equal names have equal codes."""
    frames = []
    for trace, options in traces:
        located = find_iterations(trace, options).iterations
        kernels = pl.DataFrame() if isinstance(located, NotMeasured) else _kernels(trace, located[0])
        if kernels.is_empty():
            reason = located.reason if isinstance(located, NotMeasured) else "no counted iteration launches one"
            raise RequestError(f"{trace.info.file}: its kernels cannot be matched: {reason}")
        frames.append(kernels)
    names = pl.concat([frame["name"] for frame in frames])
    codes = names.cast(pl.Enum(names.unique(maintain_order=True))).to_physical().to_numpy().astype(np.int64)
    own = _by_iteration(frames[0], codes[: len(frames[0])])
    return own, _by_iteration(frames[1], codes[len(frames[0]) :])


def _kernels(trace: Trace, where: IterationRanges) -> pl.DataFrame:
    """Return iteration, row and name of the kernels that counted iterations launch, in launch order."""
    start, end = where.start[where.skipped :], where.end[where.skipped :]
    rows = np.flatnonzero((trace.operations["source"] == "kernel").to_numpy() & (launch_rows(trace.operations) >= 0))
    rows = rows[(trace.operations["process"] == where.process).to_numpy()[rows]]
    launched = trace.api["start"].to_numpy()[launch_rows(trace.operations)[rows]]
    rows = rows[np.lexsort((rows, launched))]
    launched = np.sort(launched)
    iteration = np.searchsorted(start, launched, side="right") - 1
    inside = (iteration >= 0) & (launched < end[iteration])
    names = trace.operations["name"].cast(pl.String).gather(rows[inside])
    return pl.DataFrame({"iteration": iteration[inside], "row": rows[inside], "name": names})


def _by_iteration(kernels: pl.DataFrame, codes: Times) -> _Sequences:
    borders = np.flatnonzero(np.diff(kernels["iteration"].to_numpy())) + 1
    return _Sequences(np.split(kernels["row"].to_numpy(), borders), np.split(codes, borders))


def _pairs(own: _Sequences, theirs: _Sequences) -> Iterator[tuple[int, Times, Times]]:
    """Yield for each own iteration its number, and the rows of its kernels and of the same ones of the other.

    An iteration of the same sequence serves, or else the most frequent one.
    """
    texts = [codes.tobytes() for codes in theirs.codes]
    by_sequence = {text: number for number, text in enumerate(texts)}
    usual = by_sequence[max(texts, key=texts.count)]
    known: dict[bytes, tuple[int, Times, Times]] = {}
    for number, (rows, codes) in enumerate(zip(own.rows, own.codes, strict=True)):
        if (key := codes.tobytes()) not in known:
            same = by_sequence.get(key, usual)
            known[key] = (same, *_aligned(codes, theirs.codes[same]))
        same, at, their_at = known[key]
        yield number, rows[at], theirs.rows[same][their_at]


def _aligned(codes: Times, others: Times) -> tuple[Times, Times]:
    """Return the places of equal kernels in two sequences, in their order."""
    least = min(len(codes), len(others))
    differ = np.flatnonzero(codes[:least] != others[:least])
    head = int(differ[0]) if len(differ) else least
    differ = np.flatnonzero(codes[head:][::-1][: least - head] != others[head:][::-1][: least - head])
    tail = int(differ[0]) if len(differ) else least - head
    middle = slice(head, len(codes) - tail), slice(head, len(others) - tail)
    blocks = [(0, 0, head), (len(codes) - tail, len(others) - tail, tail)]
    if max(each.stop - each.start for each in middle) <= MAX_ALIGNED:
        matcher = SequenceMatcher(None, codes[middle[0]].tolist(), others[middle[1]].tolist(), autojunk=False)
        inner = [(head + block.a, head + block.b, block.size) for block in matcher.get_matching_blocks()]
        blocks[1:1] = inner
    return tuple(  # type: ignore[return-value]
        np.concatenate([np.arange(block[side], block[side] + block[2]) for block in blocks]) for side in (0, 1)
    )


def _joined(trace: Trace, theirs: Trace, joined: pl.DataFrame, note: Note) -> Trace:
    """Return the trace with the scopes of the other, on threads of their own and before the capture.

    `captures` says in which scope each matched kernel was launched, as for kernels of a captured graph.
    """
    process, count = int(trace.operations["process"][int(joined["operation"][0])]), len(trace.threads)
    shift = trace.span.start - BEFORE_NS - theirs.span.end
    launch = launch_rows(theirs.operations)[joined["other"].to_numpy()]
    moments = theirs.api.select(pl.col("thread") + count, pl.col("start") + shift)[launch]
    moved = theirs.scopes.filter(pl.col("range").is_null()).with_columns(
        pl.col("start", "end") + shift, pl.col("thread") + count, process=pl.lit(process, pl.Int32)
    )
    scopes = pl.concat([each.with_columns(pl.col("name").cast(pl.String)) for each in (trace.scopes, moved)])
    captures = pl.concat([trace.captures, pl.concat([joined.select("operation"), moments], how="horizontal")])
    known = {name: getattr(theirs.sizes, name) for name in ("flops", "messages")}
    sizes = {name: _moved(frame, joined) for name, frame in known.items() if getattr(trace.sizes, name).is_empty()}
    return replace(
        trace,
        info=replace(trace.info, left_out=(*trace.info.left_out, note)),
        threads=pl.concat([trace.threads, theirs.threads.with_columns(process=pl.lit(process, pl.Int32))]),
        scopes=scopes.with_columns(text_enum(scopes["name"])),
        captures=captures.unique("operation", keep="first", maintain_order=True),
        sizes=replace(trace.sizes, **sizes) if sizes else WorkSizes(),
    )


def _moved(sizes: pl.DataFrame, joined: pl.DataFrame) -> pl.DataFrame:
    """Return sizes of the other trace's operations for the matched ones; calls of ops count in each iteration."""
    columns = sizes.columns
    pairs = sizes.rename({"operation": "other"}).join(joined, on="other", maintain_order="left")
    if "call" in columns:
        pairs = pairs.with_columns(pl.struct("iteration", "call").rank("dense").cast(pl.Int32).alias("call"))
    return pairs.select(columns).sort("operation")


def with_limiters(trace: Trace, limits: pl.DataFrame, file: str) -> Trace:
    """Return the trace with what limits its kernels, in further columns of `shapes`; `limits` comes from read_ncu.

    Raises RequestError if no kernel has a name and a launch shape of the table.
    """
    shapes = trace.shapes.join(limits, on=LAUNCH_SHAPE, how="left", maintain_order="left")
    known = int(shapes["limiter"].is_not_null().sum())
    if not known:
        raise RequestError(
            f"{file}: no kernel of {trace.info.file} has a name and a launch shape of this table: profile the same "
            "program with the same sizes"
        )
    text = f"limiters are those of {file}, for {known:,} of {len(shapes) - 1:,} kernels and launch shapes"
    info = replace(trace.info, left_out=(*trace.info.left_out, Note("limiters", text)))
    return replace(trace, info=info, shapes=shapes)
