"""Every look that a mark can have. palette.css gives each its colour and palette.js its pattern."""

from __future__ import annotations

from traceview.model.analysis import CAUSES
from traceview.model.trace import ROLES
from traceview.report.timeline.bands import WORK_CLASSES

LOOKS = (
    *WORK_CLASSES,
    *(f"call_{role}" for role in ROLES),
    "range",
    "iteration",
    "skipped",
    *(f"idle_{cause}" for cause in CAUSES),
)
WORDS = {
    "compute": "compute",
    "communication": "communication",
    "h2d": "copy h2d",
    "d2h": "copy d2h",
    "d2d": "copy d2d, p2p",
    "copy": "other copy",
    "memset": "memset",
}
