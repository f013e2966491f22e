"""Where GPU time goes in an Nsight Systems export or a torch.profiler trace, what each loss costs, what to change.

    from traceview import analyze, open_trace, whatif

    analysis = analyze("report.sqlite")
    analysis.answer.text                     # the result in two sentences
    analysis.table("kernels")                # a polars frame
    analysis.to_html("report.html")
    whatif(analysis).predictions[0]          # the change that gains most
    open_trace("report.sqlite").operations   # every operation of the GPUs, a typed polars frame

`__all__` is the public interface; packages that add rules and measures use `traceview.plugin`. Each name is imported at
its first use, because polars takes 0.2 s to import and `traceview --help` does not need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from traceview.errors import TraceviewError as TraceviewError
from traceview.model import columns as _columns

if TYPE_CHECKING:
    from traceview.api import export, whatif
    from traceview.comparison import compare
    from traceview.model.analysis import Analysis
    from traceview.model.comparison import Comparison
    from traceview.model.findings import Finding
    from traceview.model.fleet import Fleet
    from traceview.model.trace import Trace, Window
    from traceview.model.whatif import WhatIf
    from traceview.pipeline import analyze, open_trace
    from traceview.ranks.analyze_reports import fleet

__version__ = "0.1.0"
__all__ = [
    "Analysis",
    "Comparison",
    "Finding",
    "Fleet",
    "Trace",
    "TraceviewError",
    "WhatIf",
    "Window",
    "analyze",
    "compare",
    "export",
    "fleet",
    "open_trace",
    "whatif",
]

_MODULES = {
    "Analysis": "traceview.model.analysis",
    "Comparison": "traceview.model.comparison",
    "Finding": "traceview.model.findings",
    "Fleet": "traceview.model.fleet",
    "Trace": "traceview.model.trace",
    "WhatIf": "traceview.model.whatif",
    "Window": "traceview.model.trace",
    "analyze": "traceview.pipeline",
    "compare": "traceview.comparison",
    "export": "traceview.api",
    "fleet": "traceview.ranks.analyze_reports",
    "open_trace": "traceview.pipeline",
    "whatif": "traceview.api",
}


_columns.register(lambda: import_module("traceview.api"))


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'traceview' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
