"""What a notebook shows: results and tables as HTML or Markdown, and their figures as plotly objects.

Texts come from captures, so each is escaped. The colours are those of the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from traceview.errors import RequestError
from traceview.model.analysis import Analysis, DeviceUse, Iterations
from traceview.model.charts import iteration_bars
from traceview.model.columns import Table
from traceview.model.comparison import Comparison
from traceview.model.fleet import Fleet
from traceview.model.units import TIMES, duration, durations, plain, time_range
from traceview.model.whatif import WhatIf
from traceview.report.analysis.answer import base_line, gain_words, iteration_line
from traceview.report.analysis.terminal import heading
from traceview.report.comparison.tables import headline as comparison_headline
from traceview.report.comparison.tables import part_table, sentence
from traceview.report.fleet import terminal
from traceview.report.screen import CAUSE_WORDS, markdown_row, markdown_text
from traceview.report.screen import figures as column_texts
from traceview.report.whatif import change_words

MAX_ROWS = 20
MAX_FINDINGS = 5
MAX_BARS = 15
MAX_LABEL = 50
REPRESENTATION, MAX_LINE = 5, 400  # lines, and letters of a line
PALETTE = Path(__file__).parent / "assets" / "core" / "palette.css"
# Parts of an iteration or a rank -> their colour in palette.css and their name.
PARTS = {
    "compute": ("compute", "compute"),
    "exposed_communication": ("communication", "exposed communication"),
    "exposed_h2d": ("h2d", "exposed h2d copies"),
    "exposed_d2h": ("d2h", "exposed d2h copies"),
    "copies": ("copy", "copies"),
    "idle": ("idle_host", "idle"),
    **{f"idle_{cause}": (f"idle_{cause}", f"idle: {words}") for cause, words in CAUSE_WORDS.items()},
}
HEAT = ("wall", "own", "compute", "wait")
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


def figures(result: Analysis | Fleet) -> AnalysisFigures | FleetFigures:
    """Return the figures of a result."""
    return AnalysisFigures(result) if isinstance(result, Analysis) else FleetFigures(result)


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
        yield sentence(comparison_headline(against, comparison.cut))
        yield Grid(table.head, table.texts, table.title)


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


@dataclass(frozen=True, slots=True)
class AnalysisFigures:
    """The figures of an analysis. Each method returns a plotly.graph_objects.Figure."""

    analysis: Analysis

    def iterations(self) -> Any:
        """Return the parts of each iteration, as stacked bars. Many iterations share bars, which show their mean."""
        if not isinstance(self.analysis.iterations, Iterations):
            raise RequestError(f"{self.analysis.info.file}: no iterations; `analysis.iterations` has the reason")
        bars = iteration_bars(self.analysis.iterations.per_iteration)
        names = [name for name in PARTS if any(name in bar.parts for bar in bars)]
        values = {name: [bar.parts.get(name, 0) / bar.count for bar in bars] for name in names}
        labels = [f"{bar.first}" if bar.count == 1 else f"{bar.first} to {bar.first + bar.count - 1}" for bar in bars]
        return _stacked(labels, values, "iteration", [max(bar.wall_ns / bar.count for bar in bars)])

    def idle(self) -> Any:
        """Return the idle time of each GPU by cause, as stacked bars, over the part that findings cover."""
        parts = {device.id: self.analysis.part(device).gaps.causes for device in self.analysis.devices}
        names = [cause for cause in CAUSE_WORDS if any(causes.get(cause) for causes in parts.values())]
        values = {f"idle_{cause}": [causes[cause] for causes in parts.values()] for cause in names}
        return _stacked([_label(name) for name in parts], values, "GPU", [sum(row.values()) for row in parts.values()])

    def kernels(self, device: int = 0, top: int = MAX_BARS) -> Any:
        """Return the costliest kernels of a GPU (an index of `analysis.devices`), as bars of their summed time."""
        rows = sorted(self._part_table(device, "kernels").rows, key=lambda row: -row.total_ns)[:top]
        return _ranking([row.label for row in rows], [row.total_ns for row in rows], "compute", "GPU time")

    def lines(self, top: int = MAX_BARS) -> Any:
        """Return the source lines that made the GPU wait, as bars of idle time. The capture needs stacks."""
        table = self.analysis.tables["lines"]
        if not table.rows:
            reason = table.not_measured or "no line made the GPU wait, or the capture has no stacks"
            raise RequestError(f"{self.analysis.info.file}: {reason}")
        rows = table.rows[:top]
        return _ranking([row.place for row in rows], [row.idle_ns for row in rows], "idle_host", "idle time")

    def _part_table(self, device: int, name: str) -> Table:
        use: DeviceUse = self.analysis.devices[device]
        tables: Mapping[str, Table] = {**use.tables, **self.analysis.part(use).tables}
        return tables[name]


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """The figures of a fleet. Each method returns a plotly.graph_objects.Figure."""

    fleet: Fleet

    def ranks(self) -> Any:
        """Return the parts of each rank's wall time, as stacked bars."""
        ranks = self.fleet.ranks
        names = ("compute", "exposed_communication", "copies", "idle")
        values = {name: [getattr(rank, name) for rank in ranks] for name in names}
        return _stacked([_label(rank.label) for rank in ranks], values, "rank", [rank.wall for rank in ranks])

    def heat(self, figure: str = "own") -> Any:
        """Return a figure of each rank in each iteration as a heat map: "wall", "own", "compute" or "wait"."""
        heat = self.fleet.heat
        if heat is None:
            raise RequestError("the fleet has no iterations that its ranks share")
        if figure not in HEAT:
            raise RequestError(f"{figure!r}: choose one of {', '.join(HEAT)}")
        ns = getattr(heat, figure)
        scale, unit = _unit([int(ns.max())])
        shown = [[None if value < 0 else value / scale for value in row] for row in ns.tolist()]
        labels = [_label(rank.label) for rank in self.fleet.ranks]
        go = _graph_objects()
        drawn = go.Heatmap(z=shown, x=heat.steps.tolist(), y=labels, colorscale="Cividis", colorbar={"title": unit})
        return _with_axes(go.Figure(drawn), "iteration", "").update_yaxes(autorange="reversed")


