"""The figures of a capture from those of its parts. How each column merges stands at its declaration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import polars as pl

from traceview.engine.measure import PartPlan, PartResult
from traceview.measure import all_measures
from traceview.measure.base import CaptureInput, Measure, PartContext, merges_of_fields
from traceview.measure.devices import list_gaps
from traceview.measure.host import HostIdle, longest_first
from traceview.measure.nvtx import project_operations
from traceview.measure.streams import STREAM_ORDER
from traceview.measure.sync import call_order
from traceview.model.analysis import (
    CAUSES,
    Analysis,
    DeviceFigures,
    DeviceUse,
    Gaps,
    HostStates,
    HostUse,
    Iterations,
    NotMeasured,
    SyncUse,
    Unmatched,
)
from traceview.model.columns import Merge, Table
from traceview.model.rows import ApiTotal, StreamUse
from traceview.model.sums import sum_mappings
from traceview.model.trace import Note, ReportInfo, Trace, Window
from traceview.normalise.sizes import unknown_messages


def merge_parts(
    resident: Trace,
    host_idle: HostIdle | None,
    plan: PartPlan,
    iterations: Iterations | NotMeasured,
    results: Sequence[PartResult],
) -> Analysis:
    """Return the analysis of a capture without findings, with the notes on what its tables and the capture lack.

    `resident` has the small tables of its trace, and `host_idle` knows them. `results` are in the order of time.
    """
    devices = merge_devices(resident, results, plan.top)
    host = HostUse(
        sync=_merge_calls([result.host.sync for result in results]),
        implicit_sync=_merge_calls([result.host.implicit_sync for result in results]),
    )
    counts = [result.unmatched for result in results]
    given = CaptureInput(
        resident,
        host,
        project_operations(resident),
        devices,
        iterations,
        plan.flops_per_iteration,
        plan.whole,
        host_idle,
    )
    tables = _merge_tables(given, [result.tables for result in results])
    count, known = (sum(result.messages[at] for result in results) for at in range(2))
    unknown = unknown_messages(count, known, resident.info.profiler)
    info = resident.info
    if unknown is not None and unknown not in info.health:
        info = replace(info, health=(*info.health, unknown))
    return Analysis(
        info=info,
        trace=resident,
        devices=devices,
        host=host,
        tables=tables,
        notes=tuple(_notes(info, devices, tables, iterations)),
        iterations=iterations,
        unmatched=Unmatched(
            **{field.name: sum(getattr(each, field.name) for each in counts) for field in fields(Unmatched)}
        ),
        whole=plan.whole,
        run=plan.run,
    )


def _notes(
    info: ReportInfo, devices: Sequence[DeviceUse], tables: Mapping[str, Table], iterations: Iterations | NotMeasured
) -> Iterator[Note]:
    """Yield notes on what the capture lost, what was left out of it, and what is not measured."""
    yield from info.health
    yield from info.left_out
    lost_ranges = any(note.id == "lost_ranges" for note in info.health)
    every = [table for device in devices for table in device.tables.values()] + list(tables.values())
    for table in {table.name: table for table in every if table.not_measured}.values():
        kind = "package" if table.package else "no"
        if not (lost_ranges and table.name == "nvtx"):
            yield Note(f"{kind}_{table.name}", str(table.not_measured), affects=(table.name,))
    if isinstance(iterations, NotMeasured):
        yield Note("no_iterations", iterations.reason, affects=("iterations",))


def merge_devices(resident: Trace, results: Sequence[PartResult], top: int) -> tuple[DeviceUse, ...]:
    """Return the devices of a capture (see merge_parts)."""
    device_uses: dict[int, list[DeviceUse]] = {}
    for result in results:
        for device in result.devices:
            device_uses.setdefault(device.device, []).append(device)
    merged = []
    for row, uses in sorted(device_uses.items()):
        context = PartContext(resident, row)
        device = replace(uses[0], **_merge_parts(context, uses))
        steady = [use.steady for use in uses if use.steady.window.length] or [uses[0].steady]
        candidates = join_pieces(pl.concat([result.gaps[row] for result in results if row in result.gaps]))
        longest = list_gaps(resident, candidates, top)
        steady_part = replace(uses[0].steady, **_merge_parts(context, steady))
        merged.append(replace(device, gaps=replace(device.gaps, longest=longest), steady=steady_part))
    return tuple(merged)


def merge_steady_streams(results: Sequence[PartResult]) -> dict[int, tuple[StreamUse, ...]]:
    """Return the streams of each device in its steady part (see steady_streams)."""
    rows: dict[int, list[StreamUse]] = {}
    for result in results:
        for device, streams in result.steady_streams.items():
            rows.setdefault(device, []).extend(streams)
    return {
        device: tuple(sorted(_merge_rows(StreamUse, streams), key=STREAM_ORDER)) for device, streams in rows.items()
    }


def join_pieces(candidates: pl.DataFrame) -> pl.DataFrame:
    """Return gap_candidates or edge_gaps of all parts, in order of time, with the pieces of a gap joined."""
    begins = ~candidates["continues"].shift(1, fill_value=False)
    last = [name for name in ("end", "thread", "next_operation", "launched") if name in candidates.columns]
    return (
        candidates.with_columns(begins.cum_sum().alias("gap"))
        .group_by("gap", maintain_order=True)
        .agg(pl.col("start").first(), pl.col(last).last(), pl.col(CAUSES).sum())
    )


def _merge_parts(context: PartContext, parts: Sequence[DeviceFigures]) -> dict[str, Any]:
    """Return the fields of DeviceFigures, of all parts together."""
    figures: dict[str, Any] = {
        field.name: sum(getattr(part, field.name) for part in parts)
        for field in fields(DeviceFigures)
        if isinstance(getattr(parts[0], field.name), int)
    }
    window = Window(parts[0].window.start, parts[-1].window.end)
    tables = _merge_tables(context, [part.tables for part in parts])
    return {**figures, "window": window, "gaps": _merge_gaps([part.gaps for part in parts]), "tables": tables}


def _merge_gaps(gaps: Sequence[Gaps]) -> Gaps:
    return Gaps(
        count=sum(each.count for each in gaps),
        total_ns=sum(each.total_ns for each in gaps),
        causes=sum_mappings(each.causes for each in gaps),
        frame=gaps[0].frame,
        host_states=merge_host_states([each.host_states for each in gaps]),
    )


def merge_host_states(states: Sequence[HostStates]) -> HostStates:
    """Return the states of all parts together."""
    waits, waits_for = (sum_mappings(getattr(each, name) for each in states) for name in ("waits", "waits_for"))
    return HostStates(sum_mappings(each.ns for each in states), longest_first(waits), longest_first(waits_for))


def _merge_tables(context: Any, parts: Sequence[Mapping[str, Table]]) -> dict[str, Table]:
    measures = {measure.table.name: measure for measure in all_measures()}
    return {name: merge_table(measures[name], context, [tables[name] for tables in parts]) for name in parts[0]}


def merge_table(measure: Measure, context: Any, tables: Sequence[Table]) -> Table:
    """Return the table of a capture from those of its parts, in order of time."""
    measured = [table for table in tables if table.not_measured is None]
    if not measured or any(table.failed for table in tables):
        return next((table for table in tables if table.failed), tables[0])
    if measure.totals is not None:
        return measure.from_totals(
            context, merge_totals(measure, [table.totals.frame for table in measured if table.totals is not None])
        )
    return measure.from_rows(_merge_rows(measure.table.row_type, [row for table in measured for row in table.rows]))


def merge_totals(measure: Measure, frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return one frame of a measure's totals: rows with equal keys are one row."""
    filled = [frame for frame in frames if not frame.is_empty()]
    if len(filled) < 2:
        return (filled or frames)[0]
    every = pl.concat(filled, how="vertical_relaxed")
    rules = measure.merge_rules(every)
    keys = [name for name, rule in rules.items() if rule == "key"]
    values = [name for name in every.columns if name not in keys]
    merged = every.group_by(keys, maintain_order=True).agg(_merged_column(name, rules[name]) for name in values)
    return merged.select(every.columns)


