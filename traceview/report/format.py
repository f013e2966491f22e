"""The figures of declared columns, and names from a capture, as text for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from traceview.model.columns import Unit
from traceview.model.units import RATES, SIZES, TIMES, Scales, count, in_one_unit, operations, ratio, share

SCALES: dict[str, Scales] = {"ns": TIMES, "bytes": SIZES, "bytes_per_ns": RATES}
WRITERS: dict[str, Callable[[Any], str]] = {
    "fraction": share,
    "ratio": ratio,
    "count": count,
    "flag": lambda value: "yes" if value else "no",
    "flops": operations,
    "flops_per_s": lambda value: f"{operations(value)}/s",
}
CAUSE_WORDS = {
    "profiler": "profiler overhead",
    "queued": "launched, waiting in the queue or for a dependency",
    "launch": "host in the launch call",
    "sync": "host in a synchronize call",
    "blocking_copy": "host in a blocking copy",
    "memory": "host in CUDA allocation or free",
    "api": "host in another CUDA call",
    "host": "host code outside CUDA (Python, data loading)",
    "unknown": "launch not in the capture",
}
STATE_WORDS = {
    "garbage_collection": "garbage collection",
    "compiling": "compiling, or loading code",
    "waiting": "waiting in a system call or for Python's lock",
    "off_cpu": "not scheduled on a CPU",
    "running": "running",
    "unattributed": "unknown",
}


def confidence_word(confidence: float) -> str:
    """Return how sure a result from 0 to 1 is, as a word."""
    return "high" if confidence >= 0.9 else "medium" if confidence >= 0.8 else "low"


def figure(value: Any, unit: Unit) -> str:
    """Return a figure of a declared column as text; `-` where it is undefined."""
    return figures([value], unit)[0]


def figures(values: Sequence[Any], unit: Unit) -> list[str]:
    """Return the texts of a declared column: times, bytes and rates in one unit (model/units.py), `-` if undefined."""
    if unit in SCALES:
        return in_one_unit(values, SCALES[unit])
    write = WRITERS.get(unit, str)
    return ["-" if value is None else write(value) for value in values]
