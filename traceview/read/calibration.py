"""Calibrations: the JSON files of `traceview calibrate`, which say what nsys adds to each call on a machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from traceview.errors import NotFoundError, ReportError
from traceview.model.unprofiled import CALL_KINDS, ESTIMATE, Bounds, ProfilerCosts
from traceview.read.source import display_name

CALIBRATION = "traceview-calibration.json"
FORMAT, VERSION = "traceview calibration", 1
MAX_BYTES = 1 << 20
MAX_NS = 10_000_000  # more than a call can cost
RANGE, KERNEL_GAP = "range", "kernel_gap"


def costs_beside(report: Path) -> ProfilerCosts:
    """Return the costs of the calibration in the folder of a report; the estimate if there is none.

    Raises ReportError if that file cannot be read as a calibration.
    """
    path = report.parent / CALIBRATION
    return read_calibration(path) if path.is_file() else ESTIMATE


def read_calibration(path: Path) -> ProfilerCosts:
    """Return the costs of a calibration. Kinds of calls that it lacks cost what the estimate says.

    Raises ReportError if the file is missing or holds something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NotFoundError(f"{display_name(path)}: cannot be read ({error.strerror})") from None
    try:
        document = json.loads(text) if len(text) <= MAX_BYTES else None
        if not isinstance(document, dict) or (document.get("format"), document.get("version")) != (FORMAT, VERSION):
            raise ValueError
        return _costs(document)
    except (ValueError, TypeError, KeyError, RecursionError):
        message = f"{display_name(path)}: no calibration of this version; write it again with `traceview calibrate`"
        raise ReportError(message) from None


def _costs(document: Mapping[str, object]) -> ProfilerCosts:
    added = document["added_ns"]
    if not isinstance(added, dict):
        raise TypeError
    estimate = {**ESTIMATE.calls, RANGE: ESTIMATE.range, KERNEL_GAP: ESTIMATE.kernel_gap}
    bounds = {name: _bounds(added[name]) if name in added else usual for name, usual in estimate.items()}
    gpu = document.get("gpu")
    return ProfilerCosts(
        source="calibration",
        calls={kind: bounds[kind] for kind in CALL_KINDS},
        range=bounds[RANGE],
        kernel_gap=bounds[KERNEL_GAP],
        gpu=gpu if isinstance(gpu, str) else "",
    )


def _bounds(values: object) -> Bounds:
    if not isinstance(values, list) or len(values) != len(Bounds._fields):
        raise TypeError
    bounds = Bounds(*(float(value) for value in values))
    if not 0 <= bounds.low <= bounds.middle <= bounds.high <= MAX_NS:
        raise ValueError
    return bounds
