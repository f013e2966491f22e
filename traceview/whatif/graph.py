"""The dependency graph of a few iterations. A node is a time; an edge is the minimum time between two nodes.

Call c begins at node 2c and returns at node 2c + 1. With C calls, operation o starts at node 2C + 2o and ends at the
next node. The time of a node is the latest time that its incoming edges and its `release` allow. A change replaces
edges. It never removes nodes: removed work takes no time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times

Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]

# GAP host time between calls
# CALL a call's own work
# WAIT from the end of an operation to the return of a call that waits for it
# LAUNCH from a call to its operation
# STREAM order on a stream
# ENGINE order of copies that share a copy engine
# EVENT from an operation on another stream
# RUN the operation itself
# QUEUE from the start of an operation to the return of a launch that waits for room in the queue
# REDUCE all-reduces that a change adds
GAP, CALL, WAIT, LAUNCH, STREAM, ENGINE, EVENT, RUN, QUEUE, REDUCE = range(10)
KINDS = ("host", "call", "wait", "launch", "gap", "gap", "gap", "run", "wait", "communication")
FAMILIES = ("other", "shared", "fused", "matrix")  # kinds of kernels, by name (storms.name_families)


@dataclass(frozen=True, slots=True)
class GraphCalls:
    """API calls that launch, wait, block or allocate. Each array has one entry for each call, sorted by start.

    `row` is the row of Trace.api. `sync` marks explicit synchronizations, `blocking` copies that block their thread.
    `loading` is the time in ns since the previous call that lies in a data-loading range or, where no range has such a
    name, that precedes the copy of a batch. `backward` marks calls of the backward pass: those on another thread than
    the iterations, or in a range named after the backward pass. `memory` marks allocations and frees.
    """

    row: Codes
    start: Times
    end: Times
    thread: Codes
    iteration: Codes
    sync: Mask
    blocking: Mask
    loading: Times
    backward: Mask
    memory: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))


class Operations(NamedTuple):
    """GPU operations, sorted by start. `call` and `iteration` are -1 if the launch is before the modelled time."""

    row: Codes
    start: Times
    end: Times
    call: Codes
    iteration: Codes
    stream: Codes
    device: Codes
    code: Codes  # index in model.CLASSES
    kind: Codes  # index in model.KINDS, -1 if not a copy
    memory: Codes  # index in model.MEMORIES, -1 if not a copy
    size: Times  # bytes
    name: Codes  # index in the categories of Trace.operations["name"]
    family: Codes  # index in FAMILIES

    @property
    def is_matrix(self) -> Mask:
        """The kernels that compute matrix products, convolutions or attention."""
        mask: Mask = self.family == FAMILIES.index("matrix")
        return mask


class Edges(NamedTuple):
    """`weight` is the minimum time in ns from node `source` to node `target`. `kind` is one of GAP to REDUCE."""

    source: Codes
    target: Codes
    weight: Times
    kind: Codes

    def keep(self, mask: Mask) -> Edges:
        """Return only the edges in the mask."""
        return Edges(self.source[mask], self.target[mask], self.weight[mask], self.kind[mask])

    def with_weight(self, weight: Times) -> Edges:
        """Return the same edges with other weights."""
        return self._replace(weight=weight)

    def plus(self, source: Codes, target: Codes, weight: Times | int, kind: int) -> Edges:
        """Return these edges and more edges of one kind."""
        weights = np.broadcast_to(np.asarray(weight, np.int64), source.shape)
        more = (source, target, weights, np.full(len(source), kind, np.int64))
        mine = (self.source, self.target, self.weight, self.kind)
        return Edges(*(np.concatenate([a, b]).astype(np.int64) for a, b in zip(mine, more, strict=True)))


class MachineFacts(NamedTuple):
    """Latencies and rates of the machine, measured in the capture where possible."""

    launch_latency: int  # ns
    kernel_gap: int  # ns
    pinned_rate: float  # bytes/ns
    pinned_measured: bool
    staging_rate: float  # bytes/ns of pageable copies
    gpu: str = ""  # model name
    overhead: float = 0.0  # share of the modelled time that the profiler itself takes


class DependencyGraph(NamedTuple):
    """Calls, operations and the edges between them.

    The time of iterations [first, last) is counted. Earlier iterations are included to model the lead of the host.
    """

    calls: GraphCalls
    operations: Operations
    edges: Edges
    release: Times  # the earliest time of each node, in ns on the capture's clock
    first: int
    last: int
    facts: MachineFacts
    remarks: tuple[str, ...] = ()  # remarks of the changes on data that the capture lacks

    @property
    def counted(self) -> int:
        """The number of counted iterations."""
        return self.last - self.first

    def begins(self, call: Codes) -> Codes:
        """Return the nodes at which calls begin."""
        return 2 * call

    def starts(self, operation: Codes) -> Codes:
        """Return the nodes at which operations start."""
        return 2 * len(self.calls.row) + 2 * operation

    def ends(self, operation: Codes) -> Codes:
        """Return the nodes at which operations end."""
        return self.starts(operation) + 1

    def with_edges(self, edges: Edges) -> DependencyGraph:
        """Return the same nodes with other edges."""
        return self._replace(edges=edges)

    def with_weight(self, weight: Times) -> DependencyGraph:
        """Return the same graph with other weights of its edges."""
        return self.with_edges(self.edges.with_weight(weight))

    def operations_at(self, nodes: Codes) -> Codes:
        """Return the operations whose start or end these nodes are; a negative number for a node of a call."""
        return nodes // 2 - len(self.calls.row)

    def call_edges(self, kind: int, chosen: Mask) -> Mask:
        """Return the mask of edges of a kind (GAP, CALL, WAIT or QUEUE) into the chosen calls."""
        call = self.edges.target // 2
        mine = (self.edges.kind == kind) & (call < len(self.calls.row))
        mask: Mask = mine & chosen[np.where(mine, call, 0)] if len(chosen) else mine & False
        return mask

    def operation_edges(self, kind: int, chosen: Mask) -> Mask:
        """Return the mask of edges of a kind (LAUNCH to RUN) into the chosen operations."""
        operation = self.operations_at(self.edges.target)
        mine = (self.edges.kind == kind) & (operation >= 0)
        mask: Mask = mine & chosen[np.where(mine, operation, 0)] if len(chosen) else mine & False
        return mask
