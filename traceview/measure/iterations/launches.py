"""The launches of a process in launch order: a sequence in which iterations without ranges repeat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from traceview.frozen import frozen
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, COMPUTE
from traceview.model.trace import KINDS, ROLES, SOURCES, Trace

MAX_NODES = 1000  # CUDA graphs with different numbers of nodes, up to this number, are different launches
H2D, D2H = KINDS.index("h2d"), KINDS.index("d2h")
KERNEL, GRAPH, SYNC = SOURCES.index("kernel"), SOURCES.index("graph"), ROLES.index("sync")


@frozen
class LaunchSequence:
    """The launches of a process, in launch order; a CUDA graph with traced nodes is one launch.

    `symbol` numbers the kinds of launches from 0. `begin` and `end` are the times of the launch calls, `gpu_ns` the
    GPU time that each launches. `computes` marks kernels and graphs, `graph` CUDA graphs, `talks` copies between host
    and GPU, and the first launch after a synchronization. `operation` is the row of Trace.operations that each launches
    first, `stream` its stream. `thread` is a row of Trace.threads; -1 if the capture lacks the launch calls. Then
    `begin` and `end` are those of the operations.
    """

    symbol: NDArray[np.int64]
    begin: Times
    end: Times
    gpu_ns: Times
    computes: NDArray[np.bool_]
    graph: NDArray[np.bool_]
    talks: NDArray[np.bool_]
    operation: Times
    stream: NDArray[np.int16]
    thread: NDArray[np.int16]

    def by_stream(self) -> LaunchSequence:
        """Return the same launches, with different symbols for launches on different streams."""
        kinds = self.symbol * (int(self.stream.max()) + 1) + self.stream
        return replace(self, symbol=np.unique(kinds, return_inverse=True)[1])

    def pauses(self) -> Times:
        """Return the time before each launch in which the process launched nothing."""
        latest = np.maximum.accumulate(self.end)
        return np.maximum(self.begin[1:] - latest[:-1], 0, out=np.zeros_like(self.begin[1:]))


def launch_sequence(trace: Trace, process: int) -> LaunchSequence:
    """Return the launches of a process; the operations themselves if most of its compute has no launch call."""
    operations = trace.operations
    rows = np.flatnonzero(operations["process"].to_numpy() == process)
    launch = operations["launch"].fill_null(-1).to_numpy()[rows]
    compute = operations["class"].to_physical().to_numpy()[rows] <= max(COMPUTE, COMMUNICATION)
    length = (operations["end"] - operations["start"]).to_numpy()[rows]
    stream = operations["stream"].to_numpy()
    graph = operations["source"].to_physical().to_numpy() == GRAPH
    if 2 * np.count_nonzero(launch[compute] >= 0) < np.count_nonzero(compute):
        start, end = (operations[name].to_numpy()[rows] for name in ("start", "end"))
        talks, thread = _is_host_copy(trace, rows), np.full(len(rows), -1, np.int16)
        return LaunchSequence(
            _symbols(trace, rows), start, end, length, compute, graph[rows], talks, rows, stream[rows], thread
        )
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
    calls = np.flatnonzero(nodes)
    operation, nodes = first[calls], nodes[calls]
    symbol, is_graph = _symbols(trace, operation), graph[operation] | (nodes > 1)
    if (nodes > 1).any():
        kinds = int(symbol.max()) + 1
        symbol = np.unique(symbol + kinds * np.minimum(nodes - 1, MAX_NODES), return_inverse=True)[1]
    talks = _is_host_copy(trace, operation)
    synchronizations = np.flatnonzero(trace.api["role"].to_physical().to_numpy() == SYNC)
    synchronizations = synchronizations[trace.api["process"].to_numpy()[synchronizations] == process]
    following = np.searchsorted(calls, synchronizations)
    talks[following[following < len(calls)]] = True
    start, end, thread = (trace.api[name].to_numpy()[calls] for name in ("start", "end", "thread"))
    return LaunchSequence(
        symbol, start, end, gpu_ns[calls], computes[calls], is_graph, talks, operation, stream[operation], thread
    )


def _symbols(trace: Trace, rows: Times) -> NDArray[np.int64]:
    """Return a number for the name of each operation, in the order in which names appear."""
    codes = trace.operations["name"].to_physical().to_numpy()[rows].astype(np.int64)
    first = np.full(int(codes.max()) + 1 if len(codes) else 0, len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    number = np.empty(len(first), np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(first))
    return number[codes]


def _is_host_copy(trace: Trace, rows: Times) -> NDArray[np.bool_]:
    kinds = trace.operations["kind"].to_physical().fill_null(len(KINDS)).to_numpy()[rows]
    is_host_copy: NDArray[np.bool_] = (kinds == H2D) | (kinds == D2H)
    return is_host_copy
