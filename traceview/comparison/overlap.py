"""How much of copies and communication is hidden in an iteration, and why the rest is exposed, in two captures.

docs/definitions.md "Exposed time by cause".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from traceview import intervals
from traceview.comparison.align import AlignedIterations
from traceview.comparison.change import Series, mean_change
from traceview.comparison.document import AnalysisDocument, Analyzed
from traceview.comparison.kernels import judged
from traceview.intervals import Intervals, Times
from traceview.measure.activity import Activity, Copies, device_activity
from traceview.measure.exposure import COMMUNICATION_WORK, MEMSET_WORK, device_exposure, members_by_kind
from traceview.model.analysis import EXPOSED_CAUSES, Analysis, Iterations
from traceview.model.comparison import FigureChange, OverlapChange
from traceview.model.trace import Trace

MAIN = 0.9  # share of the communication from which one kind of collectives names it
BUSY = "busy"


class OverlapSample(NamedTuple):
    """The ns of each kind of work, BUSY and exposed by cause: one value for each iteration, or one mean.

    The kinds are communication and the directions of copies. `collective` is the kind of most collectives, "" for
    several kinds. `price` is what kernels pay beside communication in a mean iteration; None if it is unknown.
    """

    figures: Mapping[tuple[str, str], Times]
    collective: str
    price: int | None


def sample_overlap(report: Analyzed, at: AlignedIterations | None, whole: bool) -> OverlapSample | None:
    """Measure the iterations of a report, or the whole of it; None for a document of an earlier version."""
    iterations, devices, count = report.iterations, report.devices, 1
    parts: Sequence[Any] = devices
    if not whole and isinstance(iterations, Iterations):
        devices = tuple(device for device in devices if iterations.process_id in device.process_ids)  # type: ignore[assignment]
        parts, count = [device.steady for device in devices], iterations.counted
    if any(part.communication is None or part.communication.exposed_causes is None for part in parts):
        return None
    times: Counter[str] = Counter()
    for part in parts:
        rows = part.tables["collectives"].rows if isinstance(report, Analysis) else part.collectives
        for row in rows:
            times[row.collective] += row.busy_ns
    most = max(times, key=lambda kind: times[kind], default="")
    collective = most if times[most] >= MAIN * times.total() else ""
    prices = [part.communication.contention_ns for part in parts if part.communication.contention_ns is not None]
    price = sum(prices) // (count * len(parts)) if prices else None
    if isinstance(report, AnalysisDocument):
        return OverlapSample(_means(parts, count), collective, price)
    assert at is not None, "iterations are None for documents alone"
    figures: dict[tuple[str, str], Times] = {}
    for device in report.devices:
        work = device_activity(report.trace, device.device)
        if work is None or device not in devices:
            continue
        for key, ns in _by_iteration(report.trace, work, at).items():
            figures[key] = figures.get(key, 0) + ns
    return OverlapSample({key: ns // len(devices) for key, ns in figures.items()}, collective, price)


def _means(parts: Sequence[Any], count: int) -> dict[tuple[str, str], Times]:
    sums: Counter[tuple[str, str]] = Counter()
    for part in parts:
        for work, row in ((COMMUNICATION_WORK, part.communication), *((row.kind, row) for row in part.copies)):
            sums[work, BUSY] += row.busy_ns
            sums.update({(work, cause): row.exposed_causes.get(cause, 0) for cause in EXPOSED_CAUSES})
    return {key: np.array([ns // (count * len(parts))]) for key, ns in sums.items()}


def _by_iteration(trace: Trace, work: Activity, at: AlignedIterations) -> dict[tuple[str, str], Times]:
    """Return the figures of a device in each iteration. Time of two memories of one direction at once counts twice."""
    figures: dict[tuple[str, str], Times] = {}

    def add(kind: str, name: str, times: Intervals) -> None:
        key = kind.partition(" ")[0], name
        figures[key] = figures.get(key, 0) + intervals.covered_length(times, at.start, at.end)

    for kind, members in members_by_kind(work, Copies.from_activity(trace, work)).items():
        if kind != MEMSET_WORK:
            add(kind, BUSY, intervals.union(work.start[members], work.end[members], ordered=True))
    exposed = device_exposure(trace, work)
    label = exposed.work * np.int64(len(EXPOSED_CAUSES)) + exposed.cause
    for code, rows in intervals.rows_by_code(label):
        work_code, cause = divmod(code, len(EXPOSED_CAUSES))
        if exposed.works[work_code] != MEMSET_WORK:
            times = intervals.union(exposed.start[rows], exposed.end[rows])
            add(exposed.works[work_code], EXPOSED_CAUSES[cause], times)
    return figures


def overlap_changes(
    base: OverlapSample | None, other: OverlapSample | None, old: Series, new: Series, min_change: float
) -> tuple[OverlapChange, ...]:
    """Compare each kind of work. `old` and `new` are the times of the iterations.

    A change below the share `min_change` of the base's time is noise.
    """
    if base is None or other is None:
        return ()

    def change(work: str, *names: str) -> FigureChange:
        before, after = (
            series.with_values(sum((each.figures[work, name] for name in names if (work, name) in each.figures), none))
            for each, series, none in ((base, old, _zero(base)), (other, new, _zero(other)))
        )
        return judged(mean_change(names[0] if len(names) == 1 else "exposed", before, after), min_change * old.mean)

    works = dict.fromkeys(work for work, _ in (*base.figures, *other.figures))
    name = (base.collective == other.collective and base.collective) or COMMUNICATION_WORK
    changes = [
        OverlapChange(
            work=name if work == COMMUNICATION_WORK else work,
            busy=change(work, BUSY),
            exposed=change(work, *EXPOSED_CAUSES),
            causes=tuple(each for cause in EXPOSED_CAUSES if (each := change(work, cause)).before or each.after),
            price_before_ns=base.price if work == COMMUNICATION_WORK else None,
            price_after_ns=other.price if work == COMMUNICATION_WORK else None,
        )
        for work in works
    ]
    kept = (each for each in changes if each.busy.before or each.busy.after)
    return tuple(sorted(kept, key=lambda each: (-abs(each.exposed.difference), each.work)))


def _zero(sample: OverlapSample) -> Times:
    return np.zeros_like(next(iter(sample.figures.values()), np.zeros(1, np.int64)))
