"""From an Analysis to the text of the page."""

from __future__ import annotations

from traceview.model import Analysis
from traceview.report.html.charts import charts
from traceview.report.html.document import build
from traceview.report.html.marks import Names
from traceview.report.html.sections import sections
from traceview.report.html.timeline import Timeline, origin, rows, timeline

DETAIL = 15_000_000  # bytes of the file
LEAST = 400_000  # for the timeline, whatever the rest of the page takes
TRIES = 3


def render(analysis: Analysis, detail: int = DETAIL) -> str:
    """Return one HTML document that needs nothing else: no file, no network.

    `detail` bounds the document, in bytes: as much of the timeline as fits is in full detail, the rest in bins
    that say how many events they hold. The same analysis gives the same bytes. Nothing is computed here but
    places on the page.
    """
    zero = origin(analysis)
    content = sections(analysis, zero)
    shown = charts(analysis, zero)
    names = Names()
    groups = rows(analysis, names)
    empty = build(analysis.info.file, {**content, "timeline": {}}, shown, Timeline({}, [""], []))
    left = detail - len(empty)
    for _ in range(TRIES):
        made = timeline(analysis, groups, names, max(left, LEAST))
        document = build(analysis.info.file, {**content, "timeline": made.content}, shown, made)
        over = len(document) - detail
        if over <= 0 or left <= LEAST:
            break
        # Names and places are known only once the rest is made.
        left -= over + detail // 50
    return document
