"""Rows and groups of the timeline, and the bands that lead each device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traceview.model import CAUSES, Analysis, DeviceUse
from traceview.report.html.bands import bands
from traceview.report.html.looks import LOOKS, WORDS
from traceview.report.html.marks import Marks, Names


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `id` is what evidence points at; `events` is what of the capture it shows, bands nothing."""

    kind: str  # ruler, overlap, idle, stream, range, call
    id: str
    label: str
    note: str
    marks: Marks | None
    events: int = 0
    more: bool = False  # folded away at first


@dataclass(frozen=True, slots=True)
class Group:
    """Rows under one heading."""

    label: str
    note: str
    rows: tuple[Row, ...]


def device_bands(analysis: Analysis, device: DeviceUse, names: Names) -> tuple[Row, ...]:
    """Return the overlap band (all work by class) and the idle band (gaps by cause) of a device."""
    return (_overlap(analysis, device, names), _idle(analysis, device, names))


def _overlap(analysis: Analysis, device: DeviceUse, names: Names) -> Row:
    found = bands(analysis, device)
    start = np.concatenate([band.all.start for band in found])
    order = np.argsort(start, kind="stable")
    sizes = [len(band.all.start) for band in found]
    marks = Marks(
        start,
        np.concatenate([band.all.end for band in found]),
        np.repeat([names.number(WORDS[band.name]) for band in found], sizes),
        np.repeat([LOOKS.index(band.name) for band in found], sizes),
    )
    return Row("overlap", f"o:{device.id}", "work, by class", "", marks.take(order))


def _idle(analysis: Analysis, device: DeviceUse, names: Names) -> Row:
    gaps = device.gaps.frame
    causes = {cause: gaps[cause].to_numpy() for cause in CAUSES}
    main = np.argmax(np.stack(list(causes.values())), axis=0) if len(gaps) else np.empty(0, np.int64)
    ended_by = gaps["operation"].fill_null(-1).to_numpy()
    operations = names.numbers(analysis.trace.operations["name"])
    none = names.number("")
    marks = Marks(
        gaps["start"].to_numpy(),
        gaps["end"].to_numpy(),
        np.where(ended_by >= 0, operations[np.maximum(ended_by, 0)], none) if len(gaps) else main,
        main + LOOKS.index(f"idle_{CAUSES[0]}"),
        causes,
    )
    return Row("idle", f"d:{device.id}", "idle, by cause", "", marks)
