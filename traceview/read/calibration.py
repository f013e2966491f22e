"""Calibrations: the JSON files of `traceview calibrate`, which say what nsys adds to calls on a machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traceview.errors import NotFoundError, ReportError
from traceview.model.unprofiled import CALIBRATED_SCALE, CALIBRATION, ESTIMATE, GAP_SPREAD, ProfilerCosts
from traceview.read.source import display_name

FORMAT, VERSION = "traceview calibration", 1
MAX_BYTES = 1 << 20
# Figures of a calibration and their bounds.
FIGURES = {"scale": (0.0, 100.0), "kernel_gap_ns": (0.0, 1e6)}


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
        figures = {name: _figure(document, name) for name in FIGURES}
    except (ValueError, TypeError, KeyError, RecursionError):
        message = f"{display_name(path)}: no calibration of this version; write it again with `traceview calibrate`"
        raise ReportError(message) from None
    return ProfilerCosts(
        source="calibration",
        scale=CALIBRATED_SCALE.times(figures["scale"]),
        kernel_gap=GAP_SPREAD.times(figures["kernel_gap_ns"]),
    )


def _figure(document: Mapping[str, Any], name: str) -> float:
    low, high = FIGURES[name]
    value = float(document[name])
    if not low <= value <= high:
        raise ValueError
    return value
