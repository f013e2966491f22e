"""The launches of a process in launch order: a sequence in which iterations without ranges repeat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.measure.shared_work import launch_rows
from traceview.model.frozen import dataclass
from traceview.model.trace import KINDS, ROLES, SOURCES, Trace

MAX_NODES = 1000  # CUDA graphs with different numbers of nodes, up to this number, are different launches
H2D, D2H = KINDS.index("h2d"), KINDS.index("d2h")
KERNEL, GRAPH, SYNC = SOURCES.index("kernel"), SOURCES.index("graph"), ROLES.index("sync")


@dataclass(frozen=True, slots=True)
class LaunchSequence:
    """The launches of a process, in launch order. A CUDA graph with traced nodes is one launch.

    `begin` and `end` are the times of the launch calls, `gpu_ns` the GPU time that each launches. `computes` marks
    kernels and graphs, `graph` CUDA graphs. `name` indexes `names` with the name of the operation that each launches
    first, `stream` is its stream. `thread` is a row of Trace.threads; -1 if the capture lacks the launch calls. Then
    `begin` and `end` are those of the operations. `symbol` numbers the kinds of launches from 0. `talks` marks copies
    between host and GPU, and the first launch after a synchronization.
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
    symbol: NDArray[np.int64]
    talks: NDArray[np.bool_]

    def by_stream(self) -> LaunchSequence:
        """Return the same launches, with different symbols for launches on different streams."""
        kinds = self.symbol * (int(self.stream.max()) + 1) + self.stream
        return replace(self, symbol=np.unique(kinds, return_inverse=True)[1])

    def between(self, first: int, last: int) -> LaunchSequence:
        """Return the launches [first, last)."""
        names = [field.name for field in fields(self) if field.name != "names"]
        return replace(self, **{name: getattr(self, name)[first:last] for name in names})

    def pauses(self) -> Times:
        """Return the time before each launch in which the process launched nothing."""
        latest = np.maximum.accumulate(self.end)
        return np.maximum(self.begin[1:] - latest[:-1], 0, out=np.zeros_like(self.begin[1:]))


def launch_sequence(trace: Trace, process: int) -> LaunchSequence:
    """Return the launches of a process; the operations themselves if most of its compute has no launch call."""
    operations = trace.operations
    rows = np.flatnonzero(operations["process"].to_numpy() == process)
    launch = launch_rows(operations)[rows]
    compute = operations["class"].to_physical().to_numpy()[rows] <= max(COMPUTE, COMMUNICATION)
    length = (operations["end"] - operations["start"]).to_numpy()[rows]
    launched = launch >= 0
    if 2 * np.count_nonzero(compute & launched) < np.count_nonzero(compute):
        ones, thread = np.ones(len(rows), np.int64), np.full(len(rows), -1, np.int16)
        start, end = (operations[name].to_numpy()[rows] for name in ("start", "end"))
        waits = np.zeros(0, np.int64)
        return _sequence(trace, rows, ones, waits, begin=start, end=end, gpu_ns=length, computes=compute, thread=thread)
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
    made = np.flatnonzero(nodes)
    begin, end, thread = (trace.api[name].to_numpy()[made] for name in ("start", "end", "thread"))
    waits = np.flatnonzero(trace.api["role"].to_physical().to_numpy() == SYNC)
    waits = trace.api["start"].to_numpy()[waits[trace.api["process"].to_numpy()[waits] == process]]
    figures = {"gpu_ns": gpu_ns[made], "computes": computes[made], "thread": thread}
    return _sequence(trace, first[made], nodes[made], waits, begin=begin, end=end, **figures)


def _sequence(trace: Trace, rows: Times, nodes: Times, waits: Times, **figures: Any) -> LaunchSequence:
    """Return launches with these figures. Each launches `nodes` operations, of which the one in `rows` is the first.

    `waits` are the starts of explicit synchronizations.
    """
    source, codes = (trace.operations[column].to_physical().to_numpy()[rows] for column in ("source", "name"))
    names, name = trace.operations["name"].dtype, codes.astype(np.int64)
    assert isinstance(names, pl.Enum)
    symbol = _number_by_appearance(name)
    if (nodes > 1).any():
        kinds = int(symbol.max()) + 1
        symbol = np.unique(symbol + kinds * np.minimum(nodes - 1, MAX_NODES), return_inverse=True)[1]
    talks = _is_host_copy(trace, rows)
    following = np.searchsorted(figures["begin"], waits)
    talks[following[following < len(talks)]] = True
    return LaunchSequence(
        **figures,
        graph=(source == GRAPH) | (nodes > 1),
        name=name,
        stream=trace.operations["stream"].to_numpy()[rows],
        names=names.categories.to_list(),
        symbol=symbol,
        talks=talks,
    )


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
