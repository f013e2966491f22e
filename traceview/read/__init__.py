"""From files to RawCapture: whatever form an export came in, the tables that the analysis needs.

The names below are imported when first used: what decodes pages needs no data frames, and starts before they are there.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceview.read.formats import read_capture
    from traceview.read.raw import RawCapture
    from traceview.read.sqlite import read_sqlite

__all__ = ["RawCapture", "read_capture", "read_sqlite"]

_HOME = {
    "RawCapture": "traceview.read.raw",
    "read_capture": "traceview.read.formats",
    "read_sqlite": "traceview.read.sqlite",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'traceview.read' has no attribute {name!r}")
