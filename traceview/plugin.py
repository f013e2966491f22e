"""The interface for packages that add rules and measures (docs/extending.md "In your own package").

A package imports names of traceview from here and from `traceview` alone. `API_VERSION` rises when a name goes or
changes what it means; a name that is added leaves it. `tests/test_plugins.py` installs a package that uses it.
"""

from __future__ import annotations

from traceview.measure.base import (
    CaptureInput,
    CaptureMeasure,
    DeviceInput,
    DeviceMeasure,
    PartContext,
    PartInput,
    PartMeasure,
)
from traceview.model.analysis import NotMeasured
from traceview.model.columns import Table, column, derived
from traceview.model.sums import Counts, KeyedSums
from traceview.model.trace import Note, Trace, Window
from traceview.model.units import duration, quantity, share, size
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, Rule
from traceview.pricing.claims import (
    STEADY,
    Collected,
    ComputeClaim,
    ExposedClaim,
    GapGroup,
    IdleClaim,
    KernelGroup,
    TimeGroup,
)

API_VERSION = 1
__all__ = [
    "API_VERSION",
    "STEADY",
    "CaptureFacts",
    "CaptureInput",
    "CaptureMeasure",
    "CapturePart",
    "Collected",
    "ComputeClaim",
    "Counts",
    "DeviceFacts",
    "DeviceInput",
    "DeviceMeasure",
    "DevicePart",
    "ExposedClaim",
    "FindingDraft",
    "GapGroup",
    "IdleClaim",
    "KernelGroup",
    "KeyedSums",
    "NotMeasured",
    "Note",
    "PartContext",
    "PartInput",
    "PartMeasure",
    "Rule",
    "Table",
    "TimeGroup",
    "Trace",
    "Window",
    "column",
    "derived",
    "duration",
    "quantity",
    "share",
    "size",
]
