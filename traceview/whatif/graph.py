"""The dependency graph of a few iterations: a node is a moment, an edge the least time between two.

Call c begins at node 2c and returns at node 2c + 1; operation o starts at node 2C + 2o and ends at the next.
A moment is the latest of what its edges demand, and of `release`. A change is a graph with other edges:
nodes are never taken out, what is removed takes no time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times

Codes = NDArray[np.int64]
Mask = NDArray[np.bool_]

# GAP host time between calls; CALL a call's own work; WAIT a call's return after the work it waits for;
# LAUNCH from a call to its operation; STREAM order on a stream; ENGINE copies that share one; EVENT another
# stream's work; RUN the operation itself; QUEUE a place among the launched; REDUCE all-reduces that a change adds.
GAP, CALL, WAIT, LAUNCH, STREAM, ENGINE, EVENT, RUN, QUEUE, REDUCE = range(10)
KINDS = ("host", "call", "wait", "launch", "gap", "gap", "gap", "run", "wait", "communication")


@dataclass(frozen=True, slots=True)
class Calls:
    """API calls that launch, wait or hold; all arrays one entry a call, by start.

    `row` of Trace.api; `sync` an explicit synchronization; `blocking` a copy that holds its thread;
    `loading` the ns before the call, back to the one before it, that lie in a data-loading range; `backward`
    on another thread than the iterations', as autograd's calls are, or in a range named after the backward pass.
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


@dataclass(frozen=True, slots=True)
class Operations:
    """GPU work, by start. `call` is -1 and `iteration` -1 for what was launched before the model begins."""

    row: Codes
    start: Times
    end: Times
    call: Codes
    iteration: Codes
    stream: Codes
    device: Codes
    code: Codes  # of model.CLASSES
    kind: Codes  # of model.KINDS, -1 for what is not a copy
    memory: Codes  # of model.MEMORIES, -1 likewise
    size: Times  # bytes
    name: Codes  # of the categories of Trace.operations
    family: Codes  # of storms.FAMILIES


@dataclass(frozen=True, slots=True)
class Edges:
    """`weight` ns from `source` to `target`; `kind` is one of GAP to REDUCE."""

    source: Codes
    target: Codes
    weight: Times
    kind: Codes

    def keep(self, mask: Mask) -> Edges:
        """Return the edges of the mask alone."""
        return Edges(self.source[mask], self.target[mask], self.weight[mask], self.kind[mask])

    def weighing(self, weight: Times) -> Edges:
        """Return the same edges with other weights."""
        return replace(self, weight=weight)

    def plus(self, source: Codes, target: Codes, weight: Times | int, kind: int) -> Edges:
        """Return the edges and some more of one kind."""
        weights = np.broadcast_to(np.asarray(weight, np.int64), source.shape)
        more = (source, target, weights, np.full(len(source), kind, np.int64))
        mine = (self.source, self.target, self.weight, self.kind)
        return Edges(*(np.concatenate([a, b]).astype(np.int64) for a, b in zip(mine, more, strict=True)))


@dataclass(frozen=True, slots=True)
class Facts:
    """What the capture itself says of the machine."""

    launch_latency: int  # ns
    kernel_gap: int  # ns
    pinned_rate: float  # bytes a ns
    pinned_measured: bool
    staging_rate: float  # bytes a ns, of pageable copies
    gpu: str = ""  # the name of its model


@dataclass(frozen=True, slots=True)
class Graph:
    """Iterations [first, last) are counted; those before are there so that the host's lead is in it."""

    calls: Calls
    operations: Operations
    edges: Edges
    release: Times  # by node; the least moment, ns on the capture's clock
    first: int
    last: int
    facts: Facts

    @property
    def counted(self) -> int:
        """Iterations that the time is counted over."""
        return self.last - self.first

    def begins(self, call: Codes) -> Codes:
        """Nodes at which calls begin."""
        return 2 * call

    def returns(self, call: Codes) -> Codes:
        """Nodes at which calls return."""
        return 2 * call + 1

    def starts(self, operation: Codes) -> Codes:
        """Nodes at which operations start."""
        return 2 * len(self.calls.row) + 2 * operation

    def ends(self, operation: Codes) -> Codes:
        """Nodes at which operations end."""
        return self.starts(operation) + 1

    def with_edges(self, edges: Edges) -> Graph:
        """Return the same moments under other edges."""
        return replace(self, edges=edges)

    def of_calls(self, kind: int, chosen: Mask) -> Mask:
        """Return the mask of edges of a kind (GAP, CALL or WAIT) into the chosen calls."""
        call = self.edges.target // 2
        mine = (self.edges.kind == kind) & (call < len(self.calls.row))
        found: Mask = mine & chosen[np.where(mine, call, 0)] if len(chosen) else mine & False
        return found

    def of_operations(self, kind: int, chosen: Mask) -> Mask:
        """Return the mask of edges of a kind (LAUNCH to RUN) into the chosen operations."""
        operation = (self.edges.target - 2 * len(self.calls.row)) // 2
        mine = (self.edges.kind == kind) & (operation >= 0)
        found: Mask = mine & chosen[np.where(mine, operation, 0)] if len(chosen) else mine & False
        return found