def _stacked(labels: Sequence[str], values: Mapping[str, Sequence[float]], axis: str, heights: Sequence[float]) -> Any:
    """Return bars with a stack of parts (keys of PARTS), in ns."""
    go = _graph_objects()
    scale, unit = _unit(heights)
    bars = [
        go.Bar(name=PARTS[name][1], x=labels, y=[ns / scale for ns in column], marker_color=_colours()[PARTS[name][0]])
        for name, column in values.items()
    ]
    drawn = _with_axes(go.Figure(bars), axis, unit).update_layout(barmode="stack", legend_traceorder="normal")
    return drawn.update_xaxes(type="category")


def _ranking(names: Sequence[str], ns: Sequence[int], colour: str, axis: str) -> Any:
    """Return horizontal bars, the first on top. Equal names stay apart."""
    go = _graph_objects()
    scale, unit = _unit(ns)
    drawn = go.Figure(go.Bar(x=[value / scale for value in ns], orientation="h", marker_color=_colours()[colour]))
    rows = list(range(len(names)))
    drawn.update_traces(y=rows, hovertext=[_escaped(name) for name in names], hoverinfo="x+text")
    drawn.update_yaxes(tickvals=rows, ticktext=[_label(name) for name in names], autorange="reversed", automargin=True)
    return _with_axes(drawn, f"{axis} ({unit})", "")


def _graph_objects() -> Any:
    try:
        return import_module("plotly.graph_objects")
    except ModuleNotFoundError:
        message = "figures of a notebook need the package plotly: pip install 'traceview[notebook]'"
        raise RequestError(message) from None


def _with_axes(drawn: Any, x: str, y: str) -> Any:
    return drawn.update_layout(xaxis_title=x, yaxis_title=y, margin={"t": 20, "r": 20}, template="plotly_white")


def _unit(values: Iterable[float]) -> tuple[float, str]:
    """Return the ns of the unit that fits the largest value, and its name."""
    largest = max(values, default=0)
    return next(((scale, unit) for scale, unit in TIMES if largest >= scale), TIMES[-1])


@cache
def _colours() -> dict[str, str]:
    """Return the light colours of the page by name."""
    light = PALETTE.read_text(encoding="utf-8").partition("data-theme")[0]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6})", light))


def _label(name: str) -> str:
    # plotly reads a part of HTML in every text.
    return escape(plain(name, MAX_LABEL))


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
