"""The changes, in the order that applies them when several are made: a copy must be pinned before it is ahead."""

from traceview.whatif.changes.base import Change
from traceview.whatif.changes.communication import OVERLAP
from traceview.whatif.changes.faster import faster
from traceview.whatif.changes.fuse import FUSE
from traceview.whatif.changes.graph_launch import GRAPH
from traceview.whatif.changes.loading import LOADING
from traceview.whatif.changes.pin import PIN, PIN_HERE
from traceview.whatif.changes.prefetch import PREFETCH
from traceview.whatif.changes.ranks import ranks
from traceview.whatif.changes.staged import STAGED
from traceview.whatif.changes.synchronize import SYNCHRONIZE

CHANGES: tuple[Change, ...] = (PIN, PIN_HERE, PREFETCH, SYNCHRONIZE, LOADING, FUSE, STAGED, GRAPH, OVERLAP)

__all__ = ["CHANGES", "Change", "faster", "ranks"]
