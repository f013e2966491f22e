"""Sums of the timeline in bins, made by slices on the grid of the capture, or from the lanes of a capture in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from traceview.frozen import frozen
from traceview.intervals import Times
from traceview.model.trace import Window
from traceview.report.timeline.index import NamePlaces
from traceview.report.timeline.name_sums import NameSums, sums_of_row
from traceview.report.timeline.rows import Group
from traceview.report.timeline.summary import DeviceLanes, device_sums

DeviceSums = dict[str, Times]


def bin_shift(length: int, bins: int) -> int:
    """Return the exponent of the width of at most about `bins` bins, powers of two in ns."""
    return max(0, (length // bins).bit_length())


def bin_edges(span: Window, shift: int, first: int = 0, last: int | None = None) -> Times:
    """Return the borders of the bins from `first` to `last` of a timeline; bins are 2^shift ns wide.

    The last bin of the timeline ends with it.
    """
    stop = (span.length >> shift) + 1 if last is None else last + 1
    edges: Times = np.minimum(span.start + (np.arange(first, stop + 1) << shift), span.end + 1)
    return edges


@frozen
class StoredSums:
    """The sums of lanes in files, in bins of the whole timeline, and places of their names.

    `devices` are by device id, in bins of 2^device_shift ns; `names` have bins of 2^name_shift ns. `rows` are the ids
    of the rows of `places`.
    """

    device_shift: int
    devices: Mapping[str, DeviceSums]
    name_shift: int
    names: Sequence[NameSums]
    rows: Sequence[str]
    places: NamePlaces


def sums_of_devices(
    devices: Sequence[DeviceLanes], span: Window, shift: int, stored: StoredSums | None
) -> tuple[int, dict[str, DeviceSums]]:
    """Return the sums of each device (by id) in bins of 2^shift ns, or wider ones, and their shift."""
    if stored is None:
        edges = bin_edges(span, shift)
        return shift, {device.id: device_sums(device, edges) for device in devices}
    shift = max(shift, stored.device_shift)
    first = np.arange(0, (span.length >> stored.device_shift) + 1, 1 << (shift - stored.device_shift))
    return shift, {
        device.id: {name: np.add.reduceat(sums, first) for name, sums in stored.devices[device.id].items()}
        for device in devices
    }


def sums_of_names(
    groups: Sequence[Group], span: Window, shift: int, stored: StoredSums | None
) -> tuple[int, list[NameSums]]:
    """Return the sums of all names in bins of 2^shift ns, or wider ones, and their shift."""
    known: dict[str, list[NameSums]] = {}
    if stored is not None:
        shift = max(shift, stored.name_shift)
        for part in stored.names:
            known.setdefault(part.row, []).append(part.wider(shift - stored.name_shift))
    return shift, list(_names(groups, bin_edges(span, shift), known))


def _names(groups: Sequence[Group], edges: Times, known: Mapping[str, Sequence[NameSums]]) -> Iterator[NameSums]:
    for group in groups:
        for row in group.rows:
            yield from known[row.id] if row.id in known else sums_of_row(row, edges)
