"""A fleet as JSON. The same reports give the same bytes, wherever they are read."""

from __future__ import annotations

from traceview.model.analysis import CAUSES
from traceview.model.fleet import Advice, Clock, CollectiveGroup, Fleet, Heat, Pair, Rank, Straggler
from traceview.report.json import Json, Shapes, Value, names, ns, result_document, rounded, row_text


def to_json(fleet: Fleet) -> str:
    """Return the document as text."""
    return row_text(document(fleet))


def document(fleet: Fleet) -> dict[str, Json]:
    """Return the document as plain values and rows of the heat map's matrices (docs/fleet.md "JSON")."""
    return result_document(fleet, SHAPES)


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
        **names("label", "file", "device", "gpu", "iterations"),
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
