"""`--from 120ms --to 1.5s`: moments as a person writes them, turned into a window on the capture's clock."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from traceview.errors import RequestError
from traceview.model.trace import Trace, Window

NANOSECONDS: Mapping[str, int] = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
FORM = re.compile(r"(@?)([+-]?[0-9]{1,19}(?:\.[0-9]{1,9})?)\s*(ns|us|µs|ms|s)?")


def window_of_times(trace: Trace, start: str | None, end: str | None) -> Window | None:
    """Return the window that --from and --to mean; None where neither is given or no GPU works.

    The one that is not given is the first start or the last end of any GPU work. Raises RequestError when
    a text is no time, or when the window is empty.
    """
    if (start is None and end is None) or trace.operations.is_empty():
        return None
    first = int(trace.operations["start"].to_numpy().min())
    last = int(trace.operations["end"].to_numpy().max())
    window = Window(
        first if start is None else moment("--from", start, first),
        last if end is None else moment("--to", end, first),
    )
    if window.length <= 0:
        asked = " ".join(f"{name} {text}" for name, text in (("--from", start), ("--to", end)) if text)
        raise RequestError(
            f"{asked}: that window is empty; the GPU worked for {(last - first) / 1e6:.3f} ms, "
            f"from {first} to {last} on the capture's clock"
        )
    return window


def moment(option: str, text: str, first: int) -> int:
    """Return a moment on the capture's clock, in ns, exactly as written.

    `120ms` lies that long after `first`, the first GPU work; a whole number without a unit, and anything
    after `@`, is a time on the capture's own clock, as the JSON and nsys write it. Raises RequestError.
    """
    found = FORM.fullmatch(text.strip())
    if not found or ("." in found[2] and found[3] is None):
        raise RequestError(
            f"{option} {text!r} is not a time; write 120ms, 1.5s, 300us or @8.25s, or whole ns as in the JSON"
        )
    at, number, unit = found.groups()
    ns = int(Decimal(number) * NANOSECONDS[unit or "ns"])
    return ns if at or unit is None else first + ns
