"""Calibrations: the JSON files of `traceview doctor --calibrate`, which say what nsys adds to calls on a machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from traceview.errors import NotFoundError, ReportError
from traceview.model.unprofiled import CALIBRATED_SCALE, CALIBRATION, ESTIMATE, GAP_SPREAD, Bounds, ProfilerCosts
from traceview.read.source import display_name

FORMAT, VERSION = "traceview calibration", 2
MAX_BYTES = 1 << 20
MAX_SCALE, MAX_KERNEL_GAP = 100, 1e6
SHARE = 0.5  # exponent of a measured scale: calls are longer on a slow machine, and cost more for that already


def costs_beside(report: Path) -> ProfilerCosts:
    """Return the costs of the calibration in the folder of a report; the estimate if there is none.

    Raises ReportError if that file cannot be read as a calibration.
    """
    path = report.parent / CALIBRATION
    return read_calibration(path) if path.is_file() else ESTIMATE


def read_calibration(path: Path) -> ProfilerCosts:
    """Return the costs of a calibration. Raises ReportError if the file is missing or holds something else."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotFoundError(f"{display_name(path)}: cannot be read ({error.strerror})") from None
    try:
        document = json.loads(text) if len(text) <= MAX_BYTES else None
        if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, VERSION):
            raise ValueError
        scale = Bounds(*sorted(_figure(value, MAX_SCALE) for value in (document["scale"], *document["scale_range"])))
        gap = _figure(document["kernel_gap_ns"], MAX_KERNEL_GAP)
    except (ValueError, TypeError, KeyError, RecursionError):
        message = f"{display_name(path)}: no calibration of this version; run `traceview doctor --calibrate` again"
        raise ReportError(message) from None
    scale = Bounds(*(spread * value**SHARE for spread, value in zip(CALIBRATED_SCALE, scale, strict=True)))
    return ProfilerCosts("calibration", scale, GAP_SPREAD.times(gap))


def _figure(value: Any, most: float) -> float:
    number = float(value)
    if not 0 <= number <= most:
        raise ValueError
    return number
