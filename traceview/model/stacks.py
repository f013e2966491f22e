"""Data on the host apart from CUDA calls: Python stacks, CPU samples, system calls, scheduling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.frozen import frozen

if TYPE_CHECKING:
    from polars._typing import PolarsDataType

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
}


# Modules of native code that do not identify the caller: the C library, the loader, the kernel, Python itself.
SYSTEM_MODULE = r"^(?:lib(?:c|pthread|m|dl|rt|gcc_s|stdc\+\+|util)[-.]|ld-|\[|vmlinux|(?:lib)?python[\d.]*)"
MAX_STACK = 60  # frames of a finding's stack, the innermost ones


@frozen
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


@frozen
class HostPlace:
    """Where the host was in the idle time that a finding costs (docs/definitions.md).

    Attributes:
        time_ns: The part of the finding's idle time that it explains.
        stack: The outermost frame first, at most MAX_STACK frames; empty if no stack was taken.
        own: The index in `stack` of the innermost frame of the program's code, whose line is the place; the innermost
            frame of all if the stack has none of the program's code.
        state: One of HOST_STATES that has at least half of this time; "" if none has or if it is spent in CUDA calls.
        waits_in: The call with most of the state `waiting`, such as "sem_timedwait", "GIL" or "read (data.bin)".
    """

    time_ns: int
    stack: tuple[StackFrame, ...] = ()
    own: int = 0
    state: str = ""
    waits_in: str = ""

    @property
    def calls(self) -> tuple[StackFrame, ...]:
        """The functions of libraries below the program's line, the outermost first."""
        return self.stack[self.own + 1 :]


def _empty(schema: Mapping[str, PolarsDataType]) -> pl.DataFrame:
    return pl.DataFrame(schema={name: pl.Enum([]) if kind is pl.Enum else kind for name, kind in schema.items()})


@frozen
class HostEvidence:
    """Stacks as a tree, when threads had them, and events with the states of threads.

    `samples` and `events` are sorted by start.
    """

    frames: pl.DataFrame = field(default_factory=lambda: _empty(FRAMES))
    stacks: pl.DataFrame = field(default_factory=lambda: _empty(STACKS))
    samples: pl.DataFrame = field(default_factory=lambda: _empty(SAMPLES))
    events: pl.DataFrame = field(default_factory=lambda: _empty(EVENTS))

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
        candidate = names_who.to_numpy()[frame]
        node = np.arange(len(parent))
        best = node.copy()
        while (outward := library[node] & (parent[node] >= 0)).any():
            best = np.where(candidate[node], node, best)
            node = np.where(outward, parent[node], node)
        best = np.where(candidate[node], node, best)
        return np.where(library[node], best, node)

    @property
    def tables(self) -> tuple[tuple[str, pl.DataFrame, Mapping[str, PolarsDataType]], ...]:
        """Each frame with its name and schema."""
        return (
            ("frames", self.frames, FRAMES),
            ("stacks", self.stacks, STACKS),
            ("samples", self.samples, SAMPLES),
            ("events", self.events, EVENTS),
        )
