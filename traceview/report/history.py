"""A history of commits as text, as JSON, and as a page with a chart of each figure. The page needs no script."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from traceview.model.comparison import ChangePoint, CommitFigures, History
from traceview.model.units import duration, plain, quantity, time_range
from traceview.report.assets import HISTORY
from traceview.report.json import Document
from traceview.report.screen import PLAIN, Screen, wrap

JSON = Document[History]({})
to_json = JSON.text
WORDS = {"wall": "time of an iteration", "exposed_h2d": "exposed H2D copies", "exposed_d2h": "exposed D2H copies"}
WIDTH, HEIGHT, MARGIN = 900, 150, 8  # pixels
MAX_COMMIT = 12  # characters


def render(history: History, screen: Screen = PLAIN) -> str:
    """Return the number of commits, the latest time, and a line for each change, as text."""
    lines = [headline(history), *(f"  {change_words(change)}" for change in history.changes)]
    return screen.text([[row for line in lines for row in wrap(line, "", "    ", screen.columns)]])


def headline(history: History) -> str:
    """Return one line on the commits and the latest one."""
    if not history.commits:
        return "The history has no commits."
    latest = history.commits[-1]
    time = duration(latest.figures["wall"].mean_ns)
    return f"{quantity(len(history.commits), 'commit')}; {_name(latest.commit)} takes {time} per iteration"


def change_words(change: ChangePoint) -> str:
    """Return a change and its commit in words."""
    levels = time_range(change.before_ns, change.after_ns)
    return f"{_word(change.figure)} changed at {_name(change.commit)}: {levels}"


def _word(figure: str) -> str:
    return WORDS.get(figure, figure.replace("_", " "))


def _name(commit: str) -> str:
    return plain(commit, MAX_COMMIT)


def render_page(history: History) -> str:
    """Return one HTML document; the same history gives the same bytes."""
    figures = history.commits[-1].figures if history.commits else ()
    charts = "".join(_chart(history, figure) for figure in figures)
    changes = "".join(f"<li>{escape(change_words(change))}</li>" for change in history.changes)
    body = f"<p>{escape(headline(history))}</p><ul>{changes}</ul>{charts}"
    return "".join(HISTORY.document("history", {"body": [body.encode("ascii", "xmlcharrefreplace").decode("ascii")]}))


def _chart(history: History, figure: str) -> str:
    values = [commit.figures[figure] for commit in history.commits]
    highest = max([value.mean_ns + (value.error_ns or 0) for value in values], default=0) or 1
    step = (WIDTH - 2 * MARGIN) / max(1, len(values) - 1)
    changed = {change.commit for change in history.changes if change.figure == figure}
    marks = "".join(
        mark
        for index, commit in enumerate(history.commits)
        for mark in _marks(commit, figure, MARGIN + index * step, highest, commit.commit in changed)
    )
    title = f"{_word(figure)}, 0 to {duration(highest)}"
    shape = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"'
    return f"<h2>{escape(title)}</h2><svg {shape}>{marks}</svg>"


def _marks(commit: CommitFigures, figure: str, x: float, highest: int, is_changed: bool) -> Iterator[str]:
    """Yield the elements of a commit: a line where the figure changed, its error, and its point."""
    value = commit.figures[figure]
    error = value.error_ns or 0
    low, y, high = (_height(ns, highest) for ns in (value.mean_ns - error, value.mean_ns, value.mean_ns + error))
    if is_changed:
        yield f'<line class="change" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{HEIGHT}"/>'
    yield f'<line class="error" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
    title = escape(f"{_name(commit.commit)}: {duration(value.mean_ns)}")
    yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{title}</title></circle>'


def _height(ns: int, highest: int) -> float:
    return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * ns / highest
