"""Random intervals as pairs, and as sets of single nanoseconds."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from traceview import intervals
from traceview.intervals import Intervals

PAIR = st.tuples(st.integers(-40, 40), st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))
PAIRS = st.lists(PAIR, max_size=12)


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([start for start, _ in pairs], np.int64),
        np.array([end for _, end in pairs], np.int64),
    )


def moments(pairs: list[tuple[int, int]]) -> set[int]:
    return {moment for start, end in pairs for moment in range(start, end)}


def as_pairs(union: Intervals) -> list[tuple[int, int]]:
    return list(zip(union.start.tolist(), union.end.tolist(), strict=True))


def union_of_pairs(pairs: list[tuple[int, int]]) -> Intervals:
    return intervals.union(*arrays(pairs))
