"""Sums of a capture in bins, so that a measurement reads only the bins at its ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from traceview.frozen import frozen
from traceview.intervals import Times
from traceview.model.trace import Window
from traceview.report.timeline.binned import StoredSums, bin_edges, bin_shift, sums_of_devices, sums_of_names
from traceview.report.timeline.name_sums import NameSums, added, row_sums
from traceview.report.timeline.rows import Group
from traceview.report.timeline.summary import DeviceLanes, device_sums


@frozen
class BinnedSums:
    """The sums of each device up to each of the ascending `edges`, and those of names in each bin of `name_edges`."""

    edges: Times
    before: Sequence[dict[str, Times]]
    name_edges: Times
    names: Sequence[NameSums]

    @classmethod
    def from_lanes(
        cls,
        groups: Sequence[Group],
        devices: Sequence[DeviceLanes],
        span: Window,
        bins: int,
        stored: StoredSums | None = None,
    ) -> BinnedSums:
        """Return the sums in at most about `bins` bins; without sums for one bin. `stored` has those of files."""
        if bins < 2:
            return cls(np.array([span.start]), [], np.array([span.start]), [])
        shift = bin_shift(span.length, bins)
        device_shift, sums = sums_of_devices(devices, span, 0 if stored else shift, stored)
        before = [{name: np.append(0, np.cumsum(own)) for name, own in sums[device.id].items()} for device in devices]
        name_shift, names = sums_of_names(groups, span, shift, stored)
        return cls(bin_edges(span, device_shift), before, bin_edges(span, name_shift), names)

    def of_device(self, number: int, device: DeviceLanes, edges: Times) -> dict[str, int]:
        """Return the sums of a device between two times."""
        first, last, rest = _split(self.edges, edges)
        parts = [device_sums(device, part) for part in rest]
        sums = {name: sum(int(part[name][0]) for part in parts) for name in parts[0]}
        for name, before in self.before[number].items() if last > first else ():
            sums[name] = sums.get(name, 0) + int(before[last] - before[first])
        return sums

    def by_name(self, groups: Sequence[Group], edges: Times) -> Iterator[NameSums]:
        """Yield the sums of every row between two times, as those of bin 0."""
        first, last, rest = _split(self.name_edges, edges)
        parts: dict[tuple[str, str], list[NameSums]] = {}
        for edge in rest:
            for part in row_sums(groups, edge):
                parts.setdefault((part.row, part.table), []).append(part)
        for sums in self.names if last > first else ():
            inside = slice(*np.searchsorted(sums.bin, (first, last)))
            columns = (sums.name[inside], sums.time[inside], sums.started[inside])
            part = NameSums(sums.row, sums.table, np.zeros(len(columns[0]), np.int64), *columns)
            parts.setdefault((part.row, part.table), []).append(part.combined())
        yield from map(added, parts.values())


def _split(bins: Times, edges: Times) -> tuple[int, int, list[Times]]:
    """Return the first and the last border of bins inside two times, and the times around them that no bin covers."""
    first, last = int(np.searchsorted(bins, edges[0])), int(np.searchsorted(bins, edges[1], "right")) - 1
    if last <= first:
        return 0, 0, [edges]
    inner = bins[[first, last]]
    return first, last, [np.array([edges[0], inner[0]]), np.array([inner[1], edges[1]])]
