"""Where GPU time goes in an Nsight Systems export, what each loss costs, and what to change.

    from traceview import analyze, open_trace

    analysis = analyze("report.sqlite")
    analysis.devices[0].gaps.causes          # ns by cause
    open_trace("report.sqlite").operations   # a typed polars frame

`__all__` is the public interface. Each name is imported at its first use, because polars takes 0.2 s to import and
`traceview --help` does not need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from traceview.errors import TraceviewError as TraceviewError
from traceview.model import columns as _columns

if TYPE_CHECKING:
    from traceview.comparison import compare
    from traceview.model.analysis import Analysis
    from traceview.model.comparison import Comparison
    from traceview.model.findings import Finding
    from traceview.model.fleet import Fleet
    from traceview.model.trace import Trace, Window
    from traceview.pipeline import analyze, open_trace
    from traceview.ranks.analyze_reports import analyze_fleet

__version__ = "0.1.0"
__all__ = [
    "Analysis",
    "Comparison",
    "Finding",
    "Fleet",
    "Trace",
    "TraceviewError",
    "Window",
    "analyze",
    "analyze_fleet",
    "compare",
    "open_trace",
]

_MODULES = {
    "Analysis": "traceview.model.analysis",
    "Comparison": "traceview.model.comparison",
    "Finding": "traceview.model.findings",
    "Fleet": "traceview.model.fleet",
    "Trace": "traceview.model.trace",
    "Window": "traceview.model.trace",
    "analyze": "traceview.pipeline",
    "analyze_fleet": "traceview.ranks.analyze_reports",
    "compare": "traceview.comparison",
    "open_trace": "traceview.pipeline",
}


_columns.register(lambda: import_module("traceview.report.notebook"))


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'traceview' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
