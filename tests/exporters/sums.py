"""The sums that an export must have, from the trace and its analysis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import polars as pl

from traceview.model.analysis import Analysis
from traceview.model.trace import Trace

Sums = dict[tuple[str, ...], tuple[int, int]]  # (row, name) -> (count, ns)


def operation_sums(trace: Trace) -> Sums:
    """Count and ns of operations by device, stream and name."""
    labels = trace.streams["label"].to_list()
    shared = [len(processes) > 1 for processes in trace.devices["processes"].to_list()]
    rows = [
        f"{label} (process {process})" if shared[device] else label
        for label, process, device in zip(labels, trace.streams["process"], trace.streams["device"], strict=True)
    ]
    frame = trace.operations.with_columns(row=pl.Series(rows, dtype=pl.String).gather(trace.operations["stream"]))
    devices = trace.devices.select(pl.concat_str("id", pl.lit(" "), "name").str.strip_chars()).to_series()
    return _sums(frame.with_columns(device=devices.gather(frame["device"])), "device", "row", "name")


def host_sums(trace: Trace, frame: pl.DataFrame) -> Sums:
    """Count and ns of `trace.api` or `trace.ranges` by thread and name."""
    tid = trace.threads["tid"].cast(pl.String).gather(frame["thread"])
    return _sums(frame.with_columns(tid=tid), "tid", "name")


def idle_sums(analysis: Analysis) -> dict[tuple[str, str], int]:
    """Idle ns by device and cause."""
    return {
        (f"{device.id} {device.name}".strip(), cause): ns
        for device in analysis.devices
        for cause, ns in device.gaps.causes.items()
        if ns
    }


def add_up(entries: Iterable[tuple[tuple[str, ...], int]]) -> Sums:
    """Return the count and the total ns of each key."""
    count: Counter[tuple[str, ...]] = Counter()
    total: Counter[tuple[str, ...]] = Counter()
    for key, ns in entries:
        count[key] += 1
        total[key] += ns
    return {key: (count[key], total[key]) for key in count}


def _sums(frame: pl.DataFrame, *by: str) -> Sums:
    frame = frame.with_columns(pl.col("name").cast(pl.String))
    grouped = frame.group_by(*by).agg(pl.len().alias("n"), (pl.col("end") - pl.col("start")).sum().alias("ns"))
    return {tuple(row[: len(by)]): (row[-2], row[-1]) for row in grouped.select(*by, "n", "ns").iter_rows()}
