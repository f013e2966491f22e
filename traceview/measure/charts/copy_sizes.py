"""How fast copies of each size were (docs/metrics.md "Charts")."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.measure.activity import within
from traceview.model.analysis import DeviceUse
from traceview.model.charts import CopyGroup
from traceview.model.trace import KINDS, MEMORIES, Trace, Window

MOST_GROUPS = 1000
FINEST = 8  # steps in a doubling of size or duration


def copy_groups(trace: Trace, device: DeviceUse, most: int = MOST_GROUPS) -> tuple[tuple[CopyGroup, ...], int]:
    """Return a device's copies by size and duration, and how many have no bytes or no length.

    Up to `most` copies are a group each. More are put together with those of the same kind and memory whose
    size and duration fall into the same steps, of which a doubling has 8, or fewer until the groups are few
    enough. In a narrowed trace copies belong to the window when they overlap it, and are not cut by it.
    """
    copies = _copies(trace, device)
    measurable = (copies["bytes"].to_numpy() > 0) & (copies["end"].to_numpy() > copies["start"].to_numpy())
    left_out = int(np.count_nonzero(~measurable))
    copies = copies.filter(pl.Series(measurable))
    if len(copies) <= most:
        return _grouped(copies, np.arange(len(copies))), left_out
    for steps in (FINEST, 4, 2, 1):
        number = _group_numbers(copies, steps)
        if int(number.max()) < most:
            break
    return _grouped(copies, number), left_out


def _copies(trace: Trace, device: DeviceUse) -> pl.DataFrame:
    columns = ("start", "end", "kind", "memory", "bytes", "stream")
    found = trace.operations.lazy().filter(pl.col("kind").is_not_null(), pl.col("device") == device.device)
    copies = found.select(columns).collect()
    if trace.window is None:
        return copies
    inside = within(copies["start"].to_numpy(), copies["end"].to_numpy(), trace.window)
    return copies.filter(pl.Series(inside))


def _group_numbers(copies: pl.DataFrame, steps: int) -> Times:
    """Number the groups in the order of kind, memory, size and duration."""
    # Whole numbers as edges: no rounding of a logarithm decides where a copy belongs.
    edges = np.unique(np.array([round(2 ** (at / steps)) for at in range(62 * steps)], np.int64))
    size = np.searchsorted(edges, copies["bytes"].to_numpy(), side="right")
    length = np.searchsorted(edges, (copies["end"] - copies["start"]).to_numpy(), side="right")
    pair = copies["kind"].to_physical().to_numpy().astype(np.int64) * len(MEMORIES)
    pair = pair + copies["memory"].to_physical().to_numpy()
    key = (pair * (len(edges) + 1) + size) * (len(edges) + 1) + length
    number: Times = np.unique(key, return_inverse=True)[1]
    return number


def _grouped(copies: pl.DataFrame, number: Times) -> tuple[CopyGroup, ...]:
    if len(copies) == 0:
        return ()
    start, end = copies["start"].to_numpy(), copies["end"].to_numpy()
    size, length = copies["bytes"].to_numpy(), end - start
    order = np.lexsort((start, size / length, number))
    slowest = order[np.flatnonzero(np.diff(number[order], prepend=-1))]
    count = np.bincount(number)
    sums = [np.zeros(len(count), np.int64) for _ in range(2)]
    np.add.at(sums[0], number, size)
    np.add.at(sums[1], number, length)
    kinds, memories = copies["kind"].to_physical(), copies["memory"].to_physical()
    return tuple(
        CopyGroup(
            kind=KINDS[kinds[int(row)]],
            memory=MEMORIES[memories[int(row)]],
            count=int(count[at]),
            bytes=int(sums[0][at]),
            duration_ns=int(sums[1][at]),
            slowest=Window(int(start[row]), int(end[row])),
            stream=int(copies["stream"][int(row)]),
        )
        for at, row in enumerate(slowest)
    )
