"""From a Comparison to the text of the page, which needs no file, no network and no script but its own."""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib import resources

from traceview.model_compare import Comparison, Timeline
from traceview.report.compare_html.content import content
from traceview.report.html.document import escaped_json


def render(comparison: Comparison) -> str:
    """Return one HTML document; the same comparison gives the same bytes."""
    style = _file("traceview.report.html", "palette.css") + _file(__package__, "page.css")
    script = f'"use strict";\n(() => {{\n{_file(__package__, "page.js")}\n}})();\n'
    drawn = comparison.timelines() if comparison.timelines else ()
    names = [comparison.base.file, *(one.capture.file for one in comparison.against)]
    parts = {
        "policy": (
            f"default-src 'none'; script-src '{_hash(script)}'; style-src-elem '{_hash(style)}'; "
            "img-src data:; base-uri 'none'; form-action 'none'"
        ),
        "title": html.escape(" → ".join(names).encode("utf-8", "replace").decode("utf-8")),
        "style": style,
        "content": escaped_json(content(comparison)),
        "timelines": escaped_json([_timeline(name, one) for name, one in zip(names, drawn, strict=False)]),
        "script": script,
    }
    first, *pieces = _file(__package__, "page.html").split("{{")
    filled = (parts[name] + rest for name, rest in (piece.split("}}", 1) for piece in pieces))
    return first + "".join(filled)


def _timeline(name: str, of: Timeline) -> dict[str, object]:
    looks = sorted({event[3] for event in of.events})
    place = {look: index for index, look in enumerate(looks)}
    return {
        "file": name,
        "lanes": of.lanes,
        "names": of.names,
        "looks": looks,
        "events": [[lane, start, length, place[look], text] for lane, start, length, look, text in of.events],
        "iterations": of.iterations,
        "first": of.first,
        "middle": of.middle,
        "leftOut": of.left_out,
    }


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}"


@cache
def _file(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
