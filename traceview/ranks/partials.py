"""Measures of many reports as partial measures of some, which merge in any order and grouping.

The results of reports stay where they were read. The merge has a header of each result, and sends work to the results:
a function that takes some of them and returns a partial measure. The partial measures of many ranks are as large as
those of few, except where they have an entry for each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from traceview.intervals import Times
from traceview.model.fleet import ORDER_COLUMNS, PackedColumn, RankResult, ReportResult


class Partial(Protocol):
    """A measure of some reports."""

    def merged(self, other: Any) -> Any:
        """Return the measure of the reports of both."""


P = TypeVar("P", bound=Partial)
V = TypeVar("V")
NumberedReports = Iterable[tuple[int, ReportResult]]  # the index of the first rank, and the report
Work = Callable[[NumberedReports], P]
# Does work on kept results, each with the index of its first rank, and merges the partial measures.
Run = Callable[[Work[Any], Sequence[tuple[int, Any]]], Any]


class ByKey(dict[int, V], Generic[V]):
    """Values by rank, report or group. Two values of one key merge."""

    def merged(self, other: ByKey[V]) -> ByKey[V]:
        """Return the values of both."""
        both = ByKey(self)
        for key, value in other.items():
            both[key] = both[key].merged(value) if key in both else value  # type: ignore[attr-defined]
        return both


def ranks_of(reports: NumberedReports) -> Iterator[tuple[int, RankResult]]:
    """Yield all ranks with their index."""
    for first, report in reports:
        yield from enumerate(report.ranks, first)


def run_here(work: Work[P], kept: Sequence[tuple[int, ReportResult]]) -> P:
    """Measure results that this process holds."""
    return work(kept)


class FleetReports:
    """The reports of a fleet: their headers, and their results where they are kept.

    `kept` has what `run` needs to find each result. `report_of` is the index of the report of each rank.
    """

    def __init__(self, headers: Sequence[ReportResult], kept: Sequence[Any], run: Run) -> None:
        """`headers` are of header(), in the order of `kept`."""
        self.headers = headers
        self.report_of = np.repeat(np.arange(len(headers)), [len(header.ranks) for header in headers])
        self._kept, self._run = kept, run
        self._first = np.cumsum([0, *(len(header.ranks) for header in headers)]).tolist()

    def measure(self, work: Work[P], ranks: Iterable[int]) -> P:
        """Return the measure of all reports that have one of these ranks."""
        reports = np.unique(self.report_of[list(ranks)]).tolist()
        measured: P = self._run(work, [(self._first[report], self._kept[report]) for report in reports])
        return measured


def header(result: ReportResult) -> ReportResult:
    """Return what the merge needs of a result at any time: no times of collectives, no figures of iterations."""
    return replace(result, ranks=tuple(map(_rank_header, result.ranks)))


def _rank_header(rank: RankResult) -> RankResult:
    steps = None if rank.steps is None else replace(rank.steps, figures=(), idle=())
    order = replace(rank.collectives, columns=rank.collectives.columns[: len(ORDER_COLUMNS)])
    return replace(rank, steps=steps, collectives=order, work=None)


class SharedColumns:
    """Keeps one object for equal columns, because most ranks run the same program."""

    def __init__(self) -> None:
        self._columns: dict[object, PackedColumn] = {}
        self._numbers: dict[bytes, Times] = {}

    def __call__(self, values: Times) -> PackedColumn:
        """Return the packed column of these values."""
        return self.column(PackedColumn.pack(values))

    def column(self, column: PackedColumn) -> PackedColumn:
        """Return the first of all columns that equal this one."""
        return self._columns.setdefault(column.key(), column)

    def header(self, result: ReportResult) -> ReportResult:
        """Return a header that shares its columns with earlier ones."""
        return replace(result, ranks=tuple(map(self.rank, result.ranks)))

    def rank(self, rank: RankResult) -> RankResult:
        """Return the header of a rank that shares its columns with earlier ones."""
        steps = rank.steps
        if steps is not None:
            steps = replace(steps, number=self._numbers.setdefault(steps.number.tobytes(), steps.number))
        columns = tuple(map(self.column, rank.collectives.columns))
        return replace(rank, steps=steps, collectives=replace(rank.collectives, columns=columns))
