"""A fleet as JSON, and as one HTML page that needs no other file and no network.

The same reports give the same bytes, wherever they are read.
"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from traceview.model.analysis import CAUSES
from traceview.model.fleet import Advice, Clock, CollectiveGroup, Fleet, Heat, Pair, Rank, Straggler
from traceview.model.units import plain
from traceview.report.assets import FLEET, escaped_json, pack
from traceview.report.columns import Columns
from traceview.report.fleet.terminal import answer, clock_line, headline, price, session_line, title
from traceview.report.json import Document, Shapes, Value, names, ns, rounded, row_text


def _numbers(attribute: str) -> Value:
    return Value(attribute, lambda values, _: values.tolist(), list[int])


def _rows(attribute: str) -> Value:
    # The rows stay arrays until they are written, because a list needs five times the memory.
    return Value(attribute, lambda matrix, _: list(matrix), list[list[int]])


def _cause(row: int) -> Value:
    return Value("causes", lambda times, _: times[row], int)


SHAPES: Shapes = {
    Fleet: {
        **names("reports", "skipped"),
        "typical_own_ns": "typical",
        "margin_fraction": "margin",
        **names("ranks", "stragglers", "advice"),
        "collectives": "groups",
        "waits": {"count": "pair_count", "longest": "pairs"},
        "clocks": "clocks",
        "unmatched_collectives": "unmatched",
        **names("heat", "notes"),
    },
    Rank: {
        **names("label", "file", "node", "device", "gpu", "iterations"),
        **ns("time", "wall", "own", "lag", "noise", "compute", "exposed_communication", "copies", "idle"),
        "causes": {f"{cause}_ns": _cause(row) for row, cause in enumerate(CAUSES)},
        "kernels": "kernels",
        **ns("wait", "bare_wait", "caused", "bare_caused"),
        **names("last_count", "set"),
        "typical_own_ns": "typical",
        "matched_count": "matched",
    },
    Straggler: {
        "rank": "rank",
        "lag_ns": "lag",
        "lag_fraction": rounded("share"),
        "part": "part",
        "part_lag_ns": "part_lag",
        "more_kernels": "more_kernels",
        **ns("cost", "cost_each"),
        "waiting": "waiting",
    },
    Advice: {
        **names("title", "text"),
        "cost_ns": "cost",
        "cost_each_ns": "each",
        "waiting": "waiting",
        "wall_ns": "wall",
        "rank": "rank",
    },
    CollectiveGroup: {
        "name": "name",
        "matched_by": "how",
        **names("kind", "ranks", "count"),
        "skew_ns": {"median": "skew_median", "p95": "skew_p95"},
        **ns("transfer", "waited"),
        "last": {"rank": "last", "count": "last_count"},
    },
    Pair: {**names("waiter", "last"), "waited_ns": "waited", "count": "count"},
    Clock: {
        **names("file", "method"),
        "offset_ns": "offset",
        "drift_ns_per_s": "drift",
        "uncertainty_ns": "uncertainty",
        "collectives": "count",
        "session_offset_ns": "session",
        **ns("scatter", "origin"),
    },
    Heat: {
        "iterations": _numbers("steps"),
        "steady": _numbers("steady"),
        **{f"{name}_ns": _rows(name) for name in ("wall", "own", "compute", "wait")},
    },
}
JSON = Document[Fleet](SHAPES, row_text)
document, to_json = JSON.values, JSON.text


MAX_HEAT_COLUMNS = 500  # more iterations share a column
FIGURES = ("own", "wait", "compute", "wall")
WORK = ("compute", "copies", "communication")
FULL = 255  # the share of a bin that is busy all the time
MAX_NAME = 400  # letters


def content(fleet: Fleet) -> tuple[dict[str, object], str]:
    """Return the values of the page's script and the packed matrices of the heat map."""
    columns = Columns()
    zero = _first_moment(fleet)
    times, left_out = _times(fleet, columns, zero)
    name, _, facts = headline(fleet).partition(" · ")
    values = {
        "work": _work(fleet, columns, zero),
        "times": times,
        "timesLeftOut": left_out,
        "title": title(fleet),
        "name": name,
        "facts": facts,
        "answer": answer(fleet),
        "sets": max(rank.set for rank in fleet.ranks) + 1,
        "reports": len(fleet.reports),
        "each": fleet.heat is not None,
        "causes": list(CAUSES),
        "ranks": _ranks(fleet),
        "advice": [
            {"title": plain(row.title, MAX_NAME), "text": row.text, "price": price(fleet, row), "rank": row.rank}
            for row in fleet.advice
        ],
        "groups": [asdict(group) | {"ranks": len(group.ranks)} for group in fleet.groups],
        "pairs": [asdict(pair) for pair in fleet.pairs],
        "pairCount": fleet.pair_count,
        "clocks": [
            asdict(clock) | {"words": clock_line(clock), "session": session_line(clock)} for clock in fleet.clocks
        ],
        "skipped": [asdict(report) for report in fleet.skipped],
        "notes": [plain(note.text, 2000) for note in fleet.notes],
        "heat": None if fleet.heat is None else _heat(fleet.heat, columns),
    }
    return values, pack(columns.raw())


