"""The files of the HTML pages, and how they become one document.

core/        shared by all pages: tables, figures as text, packed columns, colours
analysis/    the page of one analysis: summary, findings, tables
timeline/    its timeline
charts/      its charts
comparison/  the page of a comparison
fleet/       the page of a fleet

Every file is read once and escaped to ASCII: one other character would make Python hold the document in two bytes
per character, and take four times as long to write it.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import PurePosixPath

# Characters that could end a script element, or that HTML would interpret.
ESCAPES = tuple((char, f"\\u{ord(char):04x}") for char in "<>&")
NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


@dataclass(frozen=True)
class PageFiles:
    """The files of one page, as paths in this folder."""

    template: str
    styles: tuple[str, ...]
    scripts: tuple[str, ...]

    def document(
        self,
        title: str,
        parts: Mapping[str, Iterable[str]],
        *,
        scripts: Iterable[str] = (),
        styles: Iterable[str] = (),
        more: Iterable[str] = (),
    ) -> list[str]:
        """Return the document in pieces, all ASCII.

        `parts` fill the places of the template. The content security policy allows the page's own style and script
        by their hashes, and also the hashes in `scripts` and `styles`; `more` are further directives.
        """
        style, script = "\n".join(map(_text, self.styles)), _script(self.scripts)
        policy = [
            "default-src 'none'",
            " ".join(["script-src", *(f"'{digest}'" for digest in (sha256(script), *scripts))]),
            " ".join(["style-src-elem", *(f"'{digest}'" for digest in (sha256(style), *styles))]),
            *more,
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
        known = {"policy": ["; ".join(policy)], "title": [_title(title)], "style": [style], "script": [script], **parts}
        first, *others = _text(self.template).split("{{")
        pieces = [first]
        for name, rest in (other.split("}}", 1) for other in others):
            pieces += [*known[name], rest]
        return pieces


ANALYSIS = PageFiles(
    "analysis/page.html",
    (
        "core/palette.css",
        "core/page.css",
        "timeline/timeline.css",
        "charts/charts.css",
        "analysis/beside.css",
        "analysis/print.css",
    ),
    (
        *(f"core/{name}.js" for name in ("words", "dom", "table", "export", "columns", "palette")),
        *(f"timeline/{name}.js" for name in ("rows", "levels", "live", "axis", "draw", "view", "hover", "panel")),
        *(f"timeline/{name}.js" for name in ("search", "select", "measure", "address", "keys")),
        *(f"analysis/{name}.js" for name in ("answer", "findings", "beside", "tables")),
        *(f"charts/{name}.js" for name in ("charts", "iterations", "gaps", "copies", "streams")),
        "analysis/print.js",
        "analysis/main.js",
    ),
)
COMPARISON = PageFiles(
    "comparison/page.html",
    ("core/palette.css", "comparison/comparison.css"),
    ("comparison/main.js",),
)
FLEET = PageFiles(
    "fleet/page.html",
    ("core/palette.css", "core/page.css", "fleet/fleet.css"),
    (
        *(f"core/{name}.js" for name in ("words", "dom", "table", "export", "columns", "palette")),
        "fleet/ranks.js",
        "fleet/main.js",
    ),
)


def sha256(text: str | bytes) -> str:
    """Return the hash of a script or style as a content security policy names it."""
    data = text.encode("utf-8") if isinstance(text, str) else text
    return f"sha256-{base64.b64encode(hashlib.sha256(data).digest()).decode('ascii')}"


def escaped_json(content: object) -> str:
    """Return JSON for a script element, in ASCII and without characters that HTML interprets."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = _script_ascii(_valid_unicode(text))
    # One replace per character: most of them do not occur, and searching for one takes no time.
    for char, escaped in ESCAPES:
        text = text.replace(char, escaped)
    return text


def _script(names: Iterable[str]) -> str:
    body = "\n".join(map(_text, names))
    return f'"use strict";\n(() => {{\n{body}\n}})();\n'


@cache
def _text(name: str) -> str:
    text = resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
    return {".html": _html_ascii, ".js": _script_ascii}.get(PurePosixPath(name).suffix, str)(text)


def _title(text: str) -> str:
    return _html_ascii(html.escape(_valid_unicode(text)))


def _valid_unicode(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _script_ascii(text: str) -> str:
    """Escape a script or JSON to ASCII; other characters occur in its strings and comments alone."""
    return text if text.isascii() else NOT_ASCII.sub(_unicode_escapes, text)


def _unicode_escapes(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _html_ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")
