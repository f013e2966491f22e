"""A comparison as JSON: whole ns, keys as in docs/compare.md, the same bytes every time."""

from __future__ import annotations

from traceview.model.comparison import CaptureDifference, Comparison, FigureChange, KernelChange
from traceview.report.json import Json, indented_text, plain, rounded

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
        "least": comparison.min_change,
        "base": plain(comparison.base),
        "against": [_against(one) for one in comparison.against],
        "notes": list(comparison.notes),
    }


def _against(one: CaptureDifference) -> Json:
    return {
        "capture": plain(one.capture),
        "verdict": one.verdict,
        "why": one.why,
        "confidence": rounded(one.confidence),
        "ratio": rounded(one.ratio),
        "ratio_low": rounded(one.ratio_low),
        "ratio_high": rounded(one.ratio_high),
        "wall": _change(one.wall),
        "parts": {part.name: _change(part) for part in one.parts},
        "left_over_ns": one.left_over_ns,
        "idle": _change(one.idle),
        "host": {change.name: _change(change) for change in one.host},
        "kernels": [_kernel(kernel) for kernel in one.kernels],
        "notes": list(one.notes),
    }


def _change(change: FigureChange) -> dict[str, Json]:
    unit = "_ns" if change.unit == "ns" else ""
    names = ("before", "after", "difference", "low", "high", "mean_before", "mean_after")
    figures: dict[str, Json] = {f"{name}{unit}": getattr(change, name) for name in names}
    return figures | {"verdict": change.verdict}


def _kernel(kernel: KernelChange) -> Json:
    return {
        "name": kernel.name,
        "status": kernel.status,
        "count": _change(kernel.count),
        "time": _change(kernel.time),
    }
