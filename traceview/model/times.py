"""Times on the command line: `--from 120ms --to 1.5s` as a window on the capture's clock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from traceview.errors import RequestError
from traceview.model.trace import Trace, Window
from traceview.model.units import duration

NANOSECONDS: Mapping[str, int] = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
# 13 days in ns. No capture is as long, and sums of thousands of such lengths fit into 64 bits.
MAX_DISTANCE = 1 << 50
TIME = re.compile(r"(@?)([+-]?[0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(ns|us|µs|ms|s)?")


def window_of_times(trace: Trace, start: str | None, end: str | None) -> Window | None:
    """Return the window between two times (see window_between); None where the capture has no GPU work."""
    if (start is None and end is None) or trace.operations.is_empty():
        return None
    first = int(trace.operations["start"].to_numpy().min())
    return window_between(Window(first, int(trace.operations["end"].to_numpy().max())), start, end)


def window_between(work: Window, start: str | None, end: str | None) -> Window | None:
    """Return the window between two times; None where neither is given.

    `work` is the time from the first start of GPU work, the default start, to its last end, the default end. Raises
    RequestError for an invalid time, one that is more than thirteen days away from the work, or an empty window.
    """
    if start is None and end is None:
        return None
    window = Window(
        work.start if start is None else parse_time("--from", start, work.start),
        work.end if end is None else parse_time("--to", end, work.start),
    )
    if window.length <= 0:
        options = " ".join(f"{name} {text}" for name, text in (("--from", start), ("--to", end)) if text)
        raise RequestError(
            f"{options}: that window is empty; the GPU worked for {duration(work.length)}, "
            f"from {work.start} to {work.end} on the capture's clock"
        )
    return window


def parse_time(option: str, text: str, first: int) -> int:
    """Return a time on the capture's clock, in ns, exactly as written.

    `120ms` counts from `first`, the start of the first GPU work. A whole number without a unit, and anything after
    `@`, is a time on the capture's own clock, as in the JSON and in nsys. Raises RequestError.
    """
    match = TIME.fullmatch(text.strip())
    if not match or ("." in match[2] and match[3] is None):
        raise RequestError(f"{option} {text!r} is not a time; write 120ms, 1.5s, 300us, @8.25s or whole ns")
    absolute, number, unit = match.groups()
    ns = int(Decimal(number) * NANOSECONDS[unit or "ns"])
    time = ns if absolute or unit is None else first + ns
    if abs(time - first) > MAX_DISTANCE:
        raise RequestError(
            f"{option} {text.strip()!r} is more than thirteen days away from the start of the GPU's work, {first} ns "
            "on the capture's clock; write a time inside the capture"
        )
    return time
