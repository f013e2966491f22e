"""Helpers for tests of rules: run chosen rules on a hand-made trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import polars as pl

from traceview.model.analysis import Analysis, AnalysisOptions
from traceview.model.findings import Finding
from traceview.model.program import Program
from traceview.model.trace import API, OPERATIONS, Note, Trace
from traceview.pipeline.findings import capture_for_rules, find
from traceview.pipeline.measure import TraceWork, measure_capture
from traceview.pipeline.model import model_capture
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.texts import PLACEHOLDER

TRAINING = Program("pytorch", ("pytorch",), training=True, python=True)
FindsRule = Rule | Callable[[MeasuredCapture, GpuWork], Iterator[FindingDraft | Note]]
MS = 1_000_000
US = 1_000


def findings(trace: Trace, *rules: FindsRule, whole: bool = False) -> tuple[Finding, ...]:
    """Return the findings of these rules alone; their texts have no placeholder without a value."""
    found = _find(trace, rules, whole)[0]
    texts = [
        text for each in found for text in (each.title, each.advice, each.remedy, *(p.text for p in each.evidence))
    ]
    assert [text for text in texts if PLACEHOLDER.search(text)] == []
    return found


def notes(trace: Trace, *rules: FindsRule) -> tuple[Note, ...]:
    """Return the notes of these rules alone."""
    return _find(trace, rules, False)[1]


def _find(trace: Trace, rules: Sequence[FindsRule], whole: bool) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    named = tuple(rule if isinstance(rule, Rule) else Rule(rule.__name__, rule) for rule in rules)
    work = TraceWork.from_trace(trace)
    analysis = model_capture(measure_capture(work, AnalysisOptions(whole=whole))).analysis
    return find(work, analysis, rules=named)


def rows_of(analysis: Analysis) -> MeasuredCapture:
    """Return the rows that rules read of a capture."""
    return capture_for_rules(TraceWork.from_trace(analysis.trace), analysis)


def in_training(trace: Trace) -> Trace:
    """Return the trace as one of a PyTorch program that trains."""
    return replace(trace, program=TRAINING)


def with_memory(trace: Trace, memory: str, size: int = 1024) -> Trace:
    """Return the trace with `size` bytes per copy and host memory of type `memory`."""
    copy = pl.col("kind").is_not_null()
    return replace(
        trace,
        operations=trace.operations.with_columns(
            pl.when(copy).then(pl.lit(memory)).cast(OPERATIONS["memory"]).alias("memory"),
            pl.when(copy).then(pl.lit(size, pl.Int64)).otherwise(0).alias("bytes"),
        ),
    )


def with_names(trace: Trace, names: list[str]) -> Trace:
    """Return the trace with these names for its operations, in order."""
    named = pl.Series("name", names, dtype=pl.Enum(sorted(set(names))))
    return replace(trace, operations=trace.operations.with_columns(named))


def with_calls(trace: Trace, names: list[str]) -> Trace:
    """Return the trace with these names for its API calls, in order."""
    named = pl.Series("name", names, dtype=pl.Enum(sorted(set(names))))
    assert API["name"] is pl.Enum
    return replace(trace, api=trace.api.with_columns(named))


def iterations(count: int, length: int) -> list[tuple[int, int, str, int]]:
    """Return one range per iteration, as input for made_trace."""
    return [(step * length, (step + 1) * length, f"iteration {step}", 0) for step in range(count)]
