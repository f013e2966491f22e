"""The compact copy of a table has the values and nulls of the table."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from traceview.read.raw import SHAPE
from traceview.read.sqlite.decoder import DecodedFrames, PartedTable, StoredTable, TableDecoder, store_parts

NUMBER = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)
ROWS = st.lists(st.tuples(NUMBER, st.none() | NUMBER, st.integers(0, 2)), min_size=3, max_size=30)


@given(ROWS, st.integers(1, 2), st.integers(0, 2))
def test_stored_rows_are_read_again(rows: list[tuple[int, int | None, int]], cut: int, first: int) -> None:
    frame = pl.DataFrame(rows, schema={"a": pl.Int64, "b": pl.Int64, SHAPE: pl.Int64}, orient="row")
    groups = pl.DataFrame({"name": [4, None, 4]}, schema={"name": pl.Int64})  # the first and the last are equal
    table = PartedTable(TableDecoder(Path(), 2, ("a", "b", "name"), ("a", "b"), ("name",)), ())
    expected = frame.with_columns(groups["name"][frame[SHAPE]].alias("name")).drop(SHAPE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        edges = np.array([0, cut])
        stored = [store_parts(folder / str(copy), DecodedFrames(frame, groups), edges) for copy in range(2)]
        read = StoredTable.join(folder, table, stored).read(first, 3)
    assert read.groups is not None
    assert len(read.groups) == 2
    named = read.columns.with_columns(read.groups["name"][read.columns[SHAPE]].alias("name")).drop(SHAPE)
    assert_frame_equal(named, pl.concat([expected, expected[:cut]])[[0, cut, len(expected)][first] :])
