"""Measures: pure functions from the typed frames of a Trace to typed rows.

To add a measure, write a module in this package, add its measure to MEASURES, and write a test
(docs/extending.md "A measure"). One of another package has the same form (docs/extending.md "In your own package").
"""

from collections.abc import Callable, Iterable

from traceview.measure.base import Measure
from traceview.measure.gpu_metrics import GPU_METRICS, ITERATION_METRICS, metric_curves
from traceview.measure.host import LINES
from traceview.measure.kernels import FAMILIES, KERNELS
from traceview.measure.memory import MEMORY_USE, memory_curves
from traceview.measure.nvtx.ranges import PHASES, RANGES
from traceview.measure.overlap import COMMUNICATION, COPIES
from traceview.measure.packages import measures_of_packages
from traceview.measure.places.table import KERNEL_PLACES, MODULES
from traceview.measure.rates.collectives import COLLECTIVES
from traceview.measure.rates.precisions import MATRIX_PRECISIONS
from traceview.measure.rates.speed_of_light import SPEED_OF_LIGHT
from traceview.measure.streams import STREAMS
from traceview.measure.sync import IMPLICIT_CALLS, SYNC_CALLS
from traceview.model.counters import CounterSeries
from traceview.model.trace import Trace

# In the order in which JSON and tables show them.
MEASURES: tuple[Measure, ...] = (
    COPIES,
    COMMUNICATION,
    COLLECTIVES,
    STREAMS,
    FAMILIES,
    KERNELS,
    KERNEL_PLACES,
    MODULES,
    MATRIX_PRECISIONS,
    GPU_METRICS,
    ITERATION_METRICS,
    SPEED_OF_LIGHT,
    SYNC_CALLS,
    IMPLICIT_CALLS,
    LINES,
    MEMORY_USE,
    RANGES,
    PHASES,
)
# Quantities over time that a capture has, in the order of their rows on the timeline. A page alone measures them.
COUNTERS: tuple[Callable[[Trace], Iterable[CounterSeries]], ...] = (memory_curves, metric_curves)


def all_measures() -> tuple[Measure, ...]:
    """Return MEASURES and the measures of other packages."""
    return (*MEASURES, *measures_of_packages(frozenset(measure.table.name for measure in MEASURES)))


def measure_counters(trace: Trace) -> tuple[CounterSeries, ...]:
    """Return every counter of a capture that has a value."""
    return tuple(counter for measure in COUNTERS for counter in measure(trace) if len(counter.start))
