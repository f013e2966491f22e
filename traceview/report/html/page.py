"""From an Analysis to the text of the page."""

from __future__ import annotations

from traceview.model import Analysis
from traceview.report.html.charts import charts
from traceview.report.html.columns import Columns
from traceview.report.html.document import build
from traceview.report.html.sections import sections
from traceview.report.html.timeline import origin, timeline


def render(analysis: Analysis) -> str:
    """Return one HTML document that needs nothing else: no file, no network.

    The same analysis gives the same bytes. Nothing is computed here but places on the page.
    """
    columns = Columns()
    zero = origin(analysis)
    content = sections(analysis, zero)
    content["timeline"], names = timeline(analysis, zero, columns)
    return build(analysis.info.file, content, charts(analysis, zero), columns.packed(), names)
