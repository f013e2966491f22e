"""Where did the GPU's time go, what did each loss cost, and what to change: from an Nsight Systems export.

    from traceview import analyze, open_trace

    analysis = analyze("report.sqlite")
    analysis.devices[0].gaps.causes          # ns by cause
    open_trace("report.sqlite").operations   # a typed polars frame

The names below are the public interface. They are imported when first used, so that the command line
answers at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from traceview.version import __version__ as __version__

if TYPE_CHECKING:
    from traceview.analyze import analyze
    from traceview.compare import compare
    from traceview.errors import TraceviewError
    from traceview.model import Analysis, Finding, Trace, Window
    from traceview.model_compare import Comparison
    from traceview.trace import open_trace

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

_HOME = {
    "Analysis": "traceview.model",
    "Comparison": "traceview.model_compare",
    "Finding": "traceview.model",
    "Trace": "traceview.model",
    "TraceviewError": "traceview.errors",
    "Window": "traceview.model",
    "analyze": "traceview.analyze",
    "compare": "traceview.compare",
    "open_trace": "traceview.trace",
}


class _Package(ModuleType):
    """A package whose public functions are not hidden by the modules of the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        # Importing traceview.analyze would bind the module here, over the function that `analyze` means.
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'traceview' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