def _merged_column(name: str, rule: Merge) -> pl.Expr:
    column = pl.col(name)
    if rule == "list":
        return column.explode()
    return {"sum": column.sum, "min": column.min, "max": column.max, "first": column.first}[rule]()


def _merge_rows(row_type: type, rows: Sequence[Any]) -> list[Any]:
    """Return rows merged field by field, in the order in which their keys occur first."""
    rules: dict[str, Merge] = {name: rule or "none" for name, rule in merges_of_fields(row_type).items()}
    keys = [name for name, rule in rules.items() if rule == "key"]
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in keys), []).append(row)
    merged = []
    for members in groups.values():
        values = {name: [getattr(row, name) for row in members] for name in rules}
        merged.append(row_type(**{name: _merged_value(rules[name], values[name]) for name in rules}))
    return merged


def _merged_value(rule: Merge, values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if rule in ("key", "first") or len(values) == 1 or not known:
        return values[0]
    if rule == "none":
        return None
    if rule == "sum":
        return sum_mappings(known) if isinstance(known[0], Mapping) else sum(known)
    return {"min": min, "max": max}[rule](known)


def _merge_calls(uses: Sequence[SyncUse]) -> SyncUse:
    calls = _merge_rows(ApiTotal, [call for use in uses for call in use.calls])
    sums = {
        field.name: sum(getattr(use, field.name) for use in uses)
        for field in fields(SyncUse)
        if field.name not in ("calls", "frame")
    }
    return SyncUse(**sums, calls=tuple(sorted(calls, key=call_order)), frame=uses[0].frame)
