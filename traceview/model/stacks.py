"""Data on the host apart from CUDA calls: scopes, call stacks as a tree, CPU samples, system calls, scheduling.

Scopes are the ops and modules of a model, and the Python functions that call them.

CallTree is built level by level, without a loop over stacks or frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import distinct_rows
from traceview.model.frozen import dataclass
from traceview.model.sizes import empty_frame

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

SCOPE_KINDS = OP, MODULE, FUNCTION = ("op", "module", "function")

SCOPES: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.Enum,  # "aten::linear"; "layer1.0.conv1" or "Conv2d_3"; "models/gpt.py:31 forward"
    "thread": pl.Int16,  # row of Trace.threads
    "process": pl.Int32,
    "kind": pl.Enum(SCOPE_KINDS),
    "backward": pl.Boolean,  # a backward function of autograd, or a module's range around its backward
    # A backward op has the number of the forward op that created it; null for an op without gradients.
    "sequence": pl.Int64,
    "forward_thread": pl.Int64,  # PyTorch's number of the thread of a backward op's forward; null if unknown
    "range": pl.Int32,  # row of Trace.ranges; null if it is not a range
}
# Kernels of CUDA graphs whose capture is in the trace.
CAPTURES: Mapping[str, PolarsDataType] = {
    "operation": pl.Int32,  # row of Trace.operations
    "thread": pl.Int16,  # row of Trace.threads that added the kernel to the graph
    "start": pl.Int64,  # when it did
}
Numbers = NDArray[np.int64]


class CallTree(NamedTuple):
    """Stacks that share their outer frames.

    `parent` (row of the caller, -1 at the outermost frame) and `frame` (row of `frames`) describe the nodes, `leaf` has
    the node of each stack's innermost frame, and `frames` has the distinct frames, one row of numbers each.
    """

    parent: Numbers
    frame: Numbers
    leaf: Numbers
    frames: Numbers

    @classmethod
    def from_chains(cls, frames: Numbers, depth: Numbers) -> CallTree:
        """Return the tree of stacks: `depth` rows of `frames` each (at least one), the innermost first."""
        first = np.cumsum(depth) - depth
        parent = np.arange(1, len(frames) + 1)
        parent[first + depth - 1] = -1
        level = np.repeat(first + depth - 1, depth) - np.arange(len(frames))
        return _unify_nodes(parent, frames, level, first)

    @classmethod
    def from_calls(cls, parent: Numbers, frames: Numbers, level: Numbers) -> CallTree:
        """Return the tree of calls; `parent` is the caller's row (-1 for none), `level` the number of callers."""
        return _unify_nodes(parent, frames, level, np.arange(len(parent)))

    def levels(self) -> Numbers:
        """Return the number of callers of each node. A caller comes before what it calls."""
        return node_levels(self.parent)


def node_levels(parent: Numbers) -> Numbers:
    """Return the number of callers of each node of a tree."""
    level = np.zeros(len(parent), np.int64)
    above = parent
    while (inside := above >= 0).any():
        level += inside
        above = np.where(inside, parent[above], -1)
    return level


def _unify_nodes(parent: Numbers, frames: Numbers, level: Numbers, leaf: Numbers) -> CallTree:
    """Merge nodes with equal parents and frames, one level after the other."""
    every, (frame,) = distinct_rows([pl.DataFrame(frames)])
    distinct = every.to_numpy()
    by_level = np.argsort(level, kind="stable")
    ends = np.cumsum(np.bincount(level))
    node = np.full(len(parent) + 1, -1, np.int64)  # the last one stands for no parent
    parents, own_frames, count = [], [], 0
    for begin, end in zip((0, *ends.tolist()), ends.tolist(), strict=False):
        rows = by_level[begin:end]
        keys = node[parent[rows]] * len(distinct) + frame[rows]
        unique, where = np.unique(keys, return_inverse=True)
        node[rows] = where + count
        parents.append(unique // len(distinct))
        own_frames.append(unique % len(distinct))
        count += len(unique)
    return CallTree(np.concatenate(parents), np.concatenate(own_frames), node[leaf], distinct)


# What a thread did in `host` idle time (docs/definitions.md). The first of these that a nanosecond has is its state.
HOST_STATES = ("garbage_collection", "compiling", "waiting", "off_cpu", "running", "unattributed")
EVENT_STATES = HOST_STATES[:-1]

FRAMES: Mapping[str, PolarsDataType] = {
    "function": pl.String,
    "file": pl.String,  # relative to its package or the program's folder; "" for built-in functions
    "line": pl.Int32,  # 0 if unknown
    "library": pl.Boolean,  # whether the function belongs to an installed package or to Python, not to the program
}
STACKS: Mapping[str, PolarsDataType] = {
    "parent": pl.Int32,  # row of HostEvidence.stacks: the caller; -1 at the outermost frame
    "frame": pl.Int32,  # row of HostEvidence.frames
}
SAMPLES: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,  # equals `start` for a sample; later for a stack that is known exactly
    "thread": pl.Int16,  # row of Trace.threads; null if the thread is unknown
    "python_thread": pl.Int16,  # numbers the Python threads of a capture; null for a sample of native code
    "holds_gil": pl.Boolean,  # null if unknown
    "stack": pl.Int32,  # row of HostEvidence.stacks: its innermost frame; -1 if unknown
}
EVENTS: Mapping[str, PolarsDataType] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "state": pl.Enum(EVENT_STATES),
    "name": pl.Enum,  # the system call, "GIL", "lazy function loading", ...
    "thread": pl.Int16,  # row of Trace.threads
    "waits_for": pl.Enum,  # what the thread waits for: "thread pin_memory", "process python3"; "" if unknown
}


