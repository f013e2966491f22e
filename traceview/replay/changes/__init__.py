"""The changes, in the order in which they are applied: copies are pinned before they are prefetched."""

from traceview.replay.changes.base import GraphChange
from traceview.replay.changes.communication import OVERLAP, ranks
from traceview.replay.changes.copies import OUTPUT, PIN, PIN_HERE, PREFETCH, STAGED
from traceview.replay.changes.hiding import CONNECTIONS, PREFETCH_COLLECTIVE, REORDER, SEPARATE_STREAM
from traceview.replay.changes.host import ALLOCATE, LOADING, SYNCHRONIZE
from traceview.replay.changes.kernels import FUSE, GRAPH, compute_changes, faster, shorter_compute

CHANGES: tuple[GraphChange, ...] = (
    PIN,
    PIN_HERE,
    PREFETCH,
    OUTPUT,
    SYNCHRONIZE,
    LOADING,
    ALLOCATE,
    FUSE,
    STAGED,
    GRAPH,
    REORDER,
    SEPARATE_STREAM,
    PREFETCH_COLLECTIVE,
    CONNECTIONS,
    OVERLAP,
)

__all__ = ["CHANGES", "GraphChange", "compute_changes", "faster", "ranks", "shorter_compute"]
