"""The gate: everything that a capture shows is the same however many parts it is measured in.

`same_in_parts` compares the JSON and the page of a capture, byte for byte what the command writes: as one part that is
in memory, and as parts that are read from the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from traceview.engine.limited import plan_parts, quiet_moments, whole_moment
from traceview.engine.measure import Extents
from traceview.engine.page import page_inputs
from traceview.engine.part import FIRST, LAST, PartRunner, TraceInMemory
from traceview.engine.run import AnalyzedCapture, analyze_parts
from traceview.engine.survey import NotInPartsError
from traceview.engine.traces import PartSource
from traceview.model.analysis import AnalysisOptions
from traceview.model.trace import Trace, Window
from traceview.pipeline import analyze_trace, open_trace
from traceview.report.analysis import page, to_json

PAGES_PER_PART = 2


class Shown(NamedTuple):
    """What a capture shows, and in how many parts it was measured."""

    json: str
    page: str
    parts: int


def same_in_parts(path: Path, folder: Path, least: int = 1, counts: Sequence[int] = (1, 5), **options: Any) -> Shown:
    """Compare what a capture shows, and return it as measured in the last of `counts` parts, `least` or more.

    `folder` gets the events of the parts. The options are those of `analyze`.
    """
    whole = shown_in_memory(path, **options)
    for count in counts:
        (own := folder / f"{count} parts").mkdir()
        parts = shown_in_parts(path, count, own, **options)
        assert parts.json == whole.json, f"{path.name}: the JSON of {parts.parts} parts differs"
        assert parts.page == whole.page, f"{path.name}: the page of {parts.parts} parts differs"
    assert parts.parts >= least, f"{path.name}: {parts.parts} parts of {count} at most, because loops are not cut"
    return parts


def shown_in_memory(path: Path, detail: int = page.DETAIL, **options: Any) -> Shown:
    """Return what a capture shows that is one part in memory."""
    return _shown(analyze_trace(open_trace(path), AnalysisOptions(**options)), 1, detail)


def shown_in_parts(
    path: Path, count: int, folder: Path, device: str | None = None, detail: int = page.DETAIL, **options: Any
) -> Shown:
    """Return what a capture shows that is measured in at most `count` parts; `folder` gets its events."""
    source, windows = _parts(path, count)
    extents = Extents(*source.extents) if isinstance(source, PartSource) else Extents.from_trace(source.complete)
    capture = analyze_parts(
        PartRunner(source, windows, 1 << 40),
        source.resident,
        extents.select(source.resident, device),
        AnalysisOptions(device, **options),
        folder=folder,
        trace_of=source.trace,
    )
    return _shown(capture, len(windows), detail)


def _shown(capture: AnalyzedCapture, parts: int, detail: int) -> Shown:
    return Shown(to_json(capture.analysis), page.render(page_inputs(capture), detail), parts)


def _parts(path: Path, count: int) -> tuple[PartSource | TraceInMemory, tuple[Window, ...]]:
    """Return the source of parts of a capture, and their windows."""
    if path.suffix == ".sqlite":
        try:
            source = PartSource.open(path, PAGES_PER_PART)
            return source, plan_parts(source, count)
        except NotInPartsError:
            pass
    trace = open_trace(path)
    return TraceInMemory(trace), tuple(quiet_windows(trace, count))


def quiet_windows(trace: Trace, count: int) -> list[Window]:
    """Return at most `count` adjoining windows of about equal length, whose borders are quiet."""
    quiet, start = quiet_moments(trace), trace.operations["start"].to_numpy()
    targets = np.linspace(start[0], start[-1], count + 1)[1:] if len(start) else ()
    chosen = [whole_moment(trace, quiet[(quiet >= low) & (quiet < high)]) for low, high in pairwise(targets)]
    first, last = (FIRST, LAST) if trace.window is None else (trace.window.start, trace.window.end)
    return [Window(*edges) for edges in pairwise([first, *(border for border in chosen if border is not None), last])]
