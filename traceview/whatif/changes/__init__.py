"""The changes, in the order in which they are applied: copies are pinned before they are prefetched."""

from traceview.whatif.changes.allocate import ALLOCATE
from traceview.whatif.changes.base import GraphChange
from traceview.whatif.changes.communication import OVERLAP
from traceview.whatif.changes.compute import compute_changes, faster
from traceview.whatif.changes.fuse import FUSE
from traceview.whatif.changes.graph_launch import GRAPH
from traceview.whatif.changes.loading import LOADING
from traceview.whatif.changes.output import OUTPUT
from traceview.whatif.changes.pin import PIN, PIN_HERE
from traceview.whatif.changes.prefetch import PREFETCH
from traceview.whatif.changes.ranks import ranks
from traceview.whatif.changes.staged import STAGED
from traceview.whatif.changes.synchronize import SYNCHRONIZE

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
    OVERLAP,
)

__all__ = ["CHANGES", "GraphChange", "compute_changes", "faster", "ranks"]
