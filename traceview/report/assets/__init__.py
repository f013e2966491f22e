"""The files of the HTML pages, and the functions that join them into one document.

core/        shared by all pages: tables, figures as text, packed columns, colours
analysis/    the page of one analysis: summary, findings, tables
timeline/    its timeline
charts/      its charts
fleet/       the page of a fleet

Every file is read once and escaped to ASCII. Any other character would double the memory of the document in Python,
and make writing it four times slower.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

try:
    from isal import isal_zlib as packer  # same format, a fifth of the time
except ImportError:  # isal exists for 64-bit x86 and ARM only
    import zlib as packer  # type: ignore[no-redef]

# Characters that could end a script element, or that HTML would interpret.
ESCAPES = tuple((char, f"\\u{ord(char):04x}") for char in "<>&")
NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
# The only forms that the scripts use; tests/report/test_assets.py finds any other. A search for fixed first letters is
# three times as fast as one for the beginning of a line.
IMPORT = re.compile(r'\nimport \{([^{}]*)\} from "([^"]+)";')
INCLUDE = re.compile(r"\{\{> ([^{}]+)\}\}")  # a file of this folder, in a template
# What a page does not need: indentation, empty lines and lines of comments. No template literal has two lines.
INDENT = re.compile(r"\n +")
COMMENT = re.compile(r"\n(?:/\*\*[^*]*(?:\*(?!/)[^*]*)*\*/|//[^\n]*)?(?=\n)")
EXPORT = re.compile(r"\nexport (?=(?:async )?function |const )")

# plotly.js with bars and points, deflated: `npm run plotly` writes it. A browser runs it in 0.1 s, that of the
# Python package, which has every kind of chart, in 2 s.
PLOTLY_FILE = "charts/plotly-basic.min.js.zlib"
PLOTLY_STYLE = rb'getElementById\("([0-9a-f]{64})"\)'
COMPRESSION_LEVEL = 2


class PageFiles(NamedTuple):
    """The files of one page, as paths in this folder."""

    template: str
    topic: str  # what the page is about, in its title
    styles: tuple[str, ...]
    entry: str  # the script that imports all others

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
        style, code = "\n".join(map(read_text, self.styles)), script(self.entry)
        policy = [
            "default-src 'none'",
            " ".join(["script-src", *(f"'{digest}'" for digest in (sha256(code), *scripts))]),
            " ".join(["style-src-elem", *(f"'{digest}'" for digest in (sha256(style), *styles))]),
            *more,
            "img-src data: blob:",
            "base-uri 'none'",
            "form-action 'none'",
        ]
        known: dict[str, Iterable[str]] = {"policy": ["; ".join(policy)], "style": [style], "script": [code]}
        known |= {"title": [_title(title)], "topic": [_title(self.topic)], **parts}
        template = INCLUDE.sub(lambda name: read_text(name[1]), read_text(self.template))
        first, *others = template.split("{{")
        pieces = [first]
        for name, rest in (other.split("}}", 1) for other in others):
            pieces += [*known[name], rest]
        return pieces


ANALYSIS = PageFiles(
    "analysis/page.html",
    "where the GPU's time went",
    (
        "core/palette.css",
        "core/page.css",
        "timeline/timeline.css",
        "charts/charts.css",
        "analysis/kernels.css",
        "analysis/print.css",
    ),
    "analysis/main.js",
)
FLEET = PageFiles(
    "fleet/page.html",
    "ranks",
    ("core/palette.css", "core/page.css", "fleet/fleet.css"),
    "fleet/main.js",
)


class Library(NamedTuple):
    """plotly.js: deflated as base64, its hash for the policy, and the ids of the style elements that it needs."""

    packed: str
    digest: str
    style_ids: tuple[str, ...]


@cache
def library() -> Library:
    """Return the packed library. Raises OSError."""
    packed = (Path(__file__).parent / PLOTLY_FILE).read_bytes()
    text = packer.decompress(packed)
    own = {name.decode("ascii") for name in re.findall(PLOTLY_STYLE, text)}
    return Library(base64.b64encode(packed).decode("ascii"), sha256(text), ("plotly.js-style-global", *sorted(own)))


def pack(data: bytes, level: int = COMPRESSION_LEVEL) -> str:
    """Return deflated data as base64. The page inflates it with DecompressionStream."""
    return base64.b64encode(packer.compress(data, level)).decode("ascii")


def sha256(text: str | bytes) -> str:
    """Return the hash of a script or style as a content security policy names it."""
    data = text.encode("utf-8") if isinstance(text, str) else text
    return f"sha256-{base64.b64encode(hashlib.sha256(data).digest()).decode('ascii')}"


def escaped_json(content: object) -> str:
    """Return JSON for a script element, in ASCII and without characters that HTML interprets."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    text = _script_ascii(_valid_unicode(text))
    # One replace per character: most characters do not occur, and the search is fast.
    for char, escaped in ESCAPES:
        text = text.replace(char, escaped)
    return text


def modules(entry: str) -> list[str]:
    """Return a script and all that it imports, every script after those that it imports itself."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            for imported in imports(name):
                visit(imported)
            order.append(name)

    visit(entry)
    return order


def imports(name: str) -> dict[str, list[str]]:
    """Return the names that a script imports, by the script that exports them."""
    folder = posixpath.dirname(name)
    return {
        posixpath.normpath(posixpath.join(folder, path)): [word.strip() for word in words.split(",") if word.strip()]
        for words, path in IMPORT.findall(f"\n{read_text(name)}")
    }


@cache
def script(entry: str) -> str:
    """Return a module and its imports as one classic script, because an inline module cannot import.

    All modules share one scope: two modules must not declare the same name at the top level.
    """
    body = "".join(f"\n{plain_script(read_text(name))}" for name in modules(entry))
    body = COMMENT.sub("", INDENT.sub("\n", body))
    return f'"use strict";\n(() => {{{body}\n}})();\n'


def plain_script(module: str) -> str:
    """Return the text of a module without its imports and exports."""
    return EXPORT.sub("\n", IMPORT.sub("", f"\n{module}")).removeprefix("\n")


@cache
def read_text(name: str) -> str:
    """Return a file of this folder, escaped to ASCII."""
    path = Path(__file__).parent / name
    return {".html": _html_ascii, ".js": _script_ascii}.get(path.suffix, str)(path.read_text(encoding="utf-8"))


def _title(text: str) -> str:
    return _html_ascii(html.escape(_valid_unicode(text)))


def _valid_unicode(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _script_ascii(text: str) -> str:
    """Escape a script or JSON to ASCII; other characters occur only in strings and comments."""
    return text if text.isascii() else NOT_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _html_ascii(text: str) -> str:
    return text.encode("ascii", "xmlcharrefreplace").decode("ascii")
