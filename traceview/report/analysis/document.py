"""The JSON document (docs/definitions.md "JSON"): whole numbers of ns and bytes, the same bytes every time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from operator import attrgetter

from traceview.model.analysis import Analysis, Iteration, Iterations, NotMeasured, Spread, SyncUse
from traceview.model.columns import Table
from traceview.model.devices import CAUSES, DeviceFigures, DeviceUse, Gap, HostStates
from traceview.model.findings import Finding, Place
from traceview.report.json import Json, plain_values, rounded, row_text, unprofiled_values

SCHEMA_VERSION = 1
ITERATION_FIELDS = tuple(field.name for field in fields(Iteration))
ITERATION_VALUES = attrgetter(*ITERATION_FIELDS)


def to_json(analysis: Analysis) -> str:
    """Return the document as text, a row of a list on one line; the same analysis gives the same bytes."""
    return row_text(document(analysis))


def document(analysis: Analysis) -> dict[str, Json]:
    """Return the document as plain values, in docs/definitions.md's order."""
    return {
        "schema_version": SCHEMA_VERSION,
        "report": {
            "file": analysis.info.file,
            "nsys_version": analysis.info.nsys_version,
            "schema_version": analysis.info.schema_version,
            "profiler": analysis.info.profiler,
        },
        "program": plain_values(analysis.program),
        "answer": analysis.answer,
        "devices": [_device(device, analysis) for device in analysis.devices],
        "host": {
            "sync": _sync(analysis.host.sync),
            "implicit_sync": _sync(analysis.host.implicit_sync),
        },
        **_tables(analysis.tables),
        "iterations": _iterations(analysis.iterations),
        "whole": analysis.whole,
        "findings": [_finding(finding, analysis) for finding in analysis.findings],
        "unmatched": plain_values(analysis.unmatched),
        "notes": plain_values(analysis.notes),
    }


def _device(use: DeviceUse, analysis: Analysis) -> Json:
    return {
        "id": use.id,
        "name": use.name,
        "process_ids": list(use.process_ids),
        "window_ns": [use.window.start, use.window.end],
        "clock": _clock(analysis.trace.devices.row(use.device, named=True)),
        "kernel_count": use.kernel_count,
        "busy_ns": use.busy_ns,
        "compute_ns": use.compute_ns,
        "communication_ns": use.communication_ns,
        "idle_ns": use.idle_ns,
        **_tables(use.tables),
        "gaps": {
            "count": use.gaps.count,
            "total_ns": use.gaps.total_ns,
            "causes": dict(use.gaps.causes),
            **_host_states(use.gaps.host_states),
            "longest": [_gap(gap, analysis) for gap in use.gaps.longest],
        },
        "steady": _steady(use.steady),
    }


def _clock(device: Mapping[str, Json]) -> Json:
    return {f"{name}_ns": device[f"clock_{name}"] for name in ("offset", "low", "high")}


def _steady(use: DeviceFigures) -> Json:
    return {
        "window_ns": [use.window.start, use.window.end],
        "kernel_count": use.kernel_count,
        "busy_ns": use.busy_ns,
        "compute_ns": use.compute_ns,
        "communication_ns": use.communication_ns,
        "exposed_h2d_ns": use.exposed_h2d_ns,
        "exposed_d2h_ns": use.exposed_d2h_ns,
        "exposed_communication_ns": use.communication.exposed_ns,
        "idle_ns": use.idle_ns,
        "causes": dict(use.gaps.causes),
        "profiler_ns": plain_values(use.gaps.profiler),
        **_host_states(use.gaps.host_states),
        **_tables(use.tables),
    }


def _host_states(states: HostStates) -> dict[str, Json]:
    return {"host_states": dict(states.ns), "host_waits": dict(states.waits)}


def _tables(tables: Mapping[str, Table]) -> dict[str, Json]:
    """Return the declared tables, each a list of rows or, where it is single, one object.

    Those of other packages are under `extensions`, so that their names can equal other keys.
    """
    shown = [table for table in tables.values() if table.in_json]
    extensions: dict[str, Json] = {table.name: _rows(table) for table in shown if table.package}
    own = {table.name: _rows(table) for table in shown if not table.package}
    return {**own, "extensions": extensions} if extensions else own


