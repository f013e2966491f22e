"""Bins of a rank's work compared with a count of every nanosecond."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.made_trace import made_trace
from traceview.measure.activity import active_devices
from traceview.model.fleet import Clock
from traceview.ranks import iterations
from traceview.ranks.iterations import merge_bins, rank_work

CLASSES = {"compute": "compute", "copies": "copy", "communication": "communication"}
OPERATION = st.tuples(
    st.integers(0, 60), st.integers(1, 25), st.sampled_from(list(CLASSES.values())), st.integers(0, 2)
)


@given(st.lists(OPERATION, min_size=1, max_size=12), st.integers(2, 9))
def test_bins_hold_every_nanosecond(drawn: list[tuple[int, int, str, int]], bins: int) -> None:
    operations = [(start, start + length, kind, stream, None) for start, length, kind, stream in drawn]
    [device] = active_devices(trace := made_trace(operations))
    limit, iterations.MAX_BINS = iterations.MAX_BINS, bins
    try:
        measured = rank_work(trace, device)
    finally:
        iterations.MAX_BINS = limit
    count = len(measured.kernel)
    assert count <= bins and measured.start == device.window.start
    assert measured.width * count >= device.window.length > measured.width * (count - 1)
    for name, kind in CLASSES.items():
        busy = {ns for start, end, own, *_ in operations if own == kind for ns in range(start, end)}
        expected = np.bincount([(ns - measured.start) // measured.width for ns in busy], minlength=count)
        assert getattr(measured, name).tolist() == expected.tolist()
        merged = getattr(merge_bins(measured, Clock("", "reference", 0, 0, 0, 0, None), 3), name).tolist()
        assert merged == [int(sum(expected[first : first + 3])) for first in range(0, count, 3)]
    assert ((measured.kernel >= 0) == (measured.compute > 0)).all()
