"""From an Analysis to the text of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from traceview.model import Analysis
from traceview.report.html.bands import Bands, bands
from traceview.report.html.charts import charts
from traceview.report.html.columns import WORKERS
from traceview.report.html.document import build, packed_json, pieces
from traceview.report.html.marks import Names
from traceview.report.html.rows import Group
from traceview.report.html.sections import sections
from traceview.report.html.timeline import Lanes, Timeline, extra, origin, rows, timeline

if TYPE_CHECKING:
    from traceview.model_whatif import Span as PathSpan

DETAIL = 15_000_000  # bytes of the file
LIVE = 5_000_000  # of a page that has a server to ask
LEAST = 400_000  # for the timeline, whatever the rest of the page takes
TRIES = 3

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Made:
    """What of a page needs no findings: all rows, which are being merged into their levels of detail."""

    work: Mapping[int, Bands]  # what each device did, as bands.py says
    rows: Lanes
    names: Names
    budget: int  # about how many bytes of the file the timeline may take


@dataclass(frozen=True, slots=True)
class Begun:
    """A page that is being made on other threads while its findings are not known yet. Close it."""

    detail: int
    server: bool
    pool: ThreadPoolExecutor
    aside: ThreadPoolExecutor
    made: Future[Made]
    charts: Future[str]  # packed

    @classmethod
    def of(
        cls, analysis: Analysis, detail: int = DETAIL, path: Sequence[PathSpan] = (), *, server: bool = False
    ) -> Begun:
        """Begin a page of at most `detail` bytes; the findings of the analysis are not looked at."""
        pool, aside = ThreadPoolExecutor(WORKERS), ThreadPoolExecutor(1)
        # Everything waits for the rows, and only the last step for the charts.
        made = aside.submit(_made, analysis, detail, path, pool)
        return cls(detail, server, pool, aside, made, aside.submit(_charts, analysis))

    def finished(self, analysis: Analysis) -> str:
        """Return the document, given the same analysis with its findings."""
        made = self.made.result()
        content: Json = {**sections(analysis, origin(analysis), made.work), "live": self.server}
        # While rows are still being merged, what needs the findings and no levels.
        beside = extra(analysis, made.rows, made.budget) if made.rows.many else None
        charts = self.charts.result()
        title, left = analysis.info.file, self.detail - _around(analysis, content, charts)
        for _ in range(TRIES):
            drawn = timeline(analysis, made.rows, made.names, max(left, LEAST), self.pool, beside)
            if self.server:
                drawn = replace(drawn, names=made.names.texts)
            document = build(title, {**content, "timeline": drawn.content}, charts, drawn, live=self.server)
            over = len(document) - self.detail
            if over <= 0 or left <= LEAST:
                break
            # Names and places are known only once the rest is made.
            left -= over + self.detail // 50
            beside = None
        return document

    def close(self) -> None:
        """Begin nothing further."""
        for one in (self.aside, self.pool):
            one.shutdown(wait=False, cancel_futures=True)


def render(analysis: Analysis, detail: int = DETAIL, path: Sequence[PathSpan] = ()) -> str:
    """Return one HTML document that needs nothing else: no file, no network.

    `detail` bounds the document, in bytes: as much of the timeline as fits is in full detail, the rest in bins
    that say how many events they hold. `path` is a run's critical path, shown above all rows. The same analysis
    gives the same bytes. Nothing is computed here but places on the page.
    """
    with closing(Begun.of(analysis, detail, path)) as page:
        return page.finished(analysis)


def live(analysis: Analysis) -> tuple[str, Sequence[Group], Names, int]:
    """Return a document that asks its own server for detail, all rows with their names, and the page's zero."""
    with closing(Begun.of(analysis, LIVE, server=True)) as page:
        document, made = page.finished(analysis), page.made.result()
    return document, made.rows.groups, made.names, origin(analysis)


def _made(analysis: Analysis, detail: int, path: Sequence[PathSpan], pool: ThreadPoolExecutor) -> Made:
    # What devices did and the host's rows share nothing but the analysis.
    doing = pool.submit(bands, analysis)
    names = Names()
    groups = rows(analysis, names, doing.result, pool, path)
    work = doing.result()
    content = sections(replace(analysis, findings=()), origin(analysis), work)
    budget = max(detail - _around(analysis, content, ""), LEAST)
    return Made(work, Lanes.of(analysis, groups, budget, pool), names, budget)


def _charts(analysis: Analysis) -> str:
    return packed_json(charts(analysis, origin(analysis)))


def _around(analysis: Analysis, content: Json, shown: str) -> int:
    """Return the size of a page that has nothing else."""
    return sum(map(len, pieces(analysis.info.file, {**content, "timeline": {}}, shown, Timeline({}, [""], []))))
