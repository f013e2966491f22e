"""Every table declares its columns: their titles, units and meaning."""

from __future__ import annotations

import pytest

from traceview.measure import MEASURES
from traceview.measure.base import Measure
from traceview.model.columns import columns, field_names


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.table.name)
def test_every_column_is_described(measure: Measure) -> None:
    declared = columns(measure.table.row_type)
    assert field_names(measure.table.row_type)
    assert all(column.title and column.description.endswith(".") for column in declared)
    assert set(measure.table.shown) <= {column.name for column in declared}
