"""The work of a device at each moment by class. Of overlapping classes, the first of WORK_CLASSES counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.frozen import frozen
from traceview.intervals import Intervals
from traceview.model.analysis import Analysis
from traceview.model.devices import DeviceUse
from traceview.model.trace import CLASSES, KINDS, Window

# The look of each copy kind, by direction. Other kinds have the look "copy".
COPY_CLASSES = {
    "h2d": "h2d",
    "um_h2d": "h2d",
    "d2h": "d2h",
    "um_d2h": "d2h",
    "d2d": "d2d",
    "p2p": "d2d",
    "um_d2d": "d2d",
}
WORK_CLASSES = ("compute", "communication", "h2d", "d2h", "d2d", "copy", "memset")


@frozen
class Band:
    """One class of work of a device: its union, and the part that no earlier class of WORK_CLASSES covers."""

    name: str
    all: Intervals
    exposed: Intervals

    def exposed_ns(self, window: Window) -> int:
        """Return the exposed ns in a part of the device's window."""
        return intervals.length(intervals.clip(self.exposed, window.start, window.end))


Bands = tuple[Band, ...]


def work_codes(analysis: Analysis) -> NDArray[np.uint8]:
    """Return the index in WORK_CLASSES of each row of Trace.operations."""
    operations = analysis.trace.operations
    of_class = [WORK_CLASSES.index("copy" if name == "copy" else name) for name in CLASSES]
    of_kind = [WORK_CLASSES.index(COPY_CLASSES.get(kind, "copy")) for kind in KINDS]
    work = operations["class"].to_physical().to_numpy()
    kind = operations["kind"].to_physical().fill_null(len(KINDS)).to_numpy()
    copies = np.array([*of_kind, WORK_CLASSES.index("copy")], np.uint8)[kind]
    codes: NDArray[np.uint8] = np.where(work == CLASSES.index("copy"), copies, np.array(of_class, np.uint8)[work])
    return codes


def bands(analysis: Analysis) -> dict[int, Bands]:
    """Return each device's work by class inside its window, by row of Trace.devices.

    The exposed parts of a device add up to its `busy_ns`.
    """
    codes = work_codes(analysis)
    return {device.device: _device_bands(analysis, device, codes) for device in analysis.devices}


def _device_bands(analysis: Analysis, device: DeviceUse, codes: NDArray[np.uint8]) -> Bands:
    operations = analysis.trace.operations
    start, end = operations["start"].to_numpy(), operations["end"].to_numpy()
    mine = operations["device"].to_numpy() == device.device
    if not mine.all():
        start, end, codes = start[mine], end[mine], codes[mine]
    used = np.bincount(codes, minlength=len(WORK_CLASSES))
    split: list[Band] = []
    for code, name in enumerate(WORK_CLASSES):
        chosen = np.flatnonzero(codes == code) if 0 < used[code] < len(codes) else slice(None if used[code] else 0)
        union = intervals.union(start[chosen], end[chosen], ordered=True)
        union = intervals.clip(union, device.window.start, device.window.end)
        exposed = union
        for before in split:
            exposed = intervals.subtract(exposed, before.all)
        split.append(Band(name, union, exposed))
    return tuple(split)
