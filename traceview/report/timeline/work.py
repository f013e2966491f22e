"""Classes of work: the looks of marks, and the bands that lead each device.

A band is the work of a device at each moment by class. Of overlapping classes, the first of WORK_CLASSES counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.model.analysis import CAUSES, EXPOSED_CAUSES, DeviceUse
from traceview.model.trace import CLASSES, KINDS, ROLES, Trace, Window
from traceview.report.timeline.marks import Marks, Names

# The look of each copy kind, by direction. Other kinds have the look "copy".
COPY_CLASSES = {kind: look for look in ("h2d", "d2h", "d2d") for kind in (look, f"um_{look}")} | {"p2p": "d2d"}
WORK_CLASSES = ("compute", "communication", "h2d", "d2h", "d2d", "copy", "memset")
LOOKS = (
    *WORK_CLASSES,
    *(f"call_{role}" for role in ROLES),
    "range",
    "sample",
    "iteration",
    "skipped",
    "counter",
    *(f"idle_{cause}" for cause in CAUSES),
    *(f"exposed_{cause}" for cause in EXPOSED_CAUSES),
)
WORDS = {
    "compute": "compute",
    "communication": "communication",
    "h2d": "copy h2d",
    "d2h": "copy d2h",
    "d2d": "copy d2d, p2p",
    "copy": "other copy",
    "memset": "memset",
}
# The looks of the critical path (traceview/model/whatif.py).
PATH_LOOKS = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copy",
    "memset": "memset",
    "gap": "idle_queued",
    "launch": "idle_launch",
    "host": "idle_host",
    "call": "call_api",
    "wait": "call_sync",
}
OVERLAP_LANES = (("compute",), ("communication",), WORK_CLASSES[2:])


class Band(NamedTuple):
    """One class of work of a device: its union, and the time that no earlier class of WORK_CLASSES covers."""

    name: str
    all: Intervals
    exposed: Intervals

    def exposed_ns(self, window: Window) -> int:
        """Return the exposed ns inside a window."""
        return intervals.length(intervals.clip(self.exposed, window.start, window.end))


Bands = tuple[Band, ...]


def work_codes(operations: pl.DataFrame) -> NDArray[np.uint8]:
    """Return the index in WORK_CLASSES of each row of Trace.operations."""
    of_class = [WORK_CLASSES.index("copy" if name == "copy" else name) for name in CLASSES]
    of_kind = [WORK_CLASSES.index(COPY_CLASSES.get(kind, "copy")) for kind in KINDS]
    work = operations["class"].to_physical().to_numpy()
    kind = operations["kind"].to_physical().fill_null(len(KINDS)).to_numpy()
    copies = np.array([*of_kind, WORK_CLASSES.index("copy")], np.uint8)[kind]
    codes: NDArray[np.uint8] = np.where(work == CLASSES.index("copy"), copies, np.array(of_class, np.uint8)[work])
    return codes


def bands(trace: Trace, devices: Iterable[DeviceUse]) -> dict[int, Bands]:
    """Return each device's work by class inside its window, by row of Trace.devices.

    The exposed times of a device add up to its `busy_ns`.
    """
    operations, codes = trace.operations, work_codes(trace.operations)
    start, end, on = (operations[name].to_numpy() for name in ("start", "end", "device"))
    every = {}
    for device in devices:
        mine = on == device.device
        rows = slice(None) if mine.all() else mine
        every[device.device] = _device_bands(start[rows], end[rows], codes[rows], device.window)
    return every


def _device_bands(start: Times, end: Times, codes: NDArray[np.uint8], window: Window) -> Bands:
    used = np.bincount(codes, minlength=len(WORK_CLASSES))
    split: list[Band] = []
    for code, name in enumerate(WORK_CLASSES):
        chosen = np.flatnonzero(codes == code) if 0 < used[code] < len(codes) else slice(None if used[code] else 0)
        union = intervals.clip(intervals.union(start[chosen], end[chosen], ordered=True), window.start, window.end)
        exposed = union
        for before in split:
            exposed = intervals.subtract(exposed, before.all)
        split.append(Band(name, union, exposed))
    return tuple(split)


def overlap_lanes(work: Bands, names: Names) -> tuple[Marks, ...]:
    """Return the work of a device as marks, in the order of OVERLAP_LANES."""
    known = {band.name: band for band in work}
    return tuple(_lane([known[name] for name in lane], names) for lane in OVERLAP_LANES)


def _lane(work: list[Band], names: Names) -> Marks:
    sizes = [len(band.all.start) for band in work]
    name = np.repeat(np.array([names.number(WORDS[band.name]) for band in work], np.int32), sizes)
    look = np.repeat(np.array([LOOKS.index(band.name) for band in work], np.uint8), sizes)
    if not any(sizes[1:]):
        return Marks(*work[0].all, name, look)
    start, end = (np.concatenate(edges) for edges in zip(*(band.all for band in work), strict=True))
    return Marks(start, end, name, look).take(np.argsort(start, kind="stable"))


def idle_lane(device: DeviceUse, ending: NDArray[np.int32], none: int) -> Marks:
    """Return the gaps of a device as marks, with their ns by cause.

    `ending` has the name's number of each operation. A gap that no operation ends has the name `none`.
    """
    gaps = device.gaps.frame
    causes = {cause: gaps[cause].to_numpy() for cause in CAUSES if device.gaps.causes[cause]}
    largest, main = np.zeros(len(gaps), np.int64), np.zeros(len(gaps), np.uint8)
    for cause, column in causes.items():
        # Codes of causes ascend, so maximum() replaces a masked assignment, which is much slower.
        np.maximum(main, (column > largest) * np.uint8(CAUSES.index(cause)), out=main)
        np.maximum(largest, column, out=largest)
    ended_by = gaps["operation"].fill_null(-1).to_numpy()
    return Marks(
        gaps["start"].to_numpy(),
        gaps["end"].to_numpy(),
        np.where(ended_by >= 0, ending[np.maximum(ended_by, 0)], np.int32(none)) if len(gaps) else main,
        main + np.uint8(LOOKS.index(f"idle_{CAUSES[0]}")),
        causes,
    )


# Causes in which the next operation waits for the exposed one itself.
AWAITED = np.isin(EXPOSED_CAUSES, ("same_stream", "launched_late", "waited_itself"))


def exposed_lanes(exposed: pl.DataFrame, names: NDArray[np.int32], none: int) -> tuple[Marks, ...]:
    """Return the exposed time of communication, and of copies and memsets, as marks with the look of their cause.

    `exposed` is that of PageInputs, and `names` has the name's number of each operation. A mark has the name of the
    operation that follows, `none` for none, and the numbers of two further names, plus 1: of the operation that is
    exposed, and of what the following one waits for.
    """
    is_talk = exposed["work"].to_numpy() == 0
    lanes = []
    for rows in filter(len, (np.flatnonzero(is_talk), np.flatnonzero(~is_talk))):
        start, end, operation, following, cause, reason = (
            exposed[name].to_numpy()[rows] for name in ("start", "end", "operation", "following", "cause", "reason")
        )
        awaited = np.where((reason < 0) & AWAITED[cause], operation, reason)
        details = {"exposed": names[operation] + 1, "awaited": np.where(awaited < 0, 0, names[awaited] + 1)}
        name = np.where(following < 0, np.int32(none), names[following])
        lanes.append(Marks(start, end, name, cause + np.uint8(LOOKS.index("exposed_host")), details=details))
    return tuple(lanes)
