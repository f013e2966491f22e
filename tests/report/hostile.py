"""A hand-made capture with names that try to be code."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from tests.made_trace import made_trace
from traceview.model.trace import Note, Trace

SCRIPT = "</script><script>window.owned=1</script>"
IMAGE = '<img src=x onerror="window.owned=1">'
QUOTES = "\"'`${window.owned=1}&lt;b&gt;"
RIGHT_TO_LEFT = "\u202eتدريب\u202c forward"
EMOJI = "🚀 étape\u2028zwei\u0000"
COMMENT = "<!--<script>"
NAMES = (SCRIPT, IMAGE, QUOTES, RIGHT_TO_LEFT, EMOJI, COMMENT)


def _named(frame: pl.DataFrame, offset: int) -> pl.DataFrame:
    names = [NAMES[(row + offset) % len(NAMES)] for row in range(len(frame))]
    return frame.with_columns(pl.Series("name", names, dtype=pl.Enum(sorted(set(names)))))


def hostile_trace() -> Trace:
    """Return a trace of twelve steps with a copy and a kernel, and with hostile names."""
    step = 1_000_000
    operations = [
        one
        for at in range(12)
        for one in (
            (at * step + 100_000, at * step + 400_000, "copy", 0, 2 * at),
            (at * step + 500_000, at * step + 800_000, "compute", 0, 2 * at + 1),
        )
    ]
    api = [
        one
        for at in range(12)
        for one in (
            (at * step + 50_000, at * step + 390_000, "blocking_copy", 0),
            (at * step + 420_000, at * step + 430_000, "api", 0),
        )
    ]
    ranges = [(at * step, at * step + 900_000, "step", 0) for at in range(12)]
    trace = made_trace(operations, api, ranges)
    return replace(
        trace,
        info=replace(
            trace.info, file=f"{IMAGE}.sqlite", left_out=(Note("left_out", f"a problem with {SCRIPT}", ("busy",)),)
        ),
        operations=_named(trace.operations, 0),
        api=_named(trace.api, 1),
        ranges=trace.ranges.with_columns(pl.Series("name", [IMAGE] * 12, dtype=pl.Enum([IMAGE]))),
        devices=trace.devices.with_columns(id=pl.lit(SCRIPT), name=pl.lit(QUOTES)),
        streams=trace.streams.with_columns(label=pl.lit(IMAGE)),
        threads=trace.threads.with_columns(name=pl.lit(COMMENT)),
    )
