"""A comparison as Markdown for a pull request: verdict and table; details are folded."""

from __future__ import annotations

import re
from collections.abc import Iterator

from traceview.model.comparison import CaptureDifference, ComparedCapture, Comparison
from traceview.report.comparison.phrases import accounts, compared, headline, notes, sentence, unprofiled_words
from traceview.report.comparison.tables import ComparisonTable, tables
from traceview.units import plain

SPECIAL = str.maketrans({character: f"\\{character}" for character in r"\`*_[]<>#|~@&"})
# GitHub makes links of addresses and references, escaped or not, unless a comment divides them.
LINK = re.compile(r"((?:https?|ftp|mailto|xmpp)(?=:)|www(?=\.)|\bgh(?=-)|[@#](?=\w))", re.IGNORECASE)
DIVIDER = "<!-- -->"


def to_markdown(comparison: Comparison, *, top: int = 10) -> str:
    """Return the comparison as GitHub's Markdown; `top` bounds the kernels.

    Names from a trace are in code spans, so that they are not read as markup; in sentences, markup is escaped.
    """
    parts = [line for against in comparison.against for line in _against(comparison, against, top)]
    note_lines = [f"- {_text(note)}" for note in notes(comparison)]
    return "\n".join([*parts, *note_lines]) + "\n"


def _against(comparison: Comparison, against: CaptureDifference, top: int) -> Iterator[str]:
    yield f"### {_code(comparison.base.file)} → {_code(against.capture.file)}: {against.verdict}"
    yield ""
    yield _text(sentence(headline(against, comparison.cut)))
    if unprofiled := unprofiled_words(comparison.base, against):
        yield _text(sentence(unprofiled))
    if parts := accounts(against):
        yield _text(sentence(parts))
    yield ""
    parts_table, *others = tables(against, top)
    yield from _table(parts_table, "mean per iteration" if comparison.cut != "whole" else "the whole capture")
    yield ""
    yield f"Before: {_side(comparison.base, comparison.cut)}. After: {_side(against.capture, comparison.cut)}."
    yield ""
    for table in others:
        if table.rows:
            yield from (f"<details><summary>{_text(table.title)}</summary>", "", *_table(table), "", "</details>", "")


def _side(capture: ComparedCapture, cut: str) -> str:
    return _text(compared(capture, cut))


def _table(table: ComparisonTable, first: str = "") -> Iterator[str]:
    name = _code if table.columns[0][1] == "code" else _text
    yield _row([first, *table.head[1:]])
    yield _row([":--", *("--:" for _ in table.head[1:])])
    yield from (_row([name(row[0]), *map(_text, row[1:])]) for row in table.texts)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    return LINK.sub(rf"\1{DIVIDER}", plain(text, 2000).translate(SPECIAL))


def _code(name: str) -> str:
    """Return a name as a code span, with pipes escaped: a pipe ends a table cell even in a code span."""
    return f"`{plain(name, 80).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
