"""The page of an Analysis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from traceview.model.analysis import Analysis
from traceview.report.analysis.charts import charts
from traceview.report.analysis.sections import sections
from traceview.report.html import build, packed_json, pieces
from traceview.report.timeline.bands import bands
from traceview.report.timeline.build import MergedRows, Timeline, origin, rows, timeline
from traceview.report.timeline.marks import Names
from traceview.report.timeline.rows import Group

if TYPE_CHECKING:
    from traceview.model.whatif import PathSpan

DETAIL = 15_000_000  # bytes of the file
LIVE = 5_000_000  # of a page that has a server to ask
LEAST = 400_000  # for the timeline, whatever the rest of the page takes
TRIES = 3


def render(analysis: Analysis, detail: int = DETAIL, path: Sequence[PathSpan] = ()) -> str:
    """Return one HTML document that needs no other file and no network.

    `detail` bounds the document in bytes: as much of the timeline as fits is in full detail, the rest is in bins
    with the number of events in each. `path` is a run's critical path, shown above all rows. The same analysis
    gives the same bytes. The page measures nothing, it only places figures.
    """
    return _page(analysis, detail, path, server=False)[0]


def live(analysis: Analysis) -> tuple[str, Sequence[Group], Names, int]:
    """Return a document that asks its own server for detail, all rows with their names, and the page's zero."""
    document, groups, names = _page(analysis, LIVE, (), server=True)
    return document, groups, names, origin(analysis)


def _page(
    analysis: Analysis, detail: int, path: Sequence[PathSpan], *, server: bool
) -> tuple[str, Sequence[Group], Names]:
    title, zero, names, work = analysis.info.file, origin(analysis), Names(), bands(analysis)
    groups = rows(analysis, names, work, path)
    content = {**sections(analysis, zero, work), "live": server}
    shown = packed_json(charts(analysis, zero))
    # The page without its timeline: its size leaves the budget of the timeline.
    rest = pieces(title, {**content, "timeline": {}}, shown, Timeline({}, [""], []))
    left = detail - sum(map(len, rest))
    merged = MergedRows.within(analysis, groups, max(left, LEAST))
    for _ in range(TRIES):
        drawn = timeline(analysis, merged, names, max(left, LEAST))
        if server:
            drawn = replace(drawn, names=names.texts)
        document = build(title, {**content, "timeline": drawn.content}, shown, drawn, live=server)
        over = len(document) - detail
        if over <= 0 or left <= LEAST:
            break
        # The size of the names and of the places is known only now.
        left -= over + detail // 50
    return document, groups, names