def _ranks(fleet: Fleet) -> list[dict[str, object]]:
    late = {straggler.rank for straggler in fleet.stragglers}
    return [
        asdict(rank) | {"label": plain(rank.label, MAX_NAME), "straggler": row in late}
        for row, rank in enumerate(fleet.ranks)
    ]


def _first_moment(fleet: Fleet) -> int:
    """Return the first moment of the page's timeline, on the common clock."""
    starts = [group.first for group in fleet.times]
    return min(starts + [work.start for work in fleet.work if work is not None], default=0)


def _work(fleet: Fleet, columns: Columns, zero: int) -> list[dict[str, object]]:
    """Return what each rank's GPU does, in bins with shares from 0 to FULL; `kernel` is 0 for none."""
    shown: list[dict[str, object]] = []
    for rank, work in enumerate(fleet.work):
        if work is None:
            continue
        shown.append(
            {
                "rank": rank,
                "start": work.start - zero,
                "width": work.width,
                "count": len(work.kernel),
                "names": [plain(name, MAX_NAME) for name in work.names],
                "kernel": columns.add(work.kernel + 1),
                **{name: columns.add(np.minimum(FULL, -(-getattr(work, name) * FULL // work.width))) for name in WORK},
            }
        )
    return shown


def _times(fleet: Fleet, columns: Columns, zero: int) -> tuple[list[dict[str, object]], int]:
    """Return the collectives of the page's timeline in the order of their last arrivals, and how many it leaves out."""
    shown: list[dict[str, object]] = []
    for group in fleet.times:
        order = np.argsort(group.start.max(axis=0), kind="stable")
        start, end = group.start[:, order], group.end[:, order]
        names = sorted(set(group.kind))
        kinds = np.array([names.index(group.kind[at]) for at in order], np.int64)
        shown.append(
            {
                "ranks": group.ranks.tolist(),
                "names": [plain(name, MAX_NAME) for name in names],
                "count": len(order),
                "kind": columns.add(kinds),
                "start": columns.add((start - zero).reshape(-1)),
                "length": columns.add(np.maximum(end - start, 0).reshape(-1)),
            }
        )
    return shown, sum(group.left_out for group in fleet.times)


def _heat(heat: Heat, columns: Columns) -> dict[str, object]:
    merged = -(-len(heat.steps) // MAX_HEAT_COLUMNS) or 1
    edges = np.arange(0, len(heat.steps), merged)
    ends = np.minimum(edges + merged, len(heat.steps)) - 1
    first, last = heat.steps[edges], heat.steps[ends]
    return {
        "names": [str(begin) if begin == end else f"{begin} to {end}" for begin, end in zip(first, last, strict=True)],
        "steady": np.maximum.reduceat(heat.steady, edges).tolist(),
        "merged": merged,
        **{name: columns.add(_largest(getattr(heat, name), edges)) for name in FIGURES},
    }


def _largest(values: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the maximum of each heat map column, row by row, plus 1: 0 means absent."""
    largest: NDArray[np.int64] = np.maximum.reduceat(values, edges, axis=1).reshape(-1) + 1
    return largest


def render(fleet: Fleet) -> str:
    """Return one HTML document; the same fleet gives the same bytes."""
    values, heat = content(fleet)
    return "".join(FLEET.document(str(values["title"]), {"content": [escaped_json(values)], "heat": [heat]}))
