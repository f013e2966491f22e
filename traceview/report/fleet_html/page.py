"""From a Fleet to the text of the page, which needs no file, no network and no script but its own."""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib import resources

from traceview.model_fleet import Fleet
from traceview.report.fleet_html.content import content
from traceview.report.html.document import escaped_json

SHARED = "traceview.report.html"
STYLES = ((SHARED, "palette.css"), (SHARED, "page.css"), (__package__, "fleet.css"))
SCRIPTS = (
    *((SHARED, name) for name in ("words.js", "dom.js", "table.js", "export.js", "columns.js", "palette.js")),
    (__package__, "ranks.js"),
    (__package__, "main.js"),
)


def render(fleet: Fleet) -> str:
    """Return one HTML document; the same fleet gives the same bytes."""
    style = "\n".join(_file(*name) for name in STYLES)
    body = "\n".join(_file(*name) for name in SCRIPTS)
    script = f'"use strict";\n(() => {{\n{body}\n}})();\n'
    values, heat = content(fleet)
    parts = {
        "policy": (
            f"default-src 'none'; script-src '{_hash(script)}'; style-src-elem '{_hash(style)}'; "
            "img-src data: blob:; base-uri 'none'; form-action 'none'"
        ),
        "title": html.escape(str(values["title"])),
        "style": style,
        "content": escaped_json(values),
        "heat": heat,
        "script": script,
    }
    first, *pieces = _file(__package__, "page.html").split("{{")
    filled = (parts[name] + rest for name, rest in (piece.split("}}", 1) for piece in pieces))
    return first + "".join(filled)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"


@cache
def _file(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
