"""The iterations of a run, found without being told, and what each was made of (METRICS.md "Iterations")."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.measure.breakdown import BLOCKED, breakdown
from traceview.measure.host import Host
from traceview.measure.nesting import Nesting
from traceview.model import CAUSES, Iteration, Iterations, NotMeasured, Spread, Trace

NUMBER = re.compile(r"(?<![\w.])-?\d+|\d+")
FEWEST = 3
# A leading iteration this much longer than the median is warm-up (kernels load, caches fill, autotuning).
SLOW, OF = 3, 2
HOW_TO_NAME = (
    "no NVTX range repeats three times on a thread, so no iteration was found: put a range around each step "
    "(torch.cuda.nvtx.range_push('iteration')), or name it with --iteration"
)
FIGURES = (
    "wall_ns",
    "compute_ns",
    "communication_ns",
    "exposed_h2d_ns",
    "exposed_d2h_ns",
    "exposed_communication_ns",
    "idle_ns",
    "blocked_ns",
)


class Found(NamedTuple):
    """The ranges that are the iterations, in order: rows of Trace.ranges, of one thread."""

    name: str
    thread: int
    rows: Times


def measure_iterations(
    trace: Trace, of: Host, *, pattern: str | None = None, skip: int | None = None
) -> Iterations | NotMeasured:
    """Measure every iteration, and the spread over those that are not warm-up.

    `pattern` is a regular expression searched in range names; `skip` sets that many first iterations
    aside instead of those that look like warm-up. Raises RequestError where either fits nothing.
    """
    if trace.ranges.is_empty():
        if pattern is not None:
            raise RequestError(
                f"{trace.info.file}: --iteration {pattern!r} finds nothing, for the capture has no NVTX ranges; "
                "capture with: nsys profile -t cuda,nvtx COMMAND"
            )
        return NotMeasured(HOW_TO_NAME)
    found = _matching(trace, pattern) if pattern is not None else _repeating(trace)
    if found is None:
        return NotMeasured(HOW_TO_NAME)
    start, end = (trace.ranges[name].to_numpy()[found.rows] for name in ("start", "end"))
    if trace.window is not None:
        inside = (start < trace.window.end) & (end > trace.window.start)
        start = np.maximum(start[inside], trace.window.start)
        end = np.minimum(end[inside], trace.window.end)
        found = found._replace(rows=found.rows[inside])
        if len(start) == 0:
            return NotMeasured("no iteration lies in the chosen window")
    skipped, why = _skipped(trace, end - start, skip)
    rows = _iterations(trace, of, found, start, end, skipped)
    columns = {name: [getattr(row, name) for row in rows[skipped:]] for name in FIGURES}
    columns |= {f"idle_{cause}_ns": [row.idle[cause] for row in rows[skipped:]] for cause in CAUSES}
    spreads = {name: spread(np.array(values, np.int64)) for name, values in columns.items()}
    return Iterations(
        range=found.name,
        thread=found.thread,
        process_id=int(trace.threads["process"][found.thread]),
        count=len(rows),
        skipped=skipped,
        skipped_why=why,
        wall_ns=spreads["wall_ns"],
        spreads=spreads,
        per_iteration=rows,
    )


def folded(name: str) -> str:
    """Return `iteration #` for `iteration 7` and for `iteration -3`."""
    return NUMBER.sub("#", name)


def _matching(trace: Trace, pattern: str) -> Found:
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise RequestError(
            f"{trace.info.file}: --iteration {pattern!r} is not a regular expression ({error}); "
            "put a backslash before a character that is meant as itself"
        ) from None
    names = trace.ranges["name"].cast(pl.String)
    matches = {name for name in names.unique().to_list() if wanted.search(name)}
    if not matches:
        known = ", ".join(repr(name) for name in names.value_counts(sort=True)["name"].head(5).to_list())
        raise RequestError(
            f"{trace.info.file}: no NVTX range matches --iteration {pattern!r}; the most frequent are {known}"
        )
    chosen = trace.ranges.with_row_index("row").filter(names.is_in(list(matches)))
    row, one_name = pl.col("row").cast(pl.Int64), pl.lit(pattern).alias("folded")
    best = _longest(chosen.select(row, "start", "end", "thread", one_name))
    return Found(_shown(matches), best.thread, best.rows)


def _shown(matches: set[str]) -> str:
    shapes = {folded(name) for name in matches}
    return shapes.pop() if len(shapes) == 1 else " | ".join(sorted(shapes)[:3])


def _repeating(trace: Trace) -> Found | None:
    names = trace.ranges["name"].cast(pl.String)
    unique = names.unique()
    shapes = unique.map_elements(folded, return_dtype=pl.String)
    frame = trace.ranges.select(
        pl.int_range(pl.len(), dtype=pl.Int64).alias("row"),
        "start",
        "end",
        "thread",
        names.replace_strict(unique, shapes, return_dtype=pl.String).alias("folded"),
    )
    often = frame.filter(pl.len().over("thread", "folded") >= FEWEST)
    if often.is_empty():
        return None
    often = often.filter(pl.Series(_outermost(often)))
    often = often.filter(pl.len().over("thread", "folded") >= FEWEST)
    return None if often.is_empty() else _longest(often)


def _outermost(frame: pl.DataFrame) -> np.typing.NDArray[np.bool_]:
    """Say which ranges lie inside no other of the frame on their thread."""
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    nesting = Nesting.of(start, end, frame["thread"].to_numpy().astype(np.int64))
    # A range that holds this one was open when it began and ends no sooner: open at its last ns.
    last = np.maximum(nesting.end - 1, nesting.start)
    inside = np.empty(len(start), np.bool_)
    inside[nesting.rows] = nesting.around(np.arange(len(start)), last) >= 0
    return ~inside


def _longest(frame: pl.DataFrame) -> Found:
    """Return the ranges of the thread and name with the most total time, outermost ones only."""
    best = (
        frame.group_by("thread", "folded")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread", "folded"], descending=[True, False, False])
        .row(0)
    )
    rows = frame.filter((pl.col("thread") == best[0]) & (pl.col("folded") == best[1]))
    rows = rows.filter(pl.Series(_outermost(rows)))
    return Found(best[1], best[0], rows["row"].to_numpy())


def _skipped(trace: Trace, wall: Times, skip: int | None) -> tuple[int, str]:
    if skip is not None:
        if not 0 <= skip < len(wall):
            raise RequestError(f"{trace.info.file}: --skip {skip} leaves nothing of {len(wall)} iterations")
        return skip, f"--skip {skip}"
    # At least half of them are no longer than the median, so one that is steady exists.
    leading = int(np.flatnonzero(wall * 2 * OF <= _twice_median(wall) * SLOW)[0])
    first = "the first" if leading == 1 else f"the first {leading}"
    return leading, f"{first} took more than 1.5 times the median" if leading else "none"


def _twice_median(values: Times) -> int:
    """Return the sum of the two middle values: the median may lie half a ns above a whole one."""
    ordered = np.sort(values)
    return int(ordered[(len(ordered) - 1) // 2]) + int(ordered[len(ordered) // 2])


def _iterations(
    trace: Trace, of: Host, found: Found, start: Times, end: Times, skipped: int
) -> tuple[Iteration, ...]:
    parts = breakdown(trace, of, int(trace.threads["process"][found.thread]), start, end)
    names = trace.ranges["name"].cast(pl.String)[found.rows].to_list()
    causes = parts.idle.tolist()
    columns = {name: values.tolist() for name, values in parts.figures.items()}
    return tuple(
        Iteration(
            name=names[index],
            start_ns=int(start[index]),
            end_ns=int(end[index]),
            skipped=index < skipped,
            wall_ns=int(end[index] - start[index]),
            idle=dict(zip(CAUSES, causes[index], strict=True)),
            idle_ns=sum(causes[index]),
            blocked_ns=columns[BLOCKED][index],
            **{name: columns[name][index] for name in columns if name != BLOCKED},
        )
        for index in range(len(names))
    )


def spread(values: Times) -> Spread:
    """Return median, p5 and p95 in whole ns: linear between ranks, rounded down."""
    ordered = np.sort(values)
    return Spread(*(_percentile(ordered, percent) for percent in (50, 5, 95)))


def _percentile(ordered: Times, percent: int) -> int:
    place, rest = divmod((len(ordered) - 1) * percent, 100)
    low = int(ordered[place])
    high = int(ordered[min(place + 1, len(ordered) - 1)])
    return low + (high - low) * rest // 100
