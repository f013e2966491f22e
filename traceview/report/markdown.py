"""GitHub's Markdown of texts and names that come from a capture: nothing in them is markup."""

from __future__ import annotations

import re
from collections.abc import Iterable

from traceview.model.units import plain

SPECIAL = str.maketrans({character: f"\\{character}" for character in r"\`*_[]<>#|~@&"})
# GitHub makes links of addresses and references, escaped or not, unless a comment divides them.
LINK = re.compile(r"((?:https?|ftp|mailto|xmpp)(?=:)|www(?=\.)|\bgh(?=-)|[@#](?=\w))", re.IGNORECASE)
DIVIDER = "<!-- -->"


def markdown_row(cells: Iterable[str]) -> str:
    """Return a row of a table; the cells are Markdown."""
    return f"| {' | '.join(cells)} |"


def markdown_text(text: str) -> str:
    """Return a text on one line in which markup, links and references are only text."""
    return LINK.sub(rf"\1{DIVIDER}", plain(text, 2000).translate(SPECIAL))


def markdown_code(name: str) -> str:
    """Return a name as a code span, with pipes escaped: a pipe ends a table cell even in a code span."""
    return f"`{plain(name, 80).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
