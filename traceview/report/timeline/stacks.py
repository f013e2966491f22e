"""The stacks of samples: rows of the timeline, and the tree of stacks that the page holds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import polars as pl

from traceview.model.rows import place_text
from traceview.model.stacks import HostEvidence, Numbers, node_levels
from traceview.model.trace import Window
from traceview.model.units import plain
from traceview.report.timeline.marks import Marks, Names
from traceview.report.timeline.work import LOOKS

MAX_STACKS = 20_000  # nodes of the tree of stacks on a page
MAX_FRAME = 160  # letters


class SampleStacks(NamedTuple):
    """The stacks of a page: those with the most samples, and their callers.

    `kept` has their rows in HostEvidence.stacks, callers first. `number` has for each stack, from 1, the innermost of
    itself and its callers that is kept; 0 for none.
    """

    kept: Numbers
    number: Numbers

    @classmethod
    def from_evidence(cls, evidence: HostEvidence) -> SampleStacks:
        """Choose the stacks."""
        parent = evidence.stacks["parent"].cast(pl.Int64).to_numpy()
        stack, level = evidence.samples["stack"].to_numpy(), node_levels(parent)
        count = np.bincount(stack[stack >= 0], minlength=len(parent))
        for depth in range(int(level.max(initial=0)), 0, -1):
            rows = np.flatnonzero(level == depth)
            np.add.at(count, parent[rows], count[rows])
        order = np.lexsort((level, -count))
        kept = order[count[order] > 0][:MAX_STACKS]
        number = np.zeros(len(parent) + 1, np.int64)
        number[kept] = np.arange(1, len(kept) + 1)
        for depth in range(int(level.max(initial=0)) + 1):
            rows = np.flatnonzero((level == depth) & (number[:-1] == 0))
            number[rows] = number[parent[rows]]
        return cls(kept, number[:-1])

    def json(self, evidence: HostEvidence) -> dict[str, Any]:
        """Return the caller of each stack as its number (0 for none), its frame, and the text of each frame."""
        parent, frame = (evidence.stacks[name].to_numpy()[self.kept] for name in ("parent", "frame"))
        used, place = np.unique(frame, return_inverse=True)
        return {
            "caller": np.where(parent >= 0, self.number[parent], 0).tolist(),
            "frame": place.tolist(),
            "frames": [frame_text(*evidence.frames.row(int(row))) for row in used],
        }


def frame_text(function: str, file: str, line: int, _library: bool) -> str:
    """Return `train.py:20 step`, or `write (libc.so)` where the line is unknown."""
    place = place_text(file, line)
    return plain(f"{place} {function}" if line else f"{function} ({place})" if place else function, MAX_FRAME)


def sample_marks(evidence: HostEvidence, stacks: pl.DataFrame, span: Window, names: Names) -> dict[int, Marks]:
    """Return the stacks of each thread (row of Trace.threads) that has any, inside the timeline.

    `stacks` are those of PageInputs. The names of the marks are lines of the program.
    """
    known = stacks.filter((pl.col("start") < span.end) & (pl.col("end") > span.start))
    known = known.with_columns(pl.col("start", "end").clip(span.start, span.end))
    if known.is_empty():
        return {}
    number = SampleStacks.from_evidence(evidence).number
    frame = evidence.stacks["frame"].to_numpy()[evidence.own_nodes()]
    name = np.zeros(len(evidence.frames), np.int32)
    for row in np.unique(frame[known["stack"].to_numpy()]).tolist():
        name[row] = names.number(frame_text(*evidence.frames.row(row)))
    marks = {}
    for (thread,), samples in known.partition_by("thread", as_dict=True).items():
        start, end, stack = (samples[column].to_numpy() for column in ("start", "end", "stack"))
        look = np.full(len(samples), LOOKS.index("sample"), np.uint8)
        marks[int(thread)] = Marks(start, end, name[frame[stack]], look, details={"stack": number[stack]})
    return marks
