"""The place in the program that launches each kernel: range, module, op, line and direction.

docs/definitions.md "Places" defines which of each is the place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, first_equal_rows, number_distinct, row_hashes, sorted_unique, values_at
from traceview.measure.nvtx import (
    Nesting,
    Projection,
    annotating_threads,
    phase_names,
    project_operations,
    without_library_ranges,
)
from traceview.measure.shared_work import launch_rows
from traceview.model.stacks import FUNCTION, MODULE, OP
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
    direction = _directions_in_names(projection, trace.ranges["name"])
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


def _directions_in_names(projection: Projection, names: pl.Series) -> Times:
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


# Events around ops that are not ops: autograd's engine, and compiled functions.
WRAPPER = r"^autograd::engine::evaluate_function|^Torch-Compiled Region|^CompiledFunction|^## Call CompiledFxGraph"
# A C++ function that autograd does not record in the forward pass: the last op with its number is not the creator.
UNRECORDED = "torch::autograd::CppNode<"


class OpTree(NamedTuple):
    """Ops in the order of `nesting`; -1 stands for no op.

    `backward` is the innermost op of autograd's backward that encloses an op or is the op included. `forward` is the op
    that created a backward op, or the last one before it where `is_unrecorded`; -1 if it is unknown. `has_gradients`
    marks ops that autograd records or runs.
    """

    nesting: Nesting
    parent: Times
    name: Times
    thread: Times
    backward: Times
    forward: Times
    has_gradients: NDArray[np.bool_]
    is_wrapper: NDArray[np.bool_]
    is_unrecorded: NDArray[np.bool_]

    @classmethod
    def build(cls, ops: pl.DataFrame) -> OpTree:
        """Build the trees of ops; `ops` are rows of model.SCOPES."""
        nesting = Nesting.build(*(ops[name].to_numpy().astype(np.int64) for name in ("start", "end", "thread")))
        ops = ops[nesting.rows]
        places = np.arange(len(ops))
        parent = nesting.enclosing(places, nesting.start)
        flagged = ops["backward"].to_numpy()
        name, texts = ops["name"].to_physical().to_numpy().astype(np.int64), enum_texts(ops["name"])
        is_wrapper = texts.str.contains(WRAPPER).to_numpy()[name]
        is_unrecorded = texts.str.starts_with(UNRECORDED).to_numpy()[name]
        forward = _forward_ops(ops)
        # In NVTX ranges the engine's op has no number: it has the forward of the backward function that it calls.
        called = np.flatnonzero((forward >= 0) & (parent >= 0) & ~is_unrecorded)
        called = called[(is_wrapper & flagged)[parent[called]] & (forward[parent[called]] < 0)]
        forward[parent[called]] = forward[called]
        return cls(
            nesting=nesting,
            parent=parent,
            name=name,
            thread=ops["thread"].to_numpy().astype(np.int64),
            backward=_last_of_chain(np.where(flagged, places, parent)),
            forward=forward,
            has_gradients=ops["sequence"].is_not_null().to_numpy(),
            is_wrapper=is_wrapper,
            is_unrecorded=is_unrecorded,
        )

    def outermost(self, module: Times) -> Times:
        """Return the outermost op around each op in the same module; `module` is the module of each op.

        Wrappers do not count.
        """
        places = np.arange(len(self.parent))
        ends = (self.parent < 0) | self.is_wrapper[self.parent] | (module[self.parent] != module)
        return _last_of_chain(np.where(ends, places, self.parent))


def _last_of_chain(following: Times) -> Times:
    """Follow each place to the end of its chain: a place that follows itself, or -1."""
    while True:
        further = np.where(following >= 0, following[following], -1)
        if np.array_equal(further, following):
            return following
        following = further


def _forward_ops(ops: pl.DataFrame) -> Times:
    """Return the place of the forward op of each backward op, -1 for others and where it is not certain.

    Forward ops share a sequence number with the next one that autograd records, so the last of them created the
    backward op. Each thread counts alone: PyTorch's number of the forward's thread, where it is known, stands for the
    thread that has most of its sequence numbers; otherwise the number must occur on one thread.
    """
    forward = np.full(len(ops), -1, np.int64)
    keys = ["process", "sequence"]
    numbered = ops.select("thread", *keys, "backward", "forward_thread", "start").with_row_index("place")
    numbered = numbered.filter(pl.col("sequence").is_not_null())
    created = numbered.filter(pl.col("backward"))
    if created.is_empty():
        return forward
    last = (
        numbered.filter(~pl.col("backward"))
        .sort("start", "place")
        .unique([*keys, "thread"], keep="last")
        .select(*keys, "thread", pl.col("place").alias("forward"))
    )
    pairs = created.drop("thread").join(last, on=keys)
    group = ["process", "forward_thread"]
    usual = (
        pairs.filter(pl.col("forward_thread").is_not_null())
        .group_by(*group, "thread")
        .len()
        .sort("len", "thread", descending=[True, False])
        .unique(group, keep="first", maintain_order=True)
        .select(*group, pl.col("thread").alias("usual"))
    )
    chosen = pairs.join(usual, on=group, how="left").filter(
        (pl.col("thread") == pl.col("usual")) | (pl.col("usual").is_null() & (pl.len().over("place") == 1))
    )
    forward[chosen["place"].to_numpy()] = chosen["forward"].to_numpy()
    return forward


MAX_MODULE_DEPTH = 64


class LaunchPlaces(NamedTuple):
    """The place of each launch as codes; -1 where it is unknown. `paths` and `names` are the texts of the codes."""

    module: Times  # row of `paths`
    op: Times  # row of `names`, as for the next two
    inner_op: Times
    line: Times
    is_backward: NDArray[np.bool_]
    is_forward: NDArray[np.bool_]
    paths: pl.Series
    names: pl.Series


def locate_launches(scopes: pl.DataFrame, thread: Times, moments: Times) -> LaunchPlaces:
    """Find the places of launches that threads make at moments; `scopes` is model.SCOPES.

    What a backward op launches belongs to the module, the function and the op of its forward.
    """
    modules, functions = _Scopes.build(scopes, MODULE), _Scopes.build(scopes, FUNCTION)
    ops = OpTree.build(scopes.filter(pl.col("kind") == OP))
    inner = ops.nesting.innermost(thread, moments)
    running = values_at(ops.backward, inner, -1)
    created = values_at(ops.forward, running, -1)
    own_module = modules.nesting.innermost(thread, moments)
    around_backward = modules.frame["backward"].to_numpy()
    # Activation checkpointing calls modules again inside a backward op.
    later = values_at(modules.nesting.start, own_module, 0) >= values_at(ops.nesting.start, running, 0)
    created[later & (own_module >= 0) & (running >= 0) & ~values_at(around_backward, own_module, False)] = -1
    thread = np.where(created >= 0, values_at(ops.thread, created, -1), thread)
    moments = np.where(created >= 0, values_at(ops.nesting.start, created, 0), moments)
    module = modules.nesting.innermost(thread, moments)
    module = np.where(module >= 0, module, own_module)
    module_of_ops = modules.nesting.innermost(ops.thread, ops.nesting.start)
    recorded = (created >= 0) & ~values_at(ops.is_unrecorded, running, False)
    outermost = values_at(ops.outermost(module_of_ops), np.where(recorded, created, inner), -1)
    codes, paths = _module_paths(modules)
    return LaunchPlaces(
        module=values_at(codes, module, -1),
        op=values_at(ops.name, outermost, -1),
        inner_op=values_at(ops.name, inner, -1),
        line=values_at(functions.names, functions.nesting.innermost(thread, moments), -1),
        is_backward=(running >= 0) | values_at(around_backward, own_module, False),
        is_forward=(module >= 0) | values_at(ops.has_gradients, outermost, False),
        paths=paths,
        names=enum_texts(scopes["name"]),
    )


class _Scopes(NamedTuple):
    """Scopes of one kind, in the order of `nesting`; `names` are codes of their names."""

    nesting: Nesting
    frame: pl.DataFrame
    names: Times

    @classmethod
    def build(cls, scopes: pl.DataFrame, kind: str) -> _Scopes:
        frame = scopes.filter(pl.col("kind") == kind)
        nesting = Nesting.build(*(frame[name].to_numpy().astype(np.int64) for name in ("start", "end", "thread")))
        frame = frame[nesting.rows]
        return cls(nesting, frame, frame["name"].to_physical().to_numpy().astype(np.int64))


def _module_paths(modules: _Scopes) -> tuple[Times, pl.Series]:
    """Return the number of each module's path, and the paths.

    The name of a range is a path already. That of torch.profiler's modules is a class with a number: the path consists
    of the names of the modules around it.
    """
    places = np.arange(len(modules.names))
    texts = enum_texts(modules.frame["name"])
    outer = modules.nesting.enclosing(places, modules.nesting.start)
    outer[modules.frame["range"].is_not_null().to_numpy()] = -1
    path, paths = np.full(len(places), -1, np.int64), pl.Series("path", [], dtype=pl.String)
    level = np.flatnonzero(outer < 0)
    for _ in range(MAX_MODULE_DEPTH):
        if len(level) == 0:
            break
        around, names = values_at(path, outer[level], -1), modules.names[level]
        first, number = number_distinct(first_equal_rows(row_hashes((around, names))))
        path[level] = len(paths) + number
        prefix = paths.gather(pl.Series(around[first]).replace(-1, None)) + "."
        paths = pl.concat([paths, (prefix.fill_null("") + texts.gather(names[first])).alias("path")])
        in_level = np.zeros(len(places) + 1, np.bool_)
        in_level[level] = True
        level = np.flatnonzero(in_level[outer] & (outer >= 0))
    return path, paths


PLACE = ("range", "module", "op", "inner_op", "line", "direction")
CODES = ("module", "op", "inner_op", "line")


class Places(NamedTuple):
    """`table` has one row for each place: the columns of PLACE, and `ranges`, all its ranges, the outermost first.

    `code` is the row of the place that launches each of Trace.operations. What is unknown is null.
    """

    table: pl.DataFrame
    code: NDArray[np.int32]


def locate_operations(trace: Trace, projection: Projection) -> Places:
    """Find the place of every operation; `projection` is the result of project_operations."""
    ranges = locate_ranges(trace, projection)
    if trace.scopes.is_empty():
        return _places(ranges, {}, None)
    thread, start = _launch_moments(trace)
    first, number = number_distinct(first_equal_rows(row_hashes([thread, start])))
    launches = locate_launches(trace.scopes, thread[first], start[first])
    ranges = ranges.per_operation()
    direction = _directions(ranges, launches, number)
    codes = {name: getattr(launches, name)[number] for name in CODES}
    return _places(ranges._replace(direction=direction), codes, launches)


def _launch_moments(trace: Trace) -> tuple[Times, Times]:
    """Return the thread and the time that launched each operation, -1 if unknown; a captured kernel has its capture."""
    launch = launch_rows(trace.operations)
    thread, start = (np.append(trace.api[name].to_numpy(), -1).astype(np.int64)[launch] for name in ("thread", "start"))
    captured = trace.captures["operation"].to_numpy()
    thread[captured], start[captured] = (trace.captures[name].to_numpy() for name in ("thread", "start"))
    return thread, start


def _directions(ranges: RangePlaces, launches: LaunchPlaces, number: NDArray[np.intp]) -> Times:
    """Return the direction of each operation: autograd's ops and modules know it better than ranges do.

    An optimizer may work inside a backward op, on autograd's thread.
    """
    optimizer = (ranges.direction == DIRECTIONS.index(OPTIMIZER)) & ~ranges.via_process
    forward = np.where(launches.is_forward[number], DIRECTIONS.index(FORWARD), -1)
    known = np.where(ranges.direction >= 0, ranges.direction, forward)
    return np.where(launches.is_backward[number] & ~optimizer, DIRECTIONS.index(BACKWARD), known)


def _places(ranges: RangePlaces, codes: dict[str, Times], launches: LaunchPlaces | None) -> Places:
    """Return the distinct places of runs of operations; `codes` are those of CODES, or empty."""
    columns = [ranges.stack, ranges.direction, *codes.values()]
    first, number = number_distinct(first_equal_rows(row_hashes(columns)))
    unknown = pl.Series([None], dtype=pl.String).new_from_index(0, len(first))
    texts = dict.fromkeys(CODES, unknown)
    if launches is not None:
        known = {name: launches.paths if name == "module" else launches.names for name in CODES}
        texts = {name: _texts(known[name], codes[name][first]) for name in CODES}
    direction = _texts(pl.Series(DIRECTIONS), ranges.direction[first])
    names = pl.DataFrame({**texts, "direction": direction})
    table = pl.concat([ranges.stacks[ranges.stack[first]], names], how="horizontal").select(*PLACE, "ranges")
    return Places(table, np.repeat(number.astype(np.int32), ranges.length))


def _texts(texts: pl.Series, place: Times) -> pl.Series:
    """Return the text at each place, null at -1."""
    return texts.gather(pl.Series(place, dtype=pl.Int64).replace(-1, None))
