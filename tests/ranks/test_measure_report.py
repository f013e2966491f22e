"""Reports that are measured in parts: the same figures as in memory, however many parts there are."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from tests.captures import sample
from traceview.engine import memory
from traceview.engine.limited import plan_parts
from traceview.engine.measure import Extents
from traceview.engine.part import PartRunner
from traceview.engine.traces import PartSource
from traceview.pipeline import open_trace
from traceview.ranks import measure_report as module
from traceview.ranks.measure_report import measure_parts, measure_report, measure_trace


def figures(result: object) -> object:
    """Return plain values without notes: some checks of a capture need the whole (docs/design.md "Parts")."""
    if is_dataclass(result):
        return {field.name: figures(getattr(result, field.name)) for field in fields(result) if field.name != "notes"}
    if isinstance(result, tuple):
        return [figures(each) for each in result]
    return result.tolist() if isinstance(result, np.ndarray) else result


@pytest.mark.parametrize("name", ["ddp2.sqlite", "cudagraph.sqlite", "dual.sqlite"])
def test_slices_give_the_figures_of_the_whole(name: str) -> None:
    """Two GPUs with collectives, kernels of graphs, and an iteration with copies."""
    whole = figures(measure_trace(open_trace(sample(name))))
    source = PartSource.open(sample(name))
    extents = Extents(*source.extents).devices
    windows = plan_parts(source, 5)
    assert len(windows) > 1
    assert figures(measure_parts(PartRunner(source, windows, 1 << 40), extents, None, None, None)) == whole


def test_report_larger_than_memory_is_measured_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = measure_report(sample("ddp2.sqlite"), memory=1 << 40)
    monkeypatch.setattr(memory, "BYTES_PER_FILE_BYTE", 10_000)
    monkeypatch.setattr(module, "open_trace", None)
    assert figures(measure_report(sample("ddp2.sqlite"), memory=memory.MIN_MEMORY)) == figures(whole)
