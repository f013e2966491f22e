"""What a page needs of the events of a capture, which are in memory or, for a capture in slices, in files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceview.model.analysis import Analysis, SyncUse
from traceview.model.devices import DeviceUse
from traceview.model.trace import Window
from traceview.report.timeline.lanes import EventLanes, TraceLanes
from traceview.report.timeline.marks import Names, used_texts
from traceview.report.timeline.rows import WORDS, Bands, bands
from traceview.report.timeline.sums import StoredSums

MAX_CALLS = 10
ClassTimes = Mapping[str, int]  # ns by class of work


@dataclass(frozen=True, slots=True)
class PageSource:
    """The events of a capture: the time that its timeline covers, the lanes and the names of their marks.

    `exposed` has the exposed ns of each class of work, by device (row of Trace.devices) in its window and in its steady
    part. `worst_calls` are the start and end of the costliest blocking calls. `sums` are those of lanes in files.
    """

    span: Window
    names: Names
    lanes: EventLanes
    exposed: Mapping[int, tuple[ClassTimes, ClassTimes]]
    worst_calls: Sequence[tuple[int, int]]
    sums: StoredSums | None = None

    @classmethod
    def from_analysis(cls, analysis: Analysis) -> PageSource:
        """Return the events of an analysis."""
        if analysis.events is not None:
            return analysis.events
        work, trace = bands(analysis), analysis.trace
        names = names_of_events((*used_texts(trace.operations["name"]), *used_texts(trace.api["name"])))
        lanes = TraceLanes.from_analysis(analysis, work, names)
        exposed = {device.device: exposed_times(device, work[device.device]) for device in analysis.devices}
        calls = [worst_calls(use) for use in (analysis.host.sync, analysis.host.implicit_sync)]
        return cls(trace.span, names, lanes, exposed, call_places(calls))


def names_of_events(texts: Iterable[str]) -> Names:
    """Return the names of operations and calls, and of the bands of devices. Names of other rows get higher numbers."""
    return Names.from_texts((*texts, *WORDS.values(), ""))


def exposed_times(device: DeviceUse, work: Bands) -> tuple[ClassTimes, ClassTimes]:
    """Return the exposed ns of each class of work in the device's window and in its steady part."""
    whole, steady = (
        {band.name: band.exposed_ns(window) for band in work} for window in (device.window, device.steady.window)
    )
    return whole, steady


def worst_calls(use: SyncUse) -> pl.DataFrame:
    """Return start, end and cost of the costliest calls."""
    return costliest(use.frame.select("start", "end", "cost"))


def costliest(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the MAX_CALLS costliest calls; among equally costly ones, the first."""
    return calls[np.argsort(-calls["cost"].to_numpy(), kind="stable")[:MAX_CALLS]]


def call_places(calls: Sequence[pl.DataFrame]) -> list[tuple[int, int]]:
    """Return the start and the end of calls."""
    return [(start, end) for frame in calls for start, end in frame.select("start", "end").iter_rows()]
