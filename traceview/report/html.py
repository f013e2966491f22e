"""The page of an analysis as one document: its template, styles and scripts filled with its data."""

from __future__ import annotations

from traceview.report.assets import ANALYSIS, escaped_json, sha256
from traceview.report.plotly import library
from traceview.report.timeline.build import Timeline
from traceview.report.timeline.columns import pack

# plotly.js adds its rules to style elements that exist already; the policy does not let it create any.
LIBRARY_STYLE = "/* plotly.js */"


def build(title: str, content: object, charts: str, timeline: Timeline, *, live: bool = False) -> str:
    """Return the document. `content` is written as JSON, escaped for HTML; `charts` is packed JSON.

    What the first screen needs comes before the script, the rest after it. The policy allows only the styles and
    scripts of this package, by their hashes; `live` also lets the page send requests to its own server.
    """
    return "".join(pieces(title, content, charts, timeline, live=live))


def pieces(title: str, content: object, charts: str, timeline: Timeline, *, live: bool = False) -> list[str]:
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
