"""A block of marks in a file has the marks that were written, in narrow integers."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview.model.timeline.marks import Marks
from traceview.model.timeline.merging import merged
from traceview.model.timeline.stored import BUSY, DETAIL, LENGTH, LOOK, NAME, START, SUM, write_lane

NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, 1 << 40))
MARKS = st.lists(st.tuples(NUMBERS, NUMBERS, st.integers(0, 300), st.integers(0, 3), NUMBERS, NUMBERS), min_size=1)


@given(MARKS)
def test_blocks_and_levels_hold_the_marks(events: list[tuple[int, ...]]) -> None:
    start, length, name, look, size, correlation = (np.array(column, np.int64) for column in zip(*events, strict=True))
    start = np.sort(start)
    columns = {"bytes": size}, {"correlation": (correlation % (1 << 32)).astype(np.uint32)}
    marks = Marks(start, start + length, name, look.astype(np.uint8), *columns)
    with tempfile.TemporaryFile() as file:
        path = Path(f"/proc/self/fd/{file.fileno()}")
        part = write_lane(marks, 5, file, path)
        file.flush()
        [block] = part.blocks
        stored = block.read()
    assert stored[START].tolist() == start.tolist()
    assert stored[LENGTH].tolist() == length.tolist()
    assert (stored[NAME].tolist(), stored[LOOK].tolist()) == (name.tolist(), look.tolist())
    assert stored.get(SUM + "bytes", np.zeros_like(size)).tolist() == size.tolist()
    ids = stored.get(DETAIL + "correlation", np.zeros_like(size))
    assert ids.tolist() == (correlation % (1 << 32)).tolist()


def test_level_has_an_eighth_of_the_marks(tmp_path: Path) -> None:
    start = np.arange(4096) * 100
    marks = Marks(start, start + 50, start % 7, np.zeros(len(start), np.uint8))
    with (tmp_path / "marks").open("xb") as file:
        part = write_lane(marks, 0, file, tmp_path / "marks")
    [(shift, [level])] = part.levels.items()
    assert (shift, level.count) == (10, len(merged(marks, 0, 10))) == (10, 400)
    assert level.read()[BUSY].sum() == 50 * len(marks)
    assert part.at_most(9) is part.blocks
    assert part.at_most(12) == [level]
