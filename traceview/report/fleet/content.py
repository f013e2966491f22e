"""What the page's script puts into elements: plain values, and the heat map's matrices as packed columns."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from traceview.model.analysis import CAUSES
from traceview.model.fleet import Fleet, Heat
from traceview.report.fleet.phrases import clock_line, headline, price, session_line, title, verdict
from traceview.report.format import plain
from traceview.report.timeline.columns import Columns

WIDEST = 500  # columns of the heat map; more iterations share one
FIGURES = ("own", "wait", "compute", "wall")
LONGEST = 400  # letters of a name


def content(fleet: Fleet) -> tuple[dict[str, object], str]:
    """Return the page's values and the packed matrices."""
    columns = Columns()
    found = {
        "title": title(fleet),
        "facts": headline(fleet),
        "verdict": "" if fleet.stragglers else verdict(fleet),  # the title says it
        "sets": max(rank.set for rank in fleet.ranks) + 1,
        "reports": len(fleet.reports),
        "each": fleet.heat is not None,
        "causes": list(CAUSES),
        "ranks": _ranks(fleet),
        "advice": [
            {"title": plain(one.title, LONGEST), "text": one.text, "price": price(fleet, one), "rank": one.rank}
            for one in fleet.advice
        ],
        "groups": [asdict(group) | {"ranks": len(group.ranks)} for group in fleet.groups],
        "pairs": [asdict(pair) for pair in fleet.pairs],
        "pairCount": fleet.pair_count,
        "clocks": [
            asdict(clock) | {"words": clock_line(clock), "session": session_line(clock)} for clock in fleet.clocks
        ],
        "skipped": [asdict(one) for one in fleet.skipped],
        "notes": [plain(note, 2000) for note in fleet.notes],
        "heat": None if fleet.heat is None else _heat(fleet.heat, columns),
    }
    return found, columns.packed()


def _ranks(fleet: Fleet) -> list[dict[str, object]]:
    late = {one.rank for one in fleet.stragglers}
    return [
        asdict(rank) | {"label": plain(rank.label, LONGEST), "straggler": row in late}
        for row, rank in enumerate(fleet.ranks)
    ]


def _heat(heat: Heat, columns: Columns) -> dict[str, object]:
    merged = -(-len(heat.steps) // WIDEST) or 1
    edges = np.arange(0, len(heat.steps), merged)
    ends = np.minimum(edges + merged, len(heat.steps)) - 1
    first, last = heat.steps[edges], heat.steps[ends]
    return {
        "names": [str(one) if one == other else f"{one} to {other}" for one, other in zip(first, last, strict=True)],
        "steady": np.maximum.reduceat(heat.steady, edges).tolist(),
        "merged": merged,
        **{name: columns.add(_largest(getattr(heat, name), edges)) for name in FIGURES},
    }


def _largest(values: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the largest of each column's iterations, row by row; absent ones, -1, become 0."""
    found: NDArray[np.int64] = np.maximum.reduceat(values, edges, axis=1).reshape(-1) + 1
    return found
