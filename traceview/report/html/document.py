"""The page put together: template, styles, scripts, data, and a policy that allows nothing else."""

from __future__ import annotations

import html
import json
import re
from functools import cache
from importlib import resources
from pathlib import Path

from traceview.report.html.columns import pack
from traceview.report.html.timeline import Timeline
from traceview.report.library import library, sha256

STYLES = ("palette.css", "page.css", "timeline.css", "charts.css", "beside.css", "print.css")
SCRIPTS = (
    "words.js",
    "dom.js",
    "table.js",
    "export.js",
    "columns.js",
    "palette.js",
    "rows.js",
    "levels.js",
    "live.js",
    "axis.js",
    "draw.js",
    "view.js",
    "hover.js",
    "panel.js",
    "search.js",
    "select.js",
    "measure.js",
    "address.js",
    "keys.js",
    "answer.js",
    "findings.js",
    "beside.js",
    "tables.js",
    "charts.js",
    "charts_iterations.js",
    "charts_gaps.js",
    "charts_copies.js",
    "charts_streams.js",
    "print.js",
    "main.js",
)
# plotly.js adds its rules to elements that are there already instead of making some, which the policy forbids.
LIBRARY_STYLE = "/* plotly.js */"
# What would end the script element or the string, or be read as HTML inside it.
ESCAPES = tuple((char, f"\\u{ord(char):04x}") for char in "<>&")
NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def build(title: str, content: object, charts: str, timeline: Timeline, *, live: bool = False) -> str:
    """Return the document. `content` becomes JSON that no name in it can break out of; `charts` is packed JSON.

    What the first sight needs comes before the script, everything else behind it. The policy allows the styles
    and scripts of this package by their hashes, and nothing else; `live` lets the page ask the server that it
    came from, and nobody else.
    """
    return "".join(pieces(title, content, charts, timeline, live=live))


def pieces(title: str, content: object, charts: str, timeline: Timeline, *, live: bool = False) -> list[str]:
    """Return the document's text in pieces.

    All are ASCII: one other character would make Python hold twice the bytes, and take four times as long to write.
    """
    style = "\n".join(_file(name) for name in STYLES)
    script = _script()
    plotly = library()
    parts = {
        "policy": [_policy(style, script, plotly.digest, live)],
        "title": [_in_html(html.escape(_sound(title)))],
        "style": [style],
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
        "library_styles": [f'<style id="{one}">{LIBRARY_STYLE}</style>' for one in plotly.style_ids],
        "script": [script],
    }
    first, *others = _file("page.html").split("{{")
    made = [first]
    for name, rest in (other.split("}}", 1) for other in others):
        made += [*parts[name], rest]
    return made


def packed_json(content: object) -> str:
    """Return JSON, deflated, as base64."""
    return pack(escaped_json(content).encode("utf-8"))


def escaped_json(content: object) -> str:
    """Return JSON for a script element, in ASCII: no character of it means anything to an HTML parser."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = _in_script(_sound(text))
    # One by one: most of them do not occur, and looking for one takes no time.
    for char, escaped in ESCAPES:
        text = text.replace(char, escaped)
    return text


def _sound(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _in_script(text: str) -> str:
    """Return a script or JSON in ASCII: all other characters stand in strings, and are written as escapes."""
    return text if text.isascii() else NOT_ASCII.sub(_as_escapes, text)


def _as_escapes(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _in_html(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _policy(style: str, script: str, library_hash: str, live: bool) -> str:
    # style-src-attr: plotly.js writes style attributes; a style element must be one of ours.
    return (
        f"default-src 'none'; script-src '{_hash(script)}' '{library_hash}'; "
        f"style-src-elem '{_hash(style)}' '{_hash(LIBRARY_STYLE)}'; style-src-attr 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'" + ("; connect-src 'self'" if live else "")
    )


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8"))


def _script() -> str:
    body = "\n".join(_file(name) for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}\n}})();\n'


@cache
def _file(name: str) -> str:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return {".html": _in_html, ".js": _in_script}.get(Path(name).suffix, str)(text)
