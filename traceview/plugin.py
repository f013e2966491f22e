"""The interface for packages that add rules and measures (docs/extending.md "In your own package").

A package imports names of traceview from here and from `traceview` alone. `API_VERSION` rises when a name goes or
changes what it means; a name that is added leaves it. `tests/test_plugins.py` installs a package that uses it.
"""

from __future__ import annotations

from traceview.measure.base import CaptureInput, DeviceInput, Measure
from traceview.model.analysis import NotMeasured
from traceview.model.columns import Table, column, derived
from traceview.model.trace import Note, Trace, Window
from traceview.model.units import duration, quantity, share, size
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import GapClaim, KernelClaim, TimeClaim

API_VERSION = 2
__all__ = [
    "API_VERSION",
    "CaptureInput",
    "DeviceInput",
    "FindingDraft",
    "GapClaim",
    "GpuWork",
    "KernelClaim",
    "Measure",
    "MeasuredCapture",
    "NotMeasured",
    "Note",
    "Rule",
    "Table",
    "TimeClaim",
    "Trace",
    "Window",
    "column",
    "derived",
    "duration",
    "quantity",
    "share",
    "size",
]
