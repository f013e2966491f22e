"""A comparison as JSON: whole ns, keys as in docs/compare.md, the same bytes every time."""

from __future__ import annotations

from collections.abc import Mapping

from traceview.model.comparison import CaptureDifference, Comparison, KernelChange, LineChange
from traceview.report.json import (
    ByName,
    Json,
    Keys,
    Shapes,
    Variants,
    indented_text,
    names,
    ns,
    result_document,
    rounded,
)


def to_json(comparison: Comparison) -> str:
    """Return the document as text."""
    return indented_text(document(comparison))


def document(comparison: Comparison) -> dict[str, Json]:
    """Return the document as plain values (docs/compare.md "JSON")."""
    return result_document(comparison, SHAPES)


FIGURES = ("before", "after", "difference", "low", "high", "mean_before", "mean_after")
COUNT = names(*FIGURES, "verdict")
TIME = {**ns(*FIGURES), "verdict": "verdict"}


def _change(attribute: str, keys: Mapping[str, str] = TIME) -> Keys:
    return {key: f"{attribute}.{name}" for key, name in keys.items()}


SHAPES: Shapes = {
    Comparison: {
        **names("cut", "cut_why", "level"),
        "min_change_fraction": "min_change",
        **names("base", "against", "notes"),
    },
    CaptureDifference: {
        **names("capture", "verdict", "why"),
        **{name: rounded(name) for name in ("confidence", "ratio", "ratio_low", "ratio_high", "unprofiled_ratio")},
        "time": _change("time"),
        "mean_parts": ByName("mean_parts", TIME),
        "work": "work",
        "wall": _change("wall"),
        "parts": ByName("parts", TIME),
        "left_over_ns": "left_over_ns",
        "idle": _change("idle"),
        "host": ByName("host", Variants("unit", {"ns": TIME, "count": COUNT})),
        **names("kernels", "lines", "notes"),
    },
    KernelChange: {
        **names("name", "label", "grid", "block", "status", "cost_ns"),
        "count": _change("count", COUNT),
        "time": _change("time"),
        "per_call": _change("per_call"),
    },
    LineChange: {**names("file", "function", "line", "line_before"), "idle": _change("idle")},
}
