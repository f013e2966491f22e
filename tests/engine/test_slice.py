"""What passes over parts leave for later ones equals what is made anew."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.captures import sample
from traceview.engine.part import PartTrace
from traceview.measure.activity import device_activity
from traceview.measure.gaps import find_idle_gaps
from traceview.model.trace import Window
from traceview.pipeline import open_trace

TRACE = open_trace(sample("dual.sqlite"))
WORK = device_activity(TRACE, 0)
assert WORK is not None
MOMENTS = st.integers(WORK.window.start - 1_000, WORK.window.end + 1_000)


@given(parts=st.lists(st.tuples(MOMENTS, MOMENTS), min_size=2, max_size=4))
def test_gaps_of_any_parts_keep_their_causes(parts: list[tuple[int, int]]) -> None:
    part = PartTrace(TRACE)
    for edges in parts:
        work = WORK.clip(Window(*sorted(edges)))
        known, anew = part.idle_gaps(work), find_idle_gaps(TRACE, part.threads, work)
        for mine, expected in zip((*known.gaps, *known[1:]), (*anew.gaps, *anew[1:]), strict=True):
            assert (mine == expected).all()
