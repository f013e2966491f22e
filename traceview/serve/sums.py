"""Sums of a capture in bins, so that a measurement reads only the bins at its ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from traceview.frozen import frozen
from traceview.intervals import Times
from traceview.report.timeline.name_sums import NameSums, added, row_sums
from traceview.report.timeline.rows import Group
from traceview.report.timeline.summary import DeviceLanes, device_sums


@frozen
class BinnedSums:
    """Sums between the ascending `edges`: those of each device up to each edge, and those of names in each bin."""

    edges: Times
    before: Sequence[dict[str, Times]]
    names: Sequence[NameSums]

    @classmethod
    def from_lanes(
        cls, groups: Sequence[Group], devices: Sequence[DeviceLanes], zero: int, length: int, bins: int
    ) -> BinnedSums:
        """Return the sums in at most `bins` bins; without sums for one bin."""
        if bins < 2:
            return cls(np.array([zero]), [], [])
        edges = np.linspace(zero, zero + length, bins + 1).astype(np.int64)
        before = [
            {name: np.append(0, np.cumsum(sums)) for name, sums in device_sums(device, edges).items()}
            for device in devices
        ]
        return cls(edges, before, list(row_sums(groups, edges)))

    def _split(self, edges: Times) -> tuple[int, int, list[Times]]:
        """Return the first and the last edge inside two times, and the times around them that no bin covers."""
        first, last = (
            int(np.searchsorted(self.edges, edges[0])),
            int(np.searchsorted(self.edges, edges[1], "right")) - 1,
        )
        if last <= first:
            return 0, 0, [edges]
        inner = self.edges[[first, last]]
        return first, last, [np.array([edges[0], inner[0]]), np.array([inner[1], edges[1]])]

    def of_device(self, number: int, device: DeviceLanes, edges: Times) -> dict[str, int]:
        """Return the sums of a device between two times."""
        first, last, rest = self._split(edges)
        parts = [device_sums(device, part) for part in rest]
        sums = {name: sum(int(part[name][0]) for part in parts) for name in parts[0]}
        for name, before in self.before[number].items() if last > first else ():
            sums[name] += int(before[last] - before[first])
        return sums

    def by_name(self, groups: Sequence[Group], edges: Times) -> Iterator[NameSums]:
        """Yield the sums of every row between two times, as those of bin 0."""
        first, last, rest = self._split(edges)
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
