"""GPUs: their work, its overlap, and the causes of their idle time, in their window and in its steady part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import polars as pl

from traceview.model.columns import Table
from traceview.model.rows import CommunicationOverlap, CopyOverlap, StreamUse
from traceview.model.stacks import HOST_STATES
from traceview.model.trace import Window

CAUSES = (
    "profiler",
    "queued",
    "launch",
    "sync",
    "blocking_copy",
    "memory",
    "api",
    "host",
    "unknown",
)


@dataclass(frozen=True, slots=True)
class Gap:
    """One idle gap. The ns of its causes add up to its length."""

    start_ns: int
    end_ns: int
    causes: Mapping[str, int]  # every cause, in the order of CAUSES
    next_operation: str | None  # the name of the operation that ends it
    thread: int | None  # the thread that launched it, a row of Trace.threads
    range: str | None  # innermost NVTX range that is open on this thread in the middle of its wait

    @property
    def cause(self) -> str:
        """The cause with the most time."""
        return max(self.causes, key=lambda name: self.causes[name])


@dataclass(frozen=True, slots=True)
class HostStates:
    """What the launching threads did in `host` idle time (docs/definitions.md).

    `ns` has each of HOST_STATES; they add up to `host`. `waits` names the calls of the state `waiting`, the longest
    first.
    """

    ns: Mapping[str, int]
    waits: Mapping[str, int]


NO_HOST_STATES = HostStates(dict.fromkeys(HOST_STATES, 0), {})


@dataclass(frozen=True, slots=True)
class Gaps:
    """Idle gaps of one device or stream.

    `frame` has one row per gap: start, end, operation (row of Trace.operations, null at the end of a window), thread
    (row of Trace.threads or null) and one Int64 column with the ns of each of CAUSES. Gaps of a stream have three more
    causes, which take precedence: other_compute, other_communication and other_copy. Their `frame` is empty to save
    memory; only sums are measured.
    """

    count: int
    total_ns: int
    causes: Mapping[str, int]
    frame: pl.DataFrame
    longest: tuple[Gap, ...] = ()
    host_states: HostStates = NO_HOST_STATES  # measured for devices, not for streams
    profiler: Mapping[str, int] | None = None  # estimate: the ns of each cause that a run without the profiler lacks


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """The work of one GPU in a part of its window, clipped at the border of the part."""

    window: Window
    kernel_count: int
    busy_ns: int
    compute_ns: int
    communication_ns: int
    exposed_h2d_ns: int
    exposed_d2h_ns: int
    idle_ns: int
    gaps: Gaps  # the longest are listed for the window alone
    tables: Mapping[str, Table]  # the result of every PartMeasure, by name; in the window also of every DeviceMeasure

    def figures(self) -> dict[str, Any]:
        """Return the fields of DeviceFigures by name, also for a DeviceUse."""
        return {field.name: getattr(self, field.name) for field in fields(DeviceFigures)}

    @property
    def copies(self) -> tuple[CopyOverlap, ...]:
        """One row per kind and memory."""
        return self.tables["copies"].rows

    @property
    def communication(self) -> CommunicationOverlap:
        """The communication kernels."""
        return self.tables["communication"].rows[0]  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class DeviceUse(DeviceFigures):
    """One GPU in its window, and in its steady part (docs/definitions.md "The steady part").

    Without iterations the steady part is the window. It is empty if the device works only outside it.
    """

    device: int  # row of Trace.devices
    id: str
    name: str
    process_ids: tuple[int, ...]
    steady: DeviceFigures

    @property
    def streams(self) -> tuple[StreamUse, ...]:
        """One row per stream."""
        return self.tables["streams"].rows
