"""What a page shows of a capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import polars as pl

from traceview.model.analysis import Analysis
from traceview.model.charts import Charts
from traceview.model.frozen import dataclass
from traceview.model.sizes import CounterSeries
from traceview.model.trace import Window
from traceview.model.whatif import Combinations
from traceview.report.timeline.work import Bands, bands


@dataclass(frozen=True)
class PageInputs:
    """The analysis of a capture, and what is measured for a page alone.

    `other` is the analysis of the other one of steady part and window, None where they are the same time. `projected`
    has the ranges on the GPU (PROJECTED), `stacks` those of threads by time: start, end, stack (row of
    HostEvidence.stacks) and thread, `combinations` what changes would give. `exposed` is the exposed time of devices by
    row of Trace.devices: work (0 is communication), operation, following, start, end, cause and reason.
    """

    analysis: Analysis
    other: Analysis | None
    charts: Charts
    projected: pl.DataFrame
    counters: Sequence[CounterSeries]
    stacks: pl.DataFrame
    exposed: Mapping[int, pl.DataFrame]
    combinations: Combinations | None = None

    @property
    def analyses(self) -> tuple[Analysis, ...]:
        """The analysis, and the other one."""
        return (self.analysis,) if self.other is None else (self.analysis, self.other)

    @cached_property
    def span(self) -> Window:
        """The time that the timeline covers."""
        return self.analysis.trace.span

    @cached_property
    def work(self) -> Mapping[int, Bands]:
        """The work of each device by class, by row of Trace.devices."""
        return bands(self.analysis.trace, self.analysis.devices)