def _rows(table: Table) -> Json:
    if table.single:
        return plain_values(table.rows[0]) if table.rows else None
    return plain_values(table.rows)


def _gap(gap: Gap, analysis: Analysis) -> Json:
    thread = None if gap.thread is None else analysis.trace.threads.row(gap.thread, named=True)
    return {
        "start_ns": gap.start_ns,
        "end_ns": gap.end_ns,
        "length_ns": gap.end_ns - gap.start_ns,
        "cause": gap.cause,
        "causes": {name: gap.causes[name] for name in CAUSES},
        "next_operation": gap.next_operation,
        "process_id": thread and thread["process"],
        "thread_id": thread and thread["tid"],
        "range": gap.range,
    }


def _sync(use: SyncUse) -> Json:
    return {
        "count": use.count,
        "blocked_ns": use.blocked_ns,
        "waited_ns": use.waited_ns,
        "starved_ns": use.starved_ns,
        "idle_in_wait_ns": use.idle_in_wait_ns,
        "refill_ns": use.refill_ns,
        "cost_ns": use.cost_ns,
        "calls": plain_values(use.calls),
    }


def _iterations(iterations: Iterations | NotMeasured) -> Json:
    if isinstance(iterations, NotMeasured):
        empty: Json = dict.fromkeys(("median", "p5", "p95"))
        return {
            "range": None,
            "source": "none",
            "confidence": 0.0,
            "time_ns": None,
            **unprofiled_values(None),
            "count": 0,
            "skipped": 0,
            "candidates": [],
            "wall_ns": empty,
            "per_iteration": [],
            "not_measured": iterations.reason,
        }
    spreads: dict[str, Json] = {
        name: _spread(spread) for name, spread in iterations.spreads.items() if name != "wall_ns"
    }
    return {
        "range": iterations.range,
        "source": iterations.source,
        "confidence": rounded(iterations.confidence),
        "time_ns": iterations.time_ns,
        **unprofiled_values(iterations.unprofiled),
        "process_id": iterations.process_id,
        "count": iterations.count,
        "skipped": iterations.skipped,
        "skipped_why": iterations.skipped_why,
        "wall_ns": _spread(iterations.wall_ns),
        **spreads,
        "candidates": [
            plain_values(candidate) | {"share_fraction": rounded(candidate.share_fraction)}  # type: ignore[operator]
            for candidate in iterations.candidates
        ],
        "per_iteration": [_iteration(iteration) for iteration in iterations.per_iteration],
    }


def _iteration(iteration: Iteration) -> Json:
    return dict(zip(ITERATION_FIELDS, ITERATION_VALUES(iteration), strict=True)) | {"idle": dict(iteration.idle)}


def _spread(spread: Spread) -> Json:
    return {"median": spread.median, "p5": spread.p5, "p95": spread.p95}


def _finding(finding: Finding, analysis: Analysis) -> Json:
    return {
        "id": finding.id,
        "severity": finding.severity,
        "title": finding.title,
        "device": finding.device,
        "cost_ns": finding.cost_ns,
        "cost_fraction": rounded(finding.cost_fraction),
        "cost_per_iteration_ns": finding.cost_per_iteration_ns,
        "unprofiled_cost_ns": finding.unprofiled_cost_ns,
        "unprofiled_cost_per_iteration_ns": finding.unprofiled_cost_per_iteration_ns,
        "unprofiled_cost_fraction": rounded(finding.unprofiled_cost_fraction),
        "claims": finding.claims,
        "remedy": finding.remedy,
        "advice": finding.advice,
        "code": finding.code,
        "prediction": plain_values(finding.prediction),
        "unsure_because": finding.unsure_because,
        "host": plain_values(finding.host),
        "evidence": [_place(place, analysis) for place in finding.evidence],
        "others": [_finding(other, analysis) for other in finding.others],
    }


def _place(place: Place, analysis: Analysis) -> Json:
    """Return a place with the ids that CUDA and the system use; rows of the Trace mean nothing outside."""
    trace = analysis.trace
    stream = None if place.stream is None else int(trace.streams["stream_id"][place.stream])
    thread = None if place.thread is None else int(trace.threads["tid"][place.thread])
    return {
        "text": place.text,
        "start_ns": place.start_ns,
        "end_ns": place.end_ns,
        "device": place.device,
        "stream": stream,
        "thread": thread,
    }
