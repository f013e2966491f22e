"""The changes, in the order that applies them when several are made: a copy must be pinned before it is ahead."""

from traceview.estimate.changes.base import Change
from traceview.estimate.changes.communication import OVERLAP
from traceview.estimate.changes.faster import faster
from traceview.estimate.changes.fuse import FUSE
from traceview.estimate.changes.graph_launch import GRAPH
from traceview.estimate.changes.loading import LOADING
from traceview.estimate.changes.pin import PIN, PIN_HERE
from traceview.estimate.changes.prefetch import PREFETCH
from traceview.estimate.changes.ranks import ranks
from traceview.estimate.changes.staged import STAGED
from traceview.estimate.changes.synchronize import SYNCHRONIZE

CHANGES: tuple[Change, ...] = (PIN, PIN_HERE, PREFETCH, SYNCHRONIZE, LOADING, FUSE, STAGED, GRAPH, OVERLAP)

__all__ = ["CHANGES", "Change", "faster", "ranks"]
