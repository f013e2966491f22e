"""The content of the page as plain values: figures in ns and bytes, texts as they are in the Analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from traceview.model.analysis import CAUSES, Analysis, DeviceUse, Finding, Iterations, NotMeasured, Place
from traceview.model.columns import Table
from traceview.model.trace import MEMORIES
from traceview.report.format import CAUSE_WORDS, confidence_word, plain
from traceview.report.timeline.bands import Bands
from traceview.report.timeline.rows import WORDS

Json = dict[str, Any]
MAX_TABLE_ROWS = 500  # a capture can give every range its own name; --json writes all rows


def sections(analysis: Analysis, zero: int, work: Mapping[int, Bands]) -> Json:
    """Return everything on the page except the timeline and the charts. Times count from `zero`, in ns.

    `work` holds the bands of each device (timeline/bands.py).
    """
    info = analysis.info
    return {
        "file": plain(info.file, 200),
        "nsys": info.nsys_version,
        "profiler": info.profiler,
        "schema": info.schema_version,
        "narrowed": analysis.trace.window is not None,
        "cause_words": CAUSE_WORDS,
        "memories": MEMORIES,
        "devices": [_device(device, work[device.device]) for device in analysis.devices],
        "findings": [_finding(finding, zero) for finding in analysis.findings],
        "iterations": _iterations(analysis.iterations),
        "tables": [
            *(
                _table(table, device.id if len(analysis.devices) > 1 else "")
                for device in analysis.devices
                for table in device.tables.values()
            ),
            *(_table(table) for table in analysis.tables.values()),
        ],
        "unmatched": asdict(analysis.unmatched),
        "notes": [note.text for note in analysis.notes],
    }


def _not_measured(what: NotMeasured) -> Json:
    return {"not_measured": what.reason}


def _device(device: DeviceUse, work: Bands) -> Json:
    return {
        "id": device.id,
        "name": device.name,
        "processes": device.process_ids,
        "window_ns": device.window.length,
        "busy_ns": device.busy_ns,
        "idle_ns": device.idle_ns,
        "kernel_count": device.kernel_count,
        "parts": _parts(device, work),
        "gap_count": device.gaps.count,
        "causes": {cause: device.gaps.causes[cause] for cause in CAUSES},
    }


def _parts(device: DeviceUse, work: Bands) -> list[Json]:
    """Return the parts of the window, which add up to it: busy time by class, then idle time by cause."""
    busy = [
        {
            "look": band.name,
            "word": WORDS[band.name] if band.name in ("compute", "memset") else f"exposed {WORDS[band.name]}",
            "ns": band.exposed_ns,
        }
        for band in work
    ]
    idle = [
        {"look": f"idle_{cause}", "word": f"idle: {cause.replace('_', ' ')}", "ns": device.gaps.causes[cause]}
        for cause in CAUSES
    ]
    return [part for part in (*busy, *idle) if part["ns"]]


def _table(table: Table, device: str = "") -> Json:
    """Return a declared table with the columns that it shows; `device` names the device where there are several."""
    rows = table.shown_rows
    columns = table.columns
    return {
        "title": f"{table.title} on {device}" if device else table.title,
        "note": table.note,
        "not_measured": table.not_measured,
        "columns": [{"name": column.name, "title": column.title, "unit": column.unit} for column in columns],
        "rows": [[getattr(row, column.name) for column in columns] for row in rows[:MAX_TABLE_ROWS]],
        "row_count": len(rows),
    }


def _finding(finding: Finding, zero: int) -> Json:
    return {
        "id": finding.id,
        "severity": finding.severity,
        "title": finding.title,
        "cost_ns": finding.cost_ns,
        "fraction": finding.cost_fraction,
        "per_iteration_ns": finding.cost_per_iteration_ns,
        "advice": finding.advice,
        "code": finding.code,
        "device": finding.device,
        "unsure_because": finding.unsure_because,
        "evidence": [_place(place, zero) for place in finding.evidence],
    }


def _place(place: Place, zero: int) -> Json:
    targets = (
        (place.stream, f"s:{place.stream}"),
        (place.thread, f"t:{place.thread}"),
        (place.device, f"d:{place.device}"),
    )
    return {
        "text": place.text,
        "start": place.start_ns - zero,
        "end": place.end_ns - zero,
        "rows": [row for known, row in targets if known is not None],
    }


def _iterations(iterations: Iterations | NotMeasured) -> Json:
    if isinstance(iterations, NotMeasured):
        return _not_measured(iterations)
    return {
        "range": iterations.range,
        "source": iterations.source,
        "confidence": confidence_word(iterations.confidence),
        "time_ns": iterations.time_ns,
        "candidates": [asdict(candidate) for candidate in iterations.candidates],
        "process": iterations.process_id,
        "count": iterations.count,
        "skipped": iterations.skipped,
        "skipped_why": iterations.skipped_why,
        "spreads": {name: asdict(spread) for name, spread in iterations.spreads.items()},
    }
