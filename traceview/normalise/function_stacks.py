"""Exact stacks from the calls of Python functions that torch.profiler records (`with_stack=True`)."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.model.call_tree import CallTree
from traceview.model.scopes import FUNCTION
from traceview.model.stacks import FRAMES, SAMPLES, STACKS
from traceview.normalise.codes import categories
from traceview.normalise.source_paths import is_library

NAME = r"^(.*):(\d{1,9}) (.*)$"
MAX_DEPTH = 1 << 10


def function_stacks(scopes: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame] | None:
    """Return frames, stacks and samples of the functions among model.SCOPES; None if there are none."""
    calls = scopes.filter((pl.col("kind") == FUNCTION) & (pl.col("end") > pl.col("start")))
    if calls.is_empty():
        return None
    calls = calls.sort(pl.col("thread"), pl.col("start"), -pl.col("end"), maintain_order=True)
    thread, start, end = (calls[name].to_numpy() for name in ("thread", "start", "end"))
    row, is_start, level = _boundaries(thread.astype(np.int64), start, end)
    depth = np.empty(len(calls), np.int64)
    depth[row[is_start]] = level[is_start]
    if depth.max() > MAX_DEPTH:
        return None
    parent = _last_at_level(np.flatnonzero(is_start), depth - 1, row, is_start, level)
    code = calls["name"].to_physical().to_numpy().astype(np.int64)
    tree = CallTree.from_calls(parent, code[:, np.newaxis], depth - 1)
    inner = _last_at_level(np.arange(len(row)), level, row, is_start, level)
    time = np.where(is_start, start[row], end[row])
    known = np.flatnonzero((inner[:-1] >= 0) & (time[1:] > time[:-1]))
    samples = pl.DataFrame(
        {
            "start": time[known],
            "end": time[known + 1],
            "thread": thread[inner[known]],
            "python_thread": thread[inner[known]],
            "holds_gil": None,
            "stack": tree.leaf[inner[known]],
        }
    )
    texts = categories(calls["name"])
    frames = _frames([texts[number] for number in tree.frames[:, 0].tolist()])
    stacks = pl.DataFrame({"parent": tree.parent, "frame": tree.frame})
    return frames, stacks.cast(dict(STACKS)), samples.cast(dict(SAMPLES)).sort("start", maintain_order=True)  # type: ignore[arg-type]


def _boundaries(thread: Times, start: Times, end: Times) -> tuple[Times, np.ndarray, Times]:
    """Return the starts and ends of calls by thread and time: the call, whether it starts, and the open calls after it.

    At equal times, ends come before starts. The calls are ordered.
    """
    count = len(start)
    rows = np.arange(count)
    order = np.lexsort((np.repeat([1, 0], count), np.concatenate([start, end]), np.concatenate([thread, thread])))
    is_start = order < count
    row = np.concatenate([rows, rows])[order]
    return row, is_start, np.cumsum(np.where(is_start, 1, -1))


def _last_at_level(at: Times, wanted: Times, row: Times, is_start: np.ndarray, level: Times) -> Times:
    """Return for each boundary `at` the last call before it, or at it, that starts at the wanted level; -1 for 0."""
    result = np.full(len(at), -1, np.int64)
    for depth in range(1, int(wanted.max(initial=0)) + 1):
        some = np.flatnonzero(wanted == depth)
        begins = np.flatnonzero(is_start & (level == depth))
        result[some] = row[begins[np.searchsorted(begins, at[some], side="right") - 1]]
    return result


def _frames(names: list[str]) -> pl.DataFrame:
    parts = pl.Series(names, dtype=pl.String).str.extract_groups(NAME).struct
    files = parts.field("1").fill_null("")
    return pl.DataFrame(
        {
            "function": parts.field("3").fill_null(pl.Series(names, dtype=pl.String)),
            "file": files,
            "line": parts.field("2").cast(pl.Int64).fill_null(0).clip(0, (1 << 31) - 1).cast(pl.Int32),
            "library": [is_library(file) for file in files.to_list()],
        },
        schema=dict(FRAMES),
    )
