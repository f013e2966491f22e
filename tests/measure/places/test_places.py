"""The kernels of each place: their totals add up, and each kernel belongs to its innermost range."""

from __future__ import annotations

import pytest

from tests.captures import ALL, shared
from traceview import analyze


@pytest.mark.parametrize("name", ALL)
def test_totals_equal_those_of_kernels(name: str) -> None:
    for device in analyze(shared(name)).devices:
        kernels, places = (device.tables[table].rows for table in ("kernels", "kernel_places"))
        for figure in ("count", "total_ns"):
            assert sum(getattr(row, figure) for row in places) == sum(getattr(row, figure) for row in kernels)
        by_name = {row.kernel for row in places}
        assert by_name == {row.label for row in kernels}
