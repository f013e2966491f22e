"""The time window and the devices that an analysis covers."""

from __future__ import annotations

import polars as pl

from traceview.errors import NoGpuWorkError, RequestError
from traceview.measure.activity import Activity, activity
from traceview.model.profilers import capture_advice
from traceview.model.trace import Trace, Window


def window_of_range(trace: Trace, name: str) -> Window:
    """Return the time from the first start to the last end of the NVTX ranges of that name.

    Raises RequestError, with the most frequent names, when there is none.
    """
    found = trace.ranges.filter(pl.col("name").cast(pl.String) == name)
    if found.is_empty():
        names = trace.ranges["name"].cast(pl.String).value_counts(sort=True)["name"].head(5).to_list()
        known = ", ".join(repr(known) for known in names) or "none at all"
        raise RequestError(f"{trace.info.file}: no NVTX range is called {name!r}; the capture has {known}")
    return Window(int(found["start"].to_numpy().min()), int(found["end"].to_numpy().max()))


def active_devices(trace: Trace, only: str | None = None) -> tuple[Activity, ...]:
    """Return the work of every device inside the trace's window, or of the one that `only` names.

    `only` is a device's id ("GPU 0") or its CUDA ordinal ("0"). The result is empty for a capture with ranges
    and no GPU work. Raises NoGpuWorkError when the capture has neither, or has no GPU work for `only`;
    RequestError when the window or the device leaves no GPU work.
    """
    if trace.operations.is_empty() and only is None and not trace.ranges.is_empty():
        return ()  # the figures of the host remain
    if trace.operations.is_empty():
        raise NoGpuWorkError(
            f"{trace.info.file}: the capture holds no GPU work ({_contents(trace)}); "
            f"capture it with: {capture_advice(trace.info.profiler).gpu}"
        )
    chosen = [index for index in range(len(trace.devices)) if only is None or _named(trace, index, only)]
    if not chosen:
        known = ", ".join(trace.devices["id"].to_list())
        raise RequestError(f"{trace.info.file}: no device is called {only!r}; the capture has {known}")
    found = tuple(work for index in chosen if (work := activity(trace, index)) is not None)
    if not found:
        raise RequestError(f"{trace.info.file}: no GPU work in the chosen window; {_span(trace)}")
    return found


def _named(trace: Trace, index: int, only: str) -> bool:
    row = trace.devices.row(index, named=True)
    return only in (row["id"], str(row["device_id"]))


def _contents(trace: Trace) -> str:
    parts = [
        f"{len(trace.ranges)} NVTX ranges" if len(trace.ranges) else "",
        f"{len(trace.api)} CUDA API calls" if len(trace.api) else "",
    ]
    return ", ".join(part for part in parts if part) or "no CUDA calls and no NVTX ranges either"


def _span(trace: Trace) -> str:
    start = int(trace.operations["start"].to_numpy()[0])
    end = int(trace.operations["end"].to_numpy().max())
    return f"the GPU worked from {start} ns to {end} ns on the capture's clock"