# Modules of native code that do not identify the caller: the C library, the loader, the kernel, the runtimes of Python,
# Julia (and its compiled packages, in files such as `oWw5k_xB2Qz.so`), OpenMP, OpenACC and CUDA, allocators. The
# functions are those of a runtime that is linked in, or the first symbol of a program without symbols.
# Five letters, of which some are capitals or digits: the words in the names of Julia's compiled packages are random.
_RANDOM = "|".join(rf"\w{{{at}}}[A-Z\d]\w{{{4 - at}}}" for at in range(5))
SYSTEM_MODULE = (
    r"^(?:lib(?:c|pthread|m|dl|rt|gcc_s|stdc\+\+|util|julia|julia-internal|cuda|cudart|g?omp|iomp5|nvomp|acc\w+|"
    rf"[jt]e?c?malloc\w*)[-.]|(?:{_RANDOM})_\w{{5}}\.so|ld-|\[|vmlinux|(?:lib)?python[\d.]*)"
)
SYSTEM_FUNCTION = r"^(?:_init|_fini|_start|frame_dummy|cudart::.*|__cudart\d+|.*CachingAllocator::.*|ijl_\w+|jl_\w+)$"
MAX_STACK = 60  # frames of a finding's stack, the innermost ones


@dataclass(frozen=True, slots=True)
class StackFrame:
    """One function of a call stack."""

    function: str
    file: str  # as in FRAMES
    line: int
    library: bool

    @property
    def text(self) -> str:
        """`train (train.py:20)`."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{self.function} ({place})" if place else self.function


@dataclass(frozen=True, slots=True)
class HostPlace:
    """Where the host was in the idle time that a finding costs (docs/definitions.md).

    Attributes:
        time_ns: The ns of the finding's idle time that it explains.
        stack: The outermost frame first, at most MAX_STACK frames; empty if no stack was taken.
        own: The index in `stack` of the innermost frame of the program's code, whose line is the place; the innermost
            frame of all if the stack has none of the program's code.
        state: One of HOST_STATES that has at least half of this time; "" if none has or if it is spent in CUDA calls.
        waits_in: The call with most of the state `waiting`, such as "sem_timedwait", "GIL" or "read (data.bin)".
        waits_for: The thread or process that works meanwhile; "" if unknown.
    """

    time_ns: int
    stack: tuple[StackFrame, ...] = ()
    own: int = 0
    state: str = ""
    waits_in: str = ""
    waits_for: str = ""

    @property
    def calls(self) -> tuple[StackFrame, ...]:
        """The functions of libraries below the program's line, the outermost first."""
        return self.stack[self.own + 1 :]


EVIDENCE: Mapping[str, Mapping[str, PolarsDataType]] = {
    "frames": FRAMES,
    "stacks": STACKS,
    "samples": SAMPLES,
    "events": EVENTS,
}


@dataclass(frozen=True, slots=True)
class HostEvidence:
    """Stacks as a tree, when threads had them, and events with the states of threads.

    `samples` and `events` are sorted by start.
    """

    frames: pl.DataFrame = field(default_factory=lambda: empty_frame(FRAMES))
    stacks: pl.DataFrame = field(default_factory=lambda: empty_frame(STACKS))
    samples: pl.DataFrame = field(default_factory=lambda: empty_frame(SAMPLES))
    events: pl.DataFrame = field(default_factory=lambda: empty_frame(EVENTS))

    @property
    def shows_idle_host(self) -> bool:
        """Whether anything but CUDA calls shows what the host does while GPUs are idle."""
        return not (self.samples.is_empty() and self.events.is_empty())

    def callers(self, node: int) -> Iterator[StackFrame]:
        """Yield the frame of a row of `stacks`, then those of its callers; none for -1."""
        while node >= 0:
            node, frame = self.stacks.row(node)
            yield StackFrame(*self.frames.row(frame))

    def stack(self, node: int) -> tuple[StackFrame, ...]:
        """Return the frames of a row of `stacks`, the outermost first, at most MAX_STACK of the innermost."""
        return tuple(islice(self.callers(node), MAX_STACK))[::-1]

    def own_nodes(self) -> NDArray[np.int64]:
        """Return the node of each stack that is its place: the innermost one of the program's own code.

        Without such code it is the outermost node in a native library of more than the system, else the stack itself.
        """
        parent, frame = (self.stacks[name].to_numpy() for name in ("parent", "frame"))
        frames = self.frames
        library = frames["library"].to_numpy()[frame]
        names_who = (frames["line"] == 0) & (frames["file"] != "") & ~frames["file"].str.contains(SYSTEM_MODULE)
        names_who &= ~frames["function"].str.contains(SYSTEM_FUNCTION)
        candidate = names_who.to_numpy()[frame]
        node = np.arange(len(parent))
        best = node.copy()
        while (outward := library[node] & (parent[node] >= 0)).any():
            best = np.where(candidate[node], node, best)
            node = np.where(outward, parent[node], node)
        best = np.where(candidate[node], node, best)
        return np.where(library[node], best, node)
