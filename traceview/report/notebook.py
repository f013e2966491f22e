"""What a notebook shows: results and tables as HTML or Markdown.

Texts come from captures, so each is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any, NamedTuple, TypeAlias

from traceview.model.analysis import Analysis
from traceview.model.columns import Table
from traceview.model.comparison import Comparison
from traceview.model.fleet import Fleet
from traceview.model.units import duration, durations, plain, time_range
from traceview.model.whatif import WhatIf
from traceview.report.analysis.answer import base_line, gain_words, iteration_line
from traceview.report.analysis.terminal import heading
from traceview.report.comparison.tables import headline as comparison_headline
from traceview.report.comparison.tables import part_table, sentence
from traceview.report.fleet import terminal
from traceview.report.screen import figures as column_texts
from traceview.report.screen import markdown_row, markdown_text
from traceview.report.whatif import change_words

MAX_ROWS = 20
MAX_FINDINGS = 5
REPRESENTATION, MAX_LINE = 5, 400  # lines, and letters of a line
Shown: TypeAlias = "Analysis | Comparison | Fleet | WhatIf | Table"


class Grid(NamedTuple):
    """A table of texts, with its caption."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


class Title(NamedTuple):
    """The first line of what is shown."""

    text: str


Block: TypeAlias = "Title | str | Grid"


def blocks(result: Shown) -> Iterator[Block]:
    """Yield what is shown of a result; a text is a paragraph."""
    writers: dict[type, Callable[[Any], Iterator[Block]]] = {
        Analysis: _analysis,
        Comparison: _comparison,
        Fleet: _fleet,
        WhatIf: _whatif,
        Table: _table,
    }
    yield from writers[type(result)](result)


def html(result: Shown) -> str:
    """Return a result as HTML."""
    return "".join(map(_html, blocks(result)))


def markdown(result: Shown) -> str:
    """Return a result as GitHub's Markdown."""
    return "\n\n".join(filter(None, map(_markdown, blocks(result)))) + "\n"


def representation(result: Analysis | Comparison | Fleet | WhatIf) -> str:
    """Return the class and the paragraphs of a result in REPRESENTATION lines at most."""
    shown = (block for block in blocks(result) if not isinstance(block, Grid))
    lines = (plain(block.text if isinstance(block, Title) else block, MAX_LINE) for block in shown)
    return "\n".join([type(result).__name__, *(f"  {line}" for line in lines if line)][:REPRESENTATION])


def _analysis(analysis: Analysis) -> Iterator[Block]:
    """Yield the answer, the time of an iteration, and the findings that gain most."""
    yield Title(heading(analysis))
    yield analysis.answer.text
    yield f"{iteration_line(analysis.iterations).rstrip('.')}. {base_line(analysis)}"
    rows = [
        (finding.title, gain_words(finding.gain), duration(finding.cost_ns), finding.remedy or finding.advice)
        for finding in analysis.findings[:MAX_FINDINGS]
    ]
    head = ("finding", "gain", "cost", "remedy")
    yield Grid(head, rows, f"Findings{_more(len(analysis.findings), MAX_FINDINGS)}")


def _table(table: Table) -> Iterator[Block]:
    """Yield a declared table with the columns that the reports show."""
    if table.not_measured is not None:
        yield f"{table.title}: {table.not_measured}"
        return
    rows = table.shown_rows[:MAX_ROWS]
    texts = [column_texts([getattr(row, column.name) for row in rows], column.unit) for column in table.columns]
    caption = f"{table.title}{_more(len(table.shown_rows), MAX_ROWS)}"
    yield Grid([column.title for column in table.columns], list(zip(*texts, strict=True)), caption)


def _comparison(comparison: Comparison) -> Iterator[Block]:
    """Yield the verdict and the parts of the difference, for each capture."""
    for against in comparison.against:
        table = part_table(against)
        yield Title(f"{comparison.base.file} → {against.capture.file}: {against.verdict}")
        yield sentence(comparison_headline(against))
        yield Grid(table.head, table.rows, table.title)


def _whatif(result: WhatIf) -> Iterator[Block]:
    """Yield the time of an iteration, and what each change gives."""
    yield Title(f"{result.info.file} · {duration(result.base_ns)} per iteration")
    rows = [
        (row.title, duration(row.iteration_ns), change_words(result, row), time_range(row.low_ns, row.high_ns))
        for row in result.predictions
    ]
    yield f"{rows[0][0]}: {rows[0][2]}" if rows else "No change applies."
    yield Grid(("change", "predicted", "gain", "range"), rows, "Each change alone")


def _fleet(fleet: Fleet) -> Iterator[Block]:
    """Yield the verdict, what to change first, and the ranks."""
    yield Title(terminal.headline(fleet))
    yield terminal.answer(fleet)
    if fleet.advice:
        advice = [(row.title, terminal.price(fleet, row), row.text) for row in fleet.advice[:MAX_FINDINGS]]
        yield Grid(("what to change", "cost", "remedy"), advice)
    times = ("wall", "own", "lag", "compute", "idle", "bare_wait")
    ranks = sorted(fleet.ranks, key=lambda rank: -(rank.lag or 0))[:MAX_ROWS]
    columns = [durations([getattr(rank, name) for rank in ranks]) for name in times]
    rows = list(zip([rank.label for rank in ranks], *columns, strict=True))
    yield Grid(("rank", *times[:-1], "wait"), rows, f"Ranks{_more(len(fleet.ranks), MAX_ROWS)}, the latest first")


def _escaped(text: str) -> str:
    return escape(plain(text, 2000))


def _more(count: int, shown: int) -> str:
    return f" (first {shown} of {count:,})" if count > shown else ""


def _html(block: Block) -> str:
    """Return a block as HTML; every text is escaped."""
    if not isinstance(block, Grid):
        tag, text = ("b", block.text) if isinstance(block, Title) else ("span", block)
        return f"<p><{tag}>{_escaped(text)}</{tag}></p>" if text else ""
    heads = "".join(f"<th>{_escaped(name)}</th>" for name in block.head)
    body = "".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in block.rows)
    title = f"<caption>{_escaped(block.caption)}</caption>" if block.caption else ""
    return f"<table>{title}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _markdown(block: Block) -> str:
    if isinstance(block, Title):
        return f"### {markdown_text(block.text)}"
    if isinstance(block, str):
        return markdown_text(block)
    rows = [map(markdown_text, block.head), [":--"] * len(block.head), *(map(markdown_text, row) for row in block.rows)]
    caption = [f"{markdown_text(block.caption)}\n"] if block.caption else []
    return "\n".join([*caption, *map(markdown_row, rows)]) if block.rows else ""
