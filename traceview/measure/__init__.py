"""Measures: pure functions from the typed frames of a Trace to typed rows.

To add one, write a module with a row type, whose fields declare the columns (traceview/model/columns.py), and a
measure; then add the measure to MEASURES. JSON, terminal, page and the column reference follow from the declaration.
"""

from traceview.measure.base import CaptureMeasure, DeviceMeasure
from traceview.measure.nvtx.ranges import RANGES
from traceview.measure.overlap import COMMUNICATION, COPIES
from traceview.measure.streams import STREAMS
from traceview.measure.sync import IMPLICIT_CALLS, SYNC_CALLS

# In the order in which the JSON and the tables show them.
MEASURES: tuple[DeviceMeasure | CaptureMeasure, ...] = (
    COPIES,
    COMMUNICATION,
    STREAMS,
    SYNC_CALLS,
    IMPLICIT_CALLS,
    RANGES,
)
