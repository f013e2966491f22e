"""What the page says, as plain values: figures in ns and bytes, words as they are in the Analysis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from traceview.model.analysis import (
    CAUSES,
    Analysis,
    DeviceUse,
    Finding,
    Iterations,
    NotMeasured,
    Place,
    StreamUse,
    SyncUse,
)
from traceview.model.trace import MEMORIES
from traceview.report.format import CAUSE_WORDS, plain
from traceview.report.timeline.bands import Bands
from traceview.report.timeline.mark_styles import WORDS

Json = dict[str, Any]
MOST_RANGES = 500  # a capture can name each range anew; --json has them all


def sections(analysis: Analysis, zero: int, work: Mapping[int, Bands]) -> Json:
    """Return everything on the page but the timeline and the charts; times count from `zero`.

    `work` is what each device did, as bands.py says.
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
        "nvtx": _not_measured(analysis.nvtx)
        if isinstance(analysis.nvtx, NotMeasured)
        else [asdict(use) for use in analysis.nvtx[:MOST_RANGES]],
        "nvtx_count": 0 if isinstance(analysis.nvtx, NotMeasured) else len(analysis.nvtx),
        "sync": _sync(analysis.host.sync),
        "implicit_sync": _sync(analysis.host.implicit_sync),
        "unmatched": asdict(analysis.unmatched),
        "notes": list(analysis.notes),
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
        "copies": [asdict(copies) for copies in device.copies],
        "communication": asdict(device.communication),
        "gap_count": device.gaps.count,
        "causes": {cause: device.gaps.causes[cause] for cause in CAUSES},
        "streams": [_stream(use) for use in device.streams],
    }


def _parts(device: DeviceUse, work: Bands) -> list[Json]:
    """Return parts that add up to the window: each ns of work once, then idle by cause."""
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


def _stream(use: StreamUse) -> Json:
    fields = ("stream", "label", "process_id", "kernel_count", "copy_count", "operation_count", "bytes")
    times = ("busy_ns", "compute_ns", "communication_ns", "copy_ns")
    row = {name: getattr(use, name) for name in (*fields, *times)}
    return {**row, "gap_count": use.gap_count, "gap_ns": use.gap_ns}


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


def _sync(use: SyncUse) -> Json:
    totals = {name: getattr(use, name) for name in ("count", "blocked_ns", "waited_ns", "starved_ns", "refill_ns")}
    return {**totals, "calls": [asdict(call) for call in use.calls]}


def _iterations(iterations: Iterations | NotMeasured) -> Json:
    if isinstance(iterations, NotMeasured):
        return _not_measured(iterations)
    return {
        "range": iterations.range,
        "process": iterations.process_id,
        "count": iterations.count,
        "skipped": iterations.skipped,
        "skipped_why": iterations.skipped_why,
        "spreads": {name: asdict(spread) for name, spread in iterations.spreads.items()},
    }
