"""An analysis as JSON (docs/definitions.md "JSON"): whole numbers of ns and bytes, the same bytes every time.

page.py       the page: template, styles and scripts of report/assets, filled with texts and tables
charts.py     figures of the charts
terminal.py   the summary and its tables
answer.py     sentences of both
"""

from __future__ import annotations

from collections.abc import Mapping

from traceview.model.analysis import (
    Analysis,
    DeviceFigures,
    DeviceUse,
    Gap,
    IterationCandidate,
    IterationKind,
    Iterations,
    NotMeasured,
    SyncUse,
)
from traceview.model.columns import Table
from traceview.model.findings import Finding, Place
from traceview.model.rows import ApiTotal, QueuedFor
from traceview.model.trace import Window
from traceview.report.json import (
    MERGED,
    UNPROFILED,
    Constant,
    Document,
    Json,
    Keys,
    Shapes,
    Value,
    names,
    plain_values,
    rounded,
    row_text,
)


def _rows(table: Table) -> Json:
    rows: list[Json] = plain_values(table.rows)
    return next(iter(rows), None) if table.single else rows


def _tables(tables: Mapping[str, Table], _: Analysis) -> dict[str, Json]:
    """Return the declared tables, each a list of rows or, where it is single, one object.

    Those of other packages are under `extensions`, so that their names can equal other keys.
    """
    shown = [table for table in tables.values() if table.in_json]
    extensions: dict[str, Json] = {table.name: _rows(table) for table in shown if table.package}
    own = {table.name: _rows(table) for table in shown if not table.package}
    return {**own, "extensions": extensions} if extensions else own


def _queued_for(tables: Mapping[str, Table], _: Analysis) -> Json:
    return _rows(tables["queued_for"]) if "queued_for" in tables else []


def _if_calls_recorded(value: int | tuple[ApiTotal, ...], analysis: Analysis) -> Json:
    """Return a figure of the CUDA calls; None if the capture has none, because they were not recorded."""
    return None if analysis.trace.api.is_empty() else plain_values(value)


def _cell(row: str, frame: str, column: str) -> Value:
    """Return a figure or id of a row of the Trace, because row numbers mean nothing outside."""

    def cell(number: int | None, analysis: Analysis) -> int | None:
        value: int | None = None if number is None else getattr(analysis.trace, frame)[column][number]
        return value

    return Value(row, cell, int | None)


TABLES = Value("tables", _tables)
WINDOW: Keys = {"window_ns": Value("window", lambda window, _: [window.start, window.end], tuple[int, int])}
WORK = names("kernel_count", "busy_ns", "compute_ns", "communication_ns")
HOST_STATES: Keys = {
    "host_states": "gaps.host_states.ns",
    **{f"host_{name}": f"gaps.host_states.{name}" for name in ("waits", "waits_for")},
}

SHAPES: Shapes = {
    Window: {"start_ns": "start", "end_ns": "end"},
    Analysis: {
        "report": {
            **{name: f"info.{name}" for name in ("file", "nsys_version", "schema_version", "profiler")},
            "trust": {
                **{name: f"info.trust.{name}" for name in ("verdict", "events", "left_out", "cut", "doubled")},
                "lost_fraction": rounded("info.trust.lost_fraction"),
                "holes": "holes",
                **{name: f"info.trust.{name}" for name in ("clock", "driver", "failed", "unread_tables")},
            },
        },
        **names("program", "answer", "devices", "host"),
        MERGED: TABLES,
        **names("iterations", "whole", "findings", "unmatched", "notes"),
    },
    DeviceUse: {
        **names("id", "name", "process_ids"),
        **WINDOW,
        "clock": {f"{name}_ns": _cell("device", "devices", f"clock_{name}") for name in ("offset", "low", "high")},
        **WORK,
        "idle_ns": "idle_ns",
        MERGED: TABLES,
        "gaps": {
            **{name: f"gaps.{name}" for name in ("count", "total_ns", "causes")},
            **HOST_STATES,
            "queued_for": Value("tables", _queued_for, list[QueuedFor]),
            "longest": "gaps.longest",
        },
        "steady": "steady",
    },
    DeviceFigures: {
        **WINDOW,
        **WORK,
        **names("exposed_h2d_ns", "exposed_d2h_ns"),
        "exposed_communication_ns": "communication.exposed_ns",
        "idle_ns": "idle_ns",
        "causes": "gaps.causes",
        "profiler_ns": "gaps.profiler",
        **HOST_STATES,
        MERGED: TABLES,
    },
    Gap: {
        **names("start_ns", "end_ns"),
        "length_ns": Value("", lambda gap, _: gap.end_ns - gap.start_ns, int),
        **names("cause", "causes", "next_operation"),
        "process_id": _cell("thread", "threads", "process"),
        "thread_id": _cell("thread", "threads", "tid"),
        "range": "range",
    },
    SyncUse: {
        **{
            name: Value(name, _if_calls_recorded, int | None)
            for name in ("count", "blocked_ns", "waited_ns", "starved_ns", "idle_in_wait_ns", "refill_ns", "cost_ns")
        },
        "calls": "calls",
    },
    Iterations: {
        **names("range", "source"),
        "confidence": rounded("confidence"),
        "time_ns": "time_ns",
        **UNPROFILED,
        **names("process_id", "count", "skipped", "skipped_why", "lost", "apart", "drift", "wall_ns"),
        MERGED: Value("spreads", lambda spreads, _: plain_values(spreads)),
        **names("kinds", "candidates", "per_iteration"),
    },
    NotMeasured: {
        "range": Constant(None),
        "source": Constant("none"),
        "confidence": Constant(0.0),
        **dict.fromkeys(("time_ns", "drift", *UNPROFILED), Constant(None)),
        **dict.fromkeys(("count", "skipped", "lost", "apart"), Constant(0)),
        "kinds": Constant([]),
        "candidates": Constant([]),
        "wall_ns": Constant(dict.fromkeys(("median", "p5", "p95"))),
        "per_iteration": Constant([]),
        "not_measured": "reason",
    },
    IterationKind: {
        "count": "count",
        "share": rounded("share"),
        **names("mean_ns", "time_ns", "differs", "first", "longest"),
    },
    IterationCandidate: {**names("name", "source", "count", "time_ns"), "share_fraction": rounded("share_fraction")},
    Finding: {
        **names("id", "severity", "title", "device", "cost_ns"),
        "cost_fraction": rounded("cost_fraction"),
        **names("cost_per_iteration_ns", "unprofiled_cost_ns", "unprofiled_cost_per_iteration_ns"),
        "unprofiled_cost_fraction": rounded("unprofiled_cost_fraction"),
        **names("claims", "remedy", "advice", "code", "change", "gain", "unsure_because"),
        **names("host", "evidence", "others"),
    },
    Place: {
        **names("text", "start_ns", "end_ns", "device"),
        "stream": _cell("stream", "streams", "stream_id"),
        "thread": _cell("thread", "threads", "tid"),
    },
}
JSON = Document[Analysis](SHAPES, row_text)
document, to_json = JSON.values, JSON.text
