"""The launches of a process in launch order: a sequence in which iterations without ranges repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.measure.shared_work import launch_rows
from traceview.model.trace import KINDS, ROLES, SOURCES, Trace

MAX_NODES = 1000  # CUDA graphs with different numbers of nodes, up to this number, are different launches
H2D, D2H = KINDS.index("h2d"), KINDS.index("d2h")
KERNEL, GRAPH, SYNC = SOURCES.index("kernel"), SOURCES.index("graph"), ROLES.index("sync")


@dataclass(frozen=True, slots=True)
class Launches:
    """The launches of a process, in launch order.

    `begin` and `end` are the times of the launch calls, `gpu_ns` the GPU time that each launches. `computes` marks
    kernels and graphs, `graph` CUDA graphs. `name` indexes `names` with the name of the operation that each launches
    first, `stream` is its stream. `thread` is a row of Trace.threads; -1 if the capture lacks the launch calls. Then
    `begin` and `end` are those of the operations.
    """

    begin: Times
    end: Times
    gpu_ns: Times
    computes: NDArray[np.bool_]
    graph: NDArray[np.bool_]
    name: NDArray[np.int64]
    stream: NDArray[np.int16]
    thread: NDArray[np.int16]
    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class LaunchSequence(Launches):
    """The launches of a process; a CUDA graph with traced nodes is one launch.

    `symbol` numbers the kinds of launches from 0. `talks` marks copies between host and GPU, and the first launch after
    a synchronization.
    """

    symbol: NDArray[np.int64]
    talks: NDArray[np.bool_]

    def by_stream(self) -> LaunchSequence:
        """Return the same launches, with different symbols for launches on different streams."""
        kinds = self.symbol * (int(self.stream.max()) + 1) + self.stream
        return replace(self, symbol=np.unique(kinds, return_inverse=True)[1])

    def part(self, first: int, last: int) -> LaunchSequence:
        """Return the launches [first, last)."""
        names = [field.name for field in fields(self) if field.name != "names"]
        return replace(self, **{name: getattr(self, name)[first:last] for name in names})

    def pauses(self) -> Times:
        """Return the time before each launch in which the process launched nothing."""
        latest = np.maximum.accumulate(self.end)
        return np.maximum(self.begin[1:] - latest[:-1], 0, out=np.zeros_like(self.begin[1:]))


@dataclass(frozen=True, slots=True)
class LaunchPart(Launches):
    """The launches of a process in a trace or in a part of it, for `join_launches`.

    `nodes` is the number of operations that each launches, `copies` marks copies between host and GPU. `correlation`
    is that of the call, 0 without calls. `synchronizations` are the starts of explicit synchronizations.
    """

    nodes: Times
    copies: NDArray[np.bool_]
    correlation: NDArray[np.uint32]
    synchronizations: Times


def launch_sequence(trace: Trace, process: int) -> LaunchSequence:
    """Return the launches of a process; the operations themselves if most of its compute has no launch call."""
    launched, total = compute_counts(trace)[process]
    return join_launches([launch_part(trace, process, 2 * launched >= total)])


def compute_counts(trace: Trace) -> dict[int, tuple[int, int]]:
    """Return the number of operations that compute or communicate by process: with a launch call, and in all."""
    compute = pl.col("class").to_physical() <= max(COMPUTE, COMMUNICATION)
    counts = (
        trace.operations.lazy()
        .group_by("process")
        .agg((compute & pl.col("launch").is_not_null()).sum().alias("launched"), compute.sum().alias("total"))
    )
    return {process: (launched, total) for process, launched, total in counts.collect().iter_rows()}


def launch_part(trace: Trace, process: int, calls: bool) -> LaunchPart:
    """Return the launch calls of a process or, without `calls`, its operations as launches."""
    operations = trace.operations
    rows = np.flatnonzero(operations["process"].to_numpy() == process)
    launch = launch_rows(operations)[rows]
    compute = operations["class"].to_physical().to_numpy()[rows] <= max(COMPUTE, COMMUNICATION)
    length = (operations["end"] - operations["start"]).to_numpy()[rows]
    if not calls:
        start, end = (operations[name].to_numpy()[rows] for name in ("start", "end"))
        ones, thread = np.ones(len(rows), np.int64), np.full(len(rows), -1, np.int16)
        no_calls = {"thread": thread, "correlation": np.zeros(len(rows), np.uint32)}
        return _part(trace, rows, -1, begin=start, end=end, gpu_ns=length, nodes=ones, computes=compute, **no_calls)
    launched = launch >= 0
    rows, launch, length, compute = rows[launched], launch[launched], length[launched], compute[launched]
    nodes = np.bincount(launch, minlength=len(trace.api))
    gpu_ns = np.zeros(len(trace.api), np.int64)
    if (nodes > 1).any():
        np.add.at(gpu_ns, launch, length)
    else:
        gpu_ns[launch] = length
    computes = np.zeros(len(trace.api), np.bool_)
    computes[launch[compute]] = True
    first = np.empty(len(trace.api), np.int64)
    first[launch[::-1]] = rows[::-1]
    made = _in_launch_order(trace.api, np.flatnonzero(nodes))
    calls_made = {name: trace.api[name].to_numpy()[made] for name in ("end", "thread", "correlation")}
    figures = {"gpu_ns": gpu_ns[made], "nodes": nodes[made], "computes": computes[made]}
    return _part(trace, first[made], process, begin=trace.api["start"].to_numpy()[made], **calls_made, **figures)


def _in_launch_order(api: pl.DataFrame, rows: Times) -> Times:
    """Return the rows of calls by start, end, thread and correlation id: in an order that parts of a trace share."""
    start, end = (api[name].to_numpy()[rows] for name in ("start", "end"))
    if not ((np.diff(start) == 0) & (np.diff(end) == 0)).any():
        return rows
    thread, correlation = (api[name].to_numpy()[rows] for name in ("thread", "correlation"))
    ordered: Times = rows[np.lexsort((correlation, thread, end, start))]
    return ordered


def _part(trace: Trace, rows: Times, process: int, **figures: Any) -> LaunchPart:
    """Return launches with these figures, which launch the operations `rows` first."""
    graph, name = (trace.operations[column].to_physical().to_numpy()[rows] for column in ("source", "name"))
    stream, names = trace.operations["stream"].to_numpy()[rows], trace.operations["name"].dtype
    assert isinstance(names, pl.Enum)
    waits = np.flatnonzero(trace.api["role"].to_physical().to_numpy() == SYNC)
    waits = waits[trace.api["process"].to_numpy()[waits] == process]
    return LaunchPart(
        **figures,
        graph=graph == GRAPH,
        copies=_is_host_copy(trace, rows),
        name=name.astype(np.int64),
        stream=stream,
        names=names.categories.to_list(),
        synchronizations=trace.api["start"].to_numpy()[waits],
    )


def join_launches(parts: Sequence[LaunchPart]) -> LaunchSequence:
    """Return the launches of all parts of a trace. A CUDA graph whose nodes lie in several parts is one launch."""
    part = parts[0] if len(parts) == 1 else _joined(parts)
    symbol, is_graph = _number_by_appearance(part.name), part.graph | (part.nodes > 1)
    if (part.nodes > 1).any():
        kinds = int(symbol.max()) + 1
        symbol = np.unique(symbol + kinds * np.minimum(part.nodes - 1, MAX_NODES), return_inverse=True)[1]
    talks = part.copies.copy()
    following = np.searchsorted(part.begin, part.synchronizations)
    talks[following[following < len(talks)]] = True
    figures = {field.name: getattr(part, field.name) for field in fields(Launches)}
    return LaunchSequence(**figures | {"graph": is_graph}, symbol=symbol, talks=talks)


def _joined(parts: Sequence[LaunchPart]) -> LaunchPart:
    """Return the launches of several parts in launch order."""
    codes: dict[str, int] = {}
    number = [np.array([codes.setdefault(name, len(codes)) for name in part.names], np.int64) for part in parts]
    known = [field.name for field in fields(LaunchPart) if field.name not in ("names", "name", "synchronizations")]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in known}
    columns["name"] = np.concatenate([own[part.name] for own, part in zip(number, parts, strict=True)])
    calls = ("correlation", "thread", "end", "begin")
    if (columns["thread"] >= 0).all():
        order = np.lexsort([columns[name] for name in calls])
        columns = {name: values[order] for name, values in columns.items()}
        first = np.flatnonzero(np.any([np.diff(columns[name], prepend=-1) != 0 for name in calls], axis=0))
        sums = {"gpu_ns": np.add, "nodes": np.add, "computes": np.logical_or}
        columns = {
            name: sums[name].reduceat(values, first) if name in sums and len(first) else values[first]
            for name, values in columns.items()
        }
    synchronizations = np.unique(np.concatenate([part.synchronizations for part in parts]))
    return LaunchPart(**columns, names=list(codes), synchronizations=synchronizations)


def _number_by_appearance(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a number for each code, in the order in which codes appear."""
    first = np.full(int(codes.max()) + 1 if len(codes) else 0, len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    number = np.empty(len(first), np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    return number[codes]


def _is_host_copy(trace: Trace, rows: Times) -> NDArray[np.bool_]:
    kinds = trace.operations["kind"].to_physical().fill_null(len(KINDS)).to_numpy()[rows]
    is_host_copy: NDArray[np.bool_] = (kinds == H2D) | (kinds == D2H)
    return is_host_copy
