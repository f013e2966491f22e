"""Formatting of durations, sizes, shares and names for people."""

from __future__ import annotations

import unicodedata
from typing import Any

from traceview.model.columns import Unit

UNKNOWN = "\ufffd"
OPERATION_SCALES = ((1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))
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


def milliseconds(ns: int) -> str:
    """Return a length in ms (`0.012 ms`, `331.2 ms`), in s from 1 s on (`7.17 s`), or in ns where it is below 1 µs."""
    value = ns / 1e6
    if abs(value) >= 999.95:
        seconds = value / 1000
        return f"{seconds:,.{2 if abs(seconds) < 9.995 else 1 if abs(seconds) < 99.95 else 0}f} s"
    if abs(value) >= 10:
        return f"{value:.1f} ms"
    if abs(value) >= 1:
        return f"{value:.2f} ms"
    return f"{value:.3f} ms" if abs(ns) >= 1000 else f"{ns} ns" if ns else "0 ms"


def time_range(low: int, high: int) -> str:
    """Return both ends of a range of lengths, the unit once if they share it: `9.54 to 13.8 ms`."""
    first, last = milliseconds(low), milliseconds(high)
    unit = last[last.index(" ") :]
    return f"{first.removesuffix(unit)} to {last}"


def microseconds(ns: int) -> str:
    """Return a short time in µs, or in ms where it is long."""
    return f"{ns / 1000:.1f} µs" if ns < 1_000_000 else milliseconds(ns)


def percent(part: int, whole: int) -> str:
    """Return a share, `12.3%`; `-` where the total is 0."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def confidence_word(confidence: float) -> str:
    """Return how sure a result from 0 to 1 is, as a word."""
    return "high" if confidence >= 0.9 else "medium" if confidence >= 0.8 else "low"


def size(count: int) -> str:
    """Return bytes in the decimal units that bandwidths use."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def bandwidth(count: int, busy_ns: int) -> str:
    """Return bytes over busy time (docs/definitions.md "Overlap"), in GB/s or MB/s."""
    return figure(count / busy_ns if busy_ns else None, "bytes_per_ns")


def figure(value: Any, unit: Unit) -> str:
    """Return a figure of a declared column as text; `-` where it is undefined."""
    if value is None:
        return "-"
    if unit == "ns":
        return milliseconds(value)
    if unit == "bytes":
        return size(value)
    if unit == "fraction":
        return f"{100 * value:.1f}%"
    if unit == "ratio":
        return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
    if unit == "flag":
        return "yes" if value else "no"
    if unit == "bytes_per_ns":
        return f"{value:,.1f} GB/s" if value >= 0.1 else f"{1000 * value:.1f} MB/s"
    if unit in ("flops", "flops_per_s"):
        return operations(value) + ("/s" if unit == "flops_per_s" else "")
    return f"{value:,}" if unit == "count" else str(value)


def operations(count: float) -> str:
    """Return a number of floating-point operations: `7.21 TFLOP`."""
    scale, unit = next((pair for pair in OPERATION_SCALES if count >= pair[0]), OPERATION_SCALES[-1])
    value = count / scale
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}" if value >= 10 else f"{value:.2f} {unit}"


def _printable(char: str) -> str:
    # Control, format (which can reverse a line) and surrogate characters are unsafe on a terminal.
    return " " if char.isspace() else UNKNOWN if unicodedata.category(char)[0] == "C" else char


def plain(name: str, longest: int = 60) -> str:
    """Return a name on one line, without control characters, shortened in the middle to `longest` characters."""
    safe = name if name.isprintable() else "".join(map(_printable, name))
    if len(safe) <= longest:
        return safe
    tail = longest // 3
    return f"{safe[: longest - tail - 1]}…{safe[-tail:]}"
