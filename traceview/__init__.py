"""Where did the GPU's time go, what did each loss cost, and what to change: from an Nsight Systems export.

    from traceview import analyze, open_trace

    analysis = analyze("report.sqlite")
    analysis.devices[0].gaps.causes          # ns by cause
    open_trace("report.sqlite").operations   # a typed polars frame

The names below are the public interface. Each is imported when it is first used: polars takes 0.2 s to import, and
`traceview --help` does without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from traceview.errors import TraceviewError as TraceviewError
from traceview.version import __version__ as __version__

if TYPE_CHECKING:
    from traceview.comparison import compare
    from traceview.model.analysis import Analysis, Finding
    from traceview.model.comparison import Comparison
    from traceview.model.trace import Trace, Window
    from traceview.pipeline import analyze, open_trace

__all__ = [
    "Analysis",
    "Comparison",
    "Finding",
    "Trace",
    "TraceviewError",
    "Window",
    "analyze",
    "compare",
    "open_trace",
]

_MODULES = {
    "traceview.comparison": ("compare",),
    "traceview.model.analysis": ("Analysis", "Finding", "Trace", "Window"),
    "traceview.model.comparison": ("Comparison",),
    "traceview.pipeline": ("analyze", "open_trace"),
}


def __getattr__(name: str) -> object:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'traceview' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
