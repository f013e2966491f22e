"""Counters as rows of the timeline."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from traceview.model.analysis import Analysis
from traceview.model.counters import CounterSeries, counter_steps
from traceview.report.timeline.marks import Marks, Names
from traceview.report.timeline.rows import LOOKS, TimelineRow

FRACTION_SCALE = 1000  # the page holds whole numbers: values with a fraction are multiplied


def counter_rows(analysis: Analysis, names: Names, start: int, end: int) -> dict[int | None, list[TimelineRow]]:
    """Return the counters of each device (row of Trace.devices; None for the machine) inside [start, end)."""
    rows: dict[int | None, list[TimelineRow]] = defaultdict(list)
    for number, counter in enumerate(analysis.counters() if analysis.counters is not None else ()):
        row = _counter_row(counter, f"c:{number}", names, start, end)
        if len(row.lanes[0]):
            rows[counter.device].append(row)
    return dict(rows)


def _counter_row(counter: CounterSeries, row_id: str, names: Names, start: int, end: int) -> TimelineRow:
    steps = counter_steps(counter, start, end)
    whole = bool((steps.mean == np.rint(steps.mean)).all())
    scale = 1 if whole or counter.unit == "bytes" else FRACTION_SCALE
    details = {"value": steps.mean}
    if not (steps.low == steps.high).all():
        details |= {"low": steps.low, "high": steps.high}
    count = len(steps.start)
    marks = Marks(
        steps.start,
        steps.end,
        np.full(count, names.number(counter.name), np.int32),
        np.full(count, LOOKS.index("counter"), np.uint8),
        details={key: np.rint(column * scale).astype(np.int64) for key, column in details.items()},
    )
    facts = {"unit": counter.unit, "scale": scale}
    return TimelineRow("counter", row_id, counter.name, "", (marks,), counter=facts)
