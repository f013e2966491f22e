"""Quantities over time that a capture has. A page alone measures them.

To add one, write a function from a Trace to counters and add it to COUNTERS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from traceview.measure.gpu_metrics import metric_curves
from traceview.measure.memory import memory_curves
from traceview.model.counters import CounterSeries
from traceview.model.trace import Trace

COUNTERS: tuple[Callable[[Trace], Iterable[CounterSeries]], ...] = (memory_curves, metric_curves)


def measure_counters(trace: Trace) -> tuple[CounterSeries, ...]:
    """Return every counter of a capture, in the order of the rows."""
    return tuple(counter for measure in COUNTERS for counter in measure(trace) if len(counter.start))
