"""The longest gaps of a device, named: what ended each, who launched it, in which NVTX range."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.measure.nvtx.nesting import innermost
from traceview.model.analysis import CAUSES, DeviceUse, Gap
from traceview.model.trace import Trace

BLOCK = 1 << 12


def with_longest(trace: Trace, of: DeviceUse, top: int) -> DeviceUse:
    """Return the device with its `top` longest gaps listed, the longest first."""
    frame = of.gaps.frame
    length = frame["end"].to_numpy() - frame["start"].to_numpy()
    longest = _candidates(length, top)
    order = np.argsort(-length[longest], kind="stable")[: max(top, 0)]
    gaps = _named(trace, frame[longest[order]])
    return replace(of, gaps=replace(of.gaps, longest=gaps))


def _candidates(length: Times, top: int) -> Times:
    """Return rows among which are the `top` longest, and all that are as long: ties are broken by time."""
    starts = np.arange(0, len(length), BLOCK)
    if not 0 < top <= len(starts):
        return np.arange(len(length) if top > 0 else 0)
    # So many blocks have one that is at least as long as this.
    longest = np.maximum.reduceat(length, starts)
    return np.flatnonzero(length >= np.partition(longest, -top)[-top])


def _named(trace: Trace, chosen: pl.DataFrame) -> tuple[Gap, ...]:
    launch_start = _launch_starts(trace, chosen)
    middle = (chosen["start"].to_numpy() + np.minimum(chosen["end"].to_numpy(), launch_start)) // 2
    thread = chosen["thread"].fill_null(-1).to_numpy()
    rows = innermost(
        trace.ranges["start"].to_numpy(),
        trace.ranges["end"].to_numpy(),
        trace.ranges["thread"].to_numpy(),
        thread,
        middle,
    )
    range_names, operation_names = trace.ranges["name"], trace.operations["name"]
    return tuple(
        Gap(
            start_ns=row["start"],
            end_ns=row["end"],
            causes={name: row[name] for name in CAUSES},
            next_operation=None if row["operation"] is None else str(operation_names[row["operation"]]),
            thread=row["thread"],
            range=None if owner < 0 else str(range_names[int(owner)]),
        )
        for row, owner in zip(chosen.iter_rows(named=True), rows, strict=True)
    )


def _launch_starts(trace: Trace, chosen: pl.DataFrame) -> np.typing.NDArray[np.int64]:
    """Return when the launch call of each gap's operation began, and the gap's start where that is unknown."""
    calls = trace.operations["launch"][chosen["operation"].fill_null(0)]
    known = (calls.is_not_null() & chosen["operation"].is_not_null()).to_numpy()
    if not known.any():
        return chosen["start"].to_numpy()
    start = trace.api["start"].to_numpy()[calls.fill_null(0).to_numpy()]
    return np.where(known, np.maximum(start, chosen["start"].to_numpy()), chosen["start"].to_numpy())
