"""From an Analysis to the text of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from traceview.model import Analysis
from traceview.model_whatif import Span as PathSpan
from traceview.report.html.bands import Bands, bands
from traceview.report.html.charts import charts
from traceview.report.html.document import build
from traceview.report.html.marks import Names
from traceview.report.html.rows import Group
from traceview.report.html.sections import sections
from traceview.report.html.timeline import Timeline, origin, rows, timeline

DETAIL = 15_000_000  # bytes of the file
LIVE = 5_000_000  # of a page that has a server to ask
LEAST = 400_000  # for the timeline, whatever the rest of the page takes
TRIES = 3


def render(analysis: Analysis, detail: int = DETAIL, path: Sequence[PathSpan] = ()) -> str:
    """Return one HTML document that needs nothing else: no file, no network.

    `detail` bounds the document, in bytes: as much of the timeline as fits is in full detail, the rest in bins
    that say how many events they hold. `path` is a run's critical path, shown above all rows. The same analysis
    gives the same bytes. Nothing is computed here but places on the page.
    """
    return _document(analysis, Names(), detail, path, server=False)[0]


def live(analysis: Analysis) -> tuple[str, list[Group], Names, int]:
    """Return a document that asks its own server for detail, all rows with their names, and the page's zero."""
    document, groups = _document(analysis, names := Names(), LIVE, (), server=True)
    return document, groups, names, origin(analysis)


def _document(
    analysis: Analysis, names: Names, detail: int, path: Sequence[PathSpan], *, server: bool
) -> tuple[str, list[Group]]:
    # What is around the timeline and the timeline's rows share nothing but the analysis.
    with ThreadPoolExecutor(1) as aside:
        work = bands(analysis)
        around = aside.submit(_around, analysis, work, server)
        groups = rows(analysis, names, work, path)
        content, shown, taken = around.result()
    title, left = analysis.info.file, detail - taken
    for _ in range(TRIES):
        made = timeline(analysis, groups, names, max(left, LEAST))
        if server:
            made = replace(made, names=names.texts)
        document = build(title, {**content, "timeline": made.content}, shown, made, live=server)
        over = len(document) - detail
        if over <= 0 or left <= LEAST:
            break
        # Names and places are known only once the rest is made.
        left -= over + detail // 50
    return document, groups


def _around(
    analysis: Analysis, work: Mapping[int, Bands], server: bool
) -> tuple[dict[str, object], dict[str, object], int]:
    """Return the sections, the charts, and the size of a page that has nothing else."""
    zero = origin(analysis)
    content: dict[str, object] = {**sections(analysis, zero, work), "live": server}
    shown = charts(analysis, zero)
    empty = build(analysis.info.file, {**content, "timeline": {}}, shown, Timeline({}, [""], []))
    return content, shown, len(empty)
