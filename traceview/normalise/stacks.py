"""Python stacks: frames without paths, and the threads that the samples belong to."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.model.call_tree import Numbers, node_levels
from traceview.model.stacks import FRAMES, SAMPLES, STACKS
from traceview.normalise.codes import texts_of
from traceview.normalise.source_paths import folder_of, is_library, shown_files
from traceview.normalise.threads import Threads, process_of
from traceview.normalise.valid_rows import MAX_TIME
from traceview.read import raw

MAIN_ROOTS = ("<module>", "_run_module_as_main", "run_path")  # outermost functions of a program's main thread
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
MAX_DEPTH = 1 << 10  # frames of a stack; Python's default limit of recursion is 1000
MAX_PYTHON_THREADS = 1 << 10
TORCH_NAME = re.compile(r"^(?P<file>.+)\((?P<line>\d{1,9})\): (?P<function>.*)$")

Flags = NDArray[np.bool_]
StackFrames = tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]


def python_stacks(tables: dict[str, pl.DataFrame], threads: Threads) -> StackFrames | None:
    """Return frames, stacks and samples of Python; None if the capture has none."""
    samples, stacks, frames = (
        tables.get(name, pl.DataFrame()) for name in (raw.PYTHON_SAMPLES, raw.PYTHON_STACKS, raw.PYTHON_FRAMES)
    )
    in_tree = pl.col("stack").is_between(0, len(stacks) - 1)
    samples = samples.filter(is_time("start") & is_time("end") & in_tree) if len(samples) else samples
    if samples.is_empty() or not _is_tree(stacks, len(frames)):
        return None
    functions, files, lines = _texts(frames, tables)
    parent, frame = stacks["parent"].to_numpy(), stacks["frame"].to_numpy()
    names, library = shown_files(pl.Series(files), _program_folders(files, parent, frame))
    shown = pl.DataFrame({"function": functions, "file": names, "line": lines, "library": library}, schema=dict(FRAMES))
    return shown, stacks.cast(dict(STACKS)), _samples(samples, threads, _is_main(functions, parent, frame))  # type: ignore[arg-type]


def joined_stacks(parts: Sequence[StackFrames]) -> StackFrames:
    """Return the stacks of several sources as one, the samples by time."""
    frames, stacks, samples = [], [], []
    frame_count = stack_count = 0
    for own_frames, own_stacks, own_samples in parts:
        moved = pl.when(pl.col("parent") < 0).then(-1).otherwise(pl.col("parent") + stack_count).cast(pl.Int32)
        stacks.append(own_stacks.select(moved.alias("parent"), (pl.col("frame") + frame_count).cast(pl.Int32)))
        inner = pl.when(pl.col("stack") < 0).then(-1).otherwise(pl.col("stack") + stack_count).cast(pl.Int32)
        samples.append(own_samples.with_columns(inner.alias("stack")))
        frames.append(own_frames)
        frame_count += len(own_frames)
        stack_count += len(own_stacks)
    return pl.concat(frames), pl.concat(stacks), pl.concat(samples).sort("start", maintain_order=True)


def is_time(column: str) -> pl.Expr:
    """Return whether a column holds a possible time."""
    return pl.col(column).is_between(-MAX_TIME, MAX_TIME)


def _is_tree(stacks: pl.DataFrame, frames: int) -> bool:
    """Return whether parents precede their children, all frames exist, and stacks have at most MAX_DEPTH frames."""
    if stacks.is_empty() or stacks["parent"].null_count() or stacks["frame"].null_count():
        return False
    parent, frame = stacks["parent"].to_numpy(), stacks["frame"].to_numpy()
    return bool(
        (parent < np.arange(len(parent))).all() and parent.min() >= -1 and 0 <= frame.min() <= frame.max() < frames
    )


def _texts(frames: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> tuple[list[str], list[str], list[int]]:
    """Return the function, the path and the line of each frame. torch.profiler writes them as one text."""
    functions = [html.unescape(text) for text in texts_of(frames["functionId"], tables)]
    known = frames["fileId"].is_not_null().to_list()
    paths = [html.unescape(text) for text in texts_of(frames["fileId"].fill_null(-1), tables)]
    lines = frames["line"].fill_null(0).clip(0, (1 << 31) - 1).to_list()
    for row, has_file in enumerate(known):
        if not has_file:
            parts = TORCH_NAME.match(functions[row])
            paths[row] = parts["file"] if parts else ""
            lines[row] = int(parts["line"]) if parts else 0
            functions[row] = ADDRESS.sub("", parts["function"] if parts else functions[row])
    return functions, paths, lines


def _program_folders(paths: Sequence[str], parent: Numbers, frame: Numbers) -> frozenset[str]:
    """Return the folders of the outermost frames that belong to no library: those of the program's scripts."""
    own = np.array([not is_library(path) for path in paths], np.bool_)[frame]
    has_own_caller = np.zeros(len(parent) + 1, np.bool_)
    level = node_levels(parent)
    for depth in range(int(level.max()) + 1):
        rows = np.flatnonzero(level == depth)
        above = parent[rows]
        has_own_caller[rows] = has_own_caller[above] | np.where(above >= 0, own[above], False)
    outermost = np.unique(frame[own & ~has_own_caller[:-1]])
    return frozenset(folder_of(paths[row]) for row in outermost.tolist()) - {""}


def _is_main(functions: Sequence[str], parent: Numbers, frame: Numbers) -> Flags:
    """Return for each stack node whether its outermost frame is that of a main thread."""
    root = np.arange(len(parent))
    while (inside := parent[root] >= 0).any():
        root = np.where(inside, parent[root], root)
    main = np.array([function in MAIN_ROOTS for function in functions], np.bool_)
    return np.take(main, frame[root])


def _samples(samples: pl.DataFrame, threads: Threads, is_main: Flags) -> pl.DataFrame:
    """Return SAMPLES. nsys numbers Python threads: the one that runs the script is the main thread."""
    if samples["category"].null_count() == len(samples):
        thread = threads.rows(samples["globalTid"])
        columns = samples.with_columns(thread.alias("thread"), thread.alias("python_thread"))
        return _typed(columns.filter(pl.col("thread") >= 0))
    columns = samples.with_columns(
        process_of("globalTid").alias("process"),
        pl.Series("is_main", is_main[samples["stack"].to_numpy()]),
        pl.col("category").fill_null(0),
    )
    groups = columns.group_by("process", "category").agg(pl.col("is_main").mean(), pl.len().alias("count"))
    groups = groups.sort("count", descending=True)[:MAX_PYTHON_THREADS]
    main = groups.filter(pl.col("is_main") > 0.5).sort("count", descending=True).unique("process", keep="first")
    rows = [threads.main_row(process) for process in main["process"].to_list()]
    main = main.select("process", "category", pl.Series("thread", rows, dtype=pl.Int16))
    numbers = groups.sort("process", "category").select("process", "category").with_row_index("python_thread")
    columns = columns.join(main, on=["process", "category"], how="left").join(numbers, on=["process", "category"])
    return _typed(columns)


def _typed(columns: pl.DataFrame) -> pl.DataFrame:
    holds = (pl.col("holdsGil") > 0).alias("holds_gil")
    return columns.with_columns(holds).select(list(SAMPLES)).cast(dict(SAMPLES)).sort("start", maintain_order=True)  # type: ignore[arg-type]
