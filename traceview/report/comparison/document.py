"""A comparison as JSON: whole ns, keys as in docs/compare.md, the same bytes every time."""

from __future__ import annotations

from traceview.model.comparison import CaptureDifference, Comparison, FigureChange, KernelChange
from traceview.report.json import Json, indented_text, plain_values, rounded

SCHEMA_VERSION = 1


def to_json(comparison: Comparison) -> str:
    """Return the document as text."""
    return indented_text(document(comparison))


def document(comparison: Comparison) -> dict[str, Json]:
    """Return the document as plain values (docs/compare.md "JSON")."""
    return {
        "schema_version": SCHEMA_VERSION,
        "cut": comparison.cut,
        "cut_why": comparison.cut_why,
        "level": comparison.level,
        "min_change_fraction": comparison.min_change,
        "base": plain_values(comparison.base),
        "against": [_against(against) for against in comparison.against],
        "notes": plain_values(comparison.notes),
    }


def _against(against: CaptureDifference) -> Json:
    return {
        "capture": plain_values(against.capture),
        "verdict": against.verdict,
        "why": against.why,
        "confidence": rounded(against.confidence),
        "ratio": rounded(against.ratio),
        "ratio_low": rounded(against.ratio_low),
        "ratio_high": rounded(against.ratio_high),
        "unprofiled_ratio": rounded(against.unprofiled_ratio),
        "time": _change(against.time),
        "mean_parts": {part.name: _change(part) for part in against.mean_parts},
        "work": plain_values(against.work),
        "wall": _change(against.wall),
        "parts": {part.name: _change(part) for part in against.parts},
        "left_over_ns": against.left_over_ns,
        "idle": _change(against.idle),
        "host": {change.name: _change(change) for change in against.host},
        "kernels": [_kernel(kernel) for kernel in against.kernels],
        "lines": [
            {name: getattr(line, name) for name in ("file", "function", "line", "line_before")}
            | {"idle": _change(line.idle)}
            for line in against.lines
        ],
        "notes": plain_values(against.notes),
    }


def _change(change: FigureChange) -> dict[str, Json]:
    unit = "_ns" if change.unit == "ns" else ""
    names = ("before", "after", "difference", "low", "high", "mean_before", "mean_after")
    figures: dict[str, Json] = {f"{name}{unit}": getattr(change, name) for name in names}
    return figures | {"verdict": change.verdict}


def _kernel(kernel: KernelChange) -> Json:
    return {
        "name": kernel.name,
        "label": kernel.label,
        "grid": plain_values(kernel.grid),
        "block": plain_values(kernel.block),
        "status": kernel.status,
        "cost_ns": kernel.cost_ns,
        "count": _change(kernel.count),
        "time": _change(kernel.time),
        "per_call": _change(kernel.per_call),
    }
