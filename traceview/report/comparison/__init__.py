"""A comparison as JSON (docs/compare.md "JSON")."""

from __future__ import annotations

from traceview.model.comparison import (
    CaptureDifference,
    Comparison,
    FigureChange,
    KernelChange,
    LineChange,
    OverlapChange,
    PredictedTime,
)
from traceview.report.json import ByName, Document, Shapes, Variants, names, ns, rounded

FIGURES = ("before", "after", "difference", "low", "high", "mean_before", "mean_after")
CHANGE = Variants("unit", {"ns": {**ns(*FIGURES), "verdict": "verdict"}, "count": names(*FIGURES, "verdict")})

SHAPES: Shapes = {
    Comparison: {
        **names("whole_because", "level"),
        "min_change_fraction": "min_change",
        **names("base", "against", "notes"),
    },
    CaptureDifference: {
        **names("capture", "verdict", "why"),
        **{name: rounded(name) for name in ("confidence", "ratio", "ratio_low", "ratio_high", "unprofiled_ratio")},
        "time": "time",
        "mean_parts": ByName("mean_parts", CHANGE),
        **names("work", "predicted"),
        "host": ByName("host", CHANGE),
        **names("kernels", "overlap", "lines", "notes"),
    },
    OverlapChange: {
        "work": "work",
        **{f"{name}_fraction": rounded(name) for name in ("hidden_before", "hidden_after")},
        **names("busy", "exposed"),
        "causes": ByName("causes", CHANGE),
        **names("price_before_ns", "price_after_ns"),
    },
    FigureChange: CHANGE,
    PredictedTime: {
        **names("change", "title", "before_ns", "iteration_ns", "low_ns", "high_ns", "result_ns"),
        "error_fraction": rounded("error"),
        "inside": "is_inside",
        "without_profiler": "without_profiler",
    },
    KernelChange: names("name", "label", "grid", "block", "status", "cost_ns", "count", "time", "per_call"),
    LineChange: names("file", "function", "line", "line_before", "idle"),
}
JSON = Document[Comparison](SHAPES)
document, to_json = JSON.values, JSON.text
