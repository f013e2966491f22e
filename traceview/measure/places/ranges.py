"""The ranges of each operation that are neither ops nor modules, and the direction in the name of a range."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, sorted_unique
from traceview.measure.nvtx.names import phase_names, without_library_ranges
from traceview.measure.nvtx.projection import Projection, annotating_threads, project_operations
from traceview.model.trace import Trace, enum_texts

DIRECTIONS = FORWARD, BACKWARD, OPTIMIZER = ("forward", "backward", "optimizer")
# Names of ranges that state a direction; the first pattern that matches decides.
DIRECTION_NAMES = {
    OPTIMIZER: r"^(?i:optimi[sz]er([ _.]?step)?)$|^Optimizer\.(step|zero_grad)#",
    FORWARD: r"^(?i:forward|fwd)([ _]?(?i:pass|step))?$",
    BACKWARD: r"^((?i:loss)\.)?(?i:backward|bwd)([ _]?(?i:pass|step))?$",
}


class RangePlaces(NamedTuple):
    """The ranges of operations, in runs of `length` operations with the same ranges.

    `stack` is the row of `stacks`, and `direction` the place in DIRECTIONS or -1. `stacks` has one row for each
    sequence of nested ranges: `range`, the innermost, and `ranges`, the outermost first. `via_process` marks
    operations whose ranges are those of another thread.
    """

    length: NDArray[np.int64]
    stack: Times
    direction: Times
    via_process: NDArray[np.bool_]
    stacks: pl.DataFrame

    def per_operation(self) -> RangePlaces:
        """Return the same ranges with one operation in each run."""
        return RangePlaces(
            length=np.ones(int(self.length.sum()), np.int64),
            stack=np.repeat(self.stack, self.length),
            direction=np.repeat(self.direction, self.length),
            via_process=np.repeat(self.via_process, self.length),
            stacks=self.stacks,
        )


def locate_ranges(trace: Trace, projection: Projection) -> RangePlaces:
    """Find the ranges of every operation; `projection` is the result of project_operations."""
    rest = np.ones(len(trace.ranges), np.bool_)
    rest[trace.scopes["range"].drop_nulls().to_numpy()] = False
    own = without_library_ranges(trace.ranges if rest.all() else trace.ranges.filter(pl.Series(rest)))
    own_trace = replace(trace, ranges=own)
    own_projection = projection if len(own) == len(rest) else project_operations(own_trace)
    if len(trace.captures):
        projection, own_projection = _with_captures(trace, projection), _with_captures(own_trace, own_projection)
    stack, stacks = _stacks(own_projection, phase_names(own))
    direction = _directions(projection, trace.ranges["name"])
    begin = sorted_unique(np.concatenate([projection.begin, own_projection.begin]))
    run, own_run = (np.searchsorted(each.begin, begin, side="right") - 1 for each in (projection, own_projection))
    length = np.diff(begin, append=projection.operations)
    return RangePlaces(length, stack[own_run], direction[run], projection.via_process[run], stacks)


def _with_captures(trace: Trace, projection: Projection) -> Projection:
    """Return the projection in which captured kernels belong to the ranges of their capture, if it has any."""
    ordered = trace.captures.sort("start")
    thread, moments = (ordered[name].to_numpy().astype(np.int64) for name in ("thread", "start"))
    lookup, rows = projection.stretches.lookup(moments), np.arange(len(ordered))
    stretch = lookup.stretch_at(thread, rows)
    stretch = np.where(stretch > 0, stretch, lookup.stretch_at(annotating_threads(trace)[thread], rows))
    inside = np.flatnonzero(stretch > 0)
    operation = ordered["operation"].to_numpy()[inside]
    length = np.diff(projection.begin, append=projection.operations)
    stretches, via_process = np.repeat(projection.stretch, length), np.repeat(projection.via_process, length)
    stretches[operation], via_process[operation] = stretch[inside], False
    begin = np.arange(projection.operations)
    return projection._replace(begin=begin, stretch=stretches, via_process=via_process)


def _stacks(projection: Projection, names: pl.Series) -> tuple[Times, pl.DataFrame]:
    """Return the stack of each run of the projection, and the stacks; row 0 has no ranges."""
    used, number = np.unique(projection.stretch, return_inverse=True)
    index, row = projection.stretches.open_ranges(used)
    # open_ranges lists innermost ranges first.
    nested = (
        pl.DataFrame({"index": index, "name": names.gather(row).cast(pl.String)})
        .group_by("index", maintain_order=True)
        .agg(pl.col("name").reverse().alias("ranges"))
    )
    stacks = nested.select("ranges").unique(maintain_order=True).with_row_index("stack", 1)
    stack_of = np.zeros(len(used), np.int64)
    joined = nested.join(stacks, on="ranges", maintain_order="left")
    stack_of[joined["index"].to_numpy()] = joined["stack"].to_numpy()
    none = pl.DataFrame({"ranges": [[]]}, schema={"ranges": pl.List(pl.String)})
    listed = pl.concat([none, stacks.select("ranges")])
    return stack_of[number], listed.select(pl.col("ranges").list.last().alias("range"), "ranges")


def _directions(projection: Projection, names: pl.Series) -> Times:
    """Return the direction of each run, from the name of its innermost range that names one."""
    texts = enum_texts(names)
    codes = np.full(len(texts), -1, np.int64)
    for name, pattern in reversed(DIRECTION_NAMES.items()):
        codes[texts.str.contains(pattern).to_numpy()] = DIRECTIONS.index(name)
    direction = np.full(len(projection.stretch), -1, np.int64)
    if (codes < 0).all():
        return direction
    used, number = np.unique(projection.stretch, return_inverse=True)
    index, row = projection.stretches.open_ranges(used)
    named = codes[names.to_physical().to_numpy()[row]]
    known = np.flatnonzero(named >= 0)
    first_index, first = np.unique(index[known], return_index=True)
    direction_of = np.full(len(used), -1, np.int64)
    direction_of[first_index] = named[known[first]]
    return direction_of[number]
