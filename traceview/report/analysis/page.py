"""The page of an analysis: one HTML document from its template, styles, scripts and data."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from traceview.report.analysis.charts import charts
from traceview.report.analysis.sections import sections
from traceview.report.analysis.timeline import MergedRows, PackedTimeline, timeline
from traceview.report.assets import ANALYSIS, escaped_json, library, pack, sha256
from traceview.timeline.events import PageInputs
from traceview.timeline.groups import rows
from traceview.timeline.rows import Group

if TYPE_CHECKING:
    from traceview.model.whatif import WhatIf

# plotly.js adds rules to existing style elements; the content security policy forbids new ones.
LIBRARY_STYLE = "/* plotly.js */"


def build(title: str, content: object, charts: str, timeline: PackedTimeline, *, live: bool = False) -> str:
    """Return the document. `content` is written as JSON, escaped for HTML; `charts` is packed JSON.

    Data for the first screen comes before the script, other data after it. The content security policy allows only
    the styles and scripts of this package, by hash; `live` also allows requests to the page's own server.
    """
    return "".join(pieces(title, content, charts, timeline, live=live))


def pieces(title: str, content: object, charts: str, timeline: PackedTimeline, *, live: bool = False) -> list[str]:
    """Return the document's text in pieces, all ASCII."""
    plotly = library()
    parts = {
        "content": [escaped_json(content)],
        "charts": [charts],
        "columns": [timeline.chunks[0]],
        "chunks": [
            text
            for number, chunk in enumerate(timeline.chunks[1:], 1)
            for text in (f'<script type="application/octet-stream" id="chunk-{number}">', chunk, "</script>")
        ],
        "names": [packed_json(timeline.names)],
        "library": [plotly.packed],
        "library_styles": [f'<style id="{style_id}">{LIBRARY_STYLE}</style>' for style_id in plotly.style_ids],
    }
    # plotly.js writes style attributes.
    more = ["style-src-attr 'unsafe-inline'", *(["connect-src 'self'"] if live else [])]
    return ANALYSIS.document(title, parts, scripts=[plotly.digest], styles=[sha256(LIBRARY_STYLE)], more=more)


def packed_json(content: object) -> str:
    """Return JSON, deflated, as base64."""
    return pack(escaped_json(content).encode("utf-8"))


DETAIL = 15_000_000  # bytes of the file
LIVE_DETAIL = 5_000_000  # bytes of the timeline in a page with a server
MIN_TIMELINE = 400_000  # bytes of the timeline, even where the page then exceeds its limit
MAX_TRIES = 3


def render(inputs: PageInputs, detail: int = DETAIL, whatif: WhatIf | None = None) -> str:
    """Return one HTML document that needs no other file and no network.

    `detail` is the maximum size in bytes: as much of the timeline as fits has full detail, the rest is in bins with
    event counts. A page needs a minimum size, which may exceed `detail`. `whatif` adds its predictions and
    its critical path, as the first row. The same inputs give the same bytes.
    """
    return _page(inputs, detail, whatif, server=False)[0]


def live(inputs: PageInputs) -> tuple[str, Sequence[Group]]:
    """Return a document that asks its own server for detail, and all rows."""
    return _page(inputs, LIVE_DETAIL, None, server=True)


def _page(inputs: PageInputs, detail: int, whatif: WhatIf | None, *, server: bool) -> tuple[str, Sequence[Group]]:
    title = inputs.analysis.info.file
    # Charts need nothing of the timeline, and NumPy and polars release the interpreter lock.
    with ThreadPoolExecutor(1) as aside:
        packing = aside.submit(lambda: packed_json(charts(inputs)))
        groups = rows(inputs, () if whatif is None else whatif.spans)
        shown = packing.result()
        content = {**sections(inputs, whatif), "live": server}
    # The page without its timeline: the timeline gets the rest of the size.
    rest = pieces(title, {**content, "timeline": {}}, shown, PackedTimeline({}, [""], []))
    left = detail - sum(map(len, rest))
    merged = MergedRows.within(inputs.events, groups, max(left, MIN_TIMELINE))
    for _ in range(MAX_TRIES):
        drawn = timeline(inputs, merged, max(left, MIN_TIMELINE))
        if server:
            drawn = replace(drawn, names=inputs.events.names.texts)
        document = build(title, {**content, "timeline": drawn.content}, shown, drawn, live=server)
        over = len(document) - detail
        if over <= 0 or left <= MIN_TIMELINE:
            break
        # The size of names and places is known only after packing.
        left -= over + detail // 50
    return document, groups
