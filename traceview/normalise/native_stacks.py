"""Stacks of native code: those of CPU samples, and of system and CUDA calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.model.stacks import FRAMES, SAMPLES, STACKS, CallTree
from traceview.normalise.codes import UNNAMED, texts_of
from traceview.normalise.stacks import MAX_DEPTH, StackFrames, is_time
from traceview.normalise.threads import Threads, without_path
from traceview.read import raw

LIBRARY_MODULE = r"\.so(?:\.[\d.]+)?$|\.dll$|^\[|vmlinux|^python[\d.]*$"
# Names of libraries that are compiled into the program.
LIBRARY_NAME = r"^(?:std|__gnu_cxx|thrust|cub|cudart)::|^libcudart_static_|^cu(?:da)?[A-Z]|^_start$|^__libc"
BRACKET = re.compile("([<>])")
# Modules and symbols of nsys's own code, and its marks for what it cannot unwind.
NOISE = r"libToolsInjection|^NSYS_OSRT_|^\[(?:Max depth|Unknown|Broken backtraces)\]$"
UNRESOLVED = "(unresolved)"  # a function whose name nsys does not know


class StackedCalls(NamedTuple):
    """Calls (start, end, globalTid, STACK_ID) and the frames of their stacks (a table of raw.NATIVE_STACKS)."""

    calls: pl.DataFrame
    chains: pl.DataFrame


def take_stacked_calls(tables: dict[str, pl.DataFrame], cuda: pl.DataFrame | None = None) -> list[StackedCalls]:
    """Return the system and CUDA calls that have a stack; remove what only stacks need from `tables`.

    `cuda` are the CUDA calls if `tables` has none.
    """
    stacked = []
    for name, chains in ((raw.SYSTEM_CALLS, raw.SYSTEM_STACKS), (raw.RUNTIME, raw.CUDA_STACKS)):
        calls, frames = tables.get(name, pl.DataFrame()), tables.pop(chains, pl.DataFrame())
        if raw.STACK_ID in calls.columns:
            tables[name] = calls.drop(raw.STACK_ID)
        elif name == raw.RUNTIME and cuda is not None:
            calls = cuda
        if raw.STACK_ID in calls.columns and not frames.is_empty():
            stacked.append(StackedCalls(calls.filter(pl.col(raw.STACK_ID) > 0), frames))
    return stacked


def call_stacks(stacked: StackedCalls, tables: Mapping[str, pl.DataFrame], threads: Threads) -> StackFrames | None:
    """Return frames, stacks and samples of calls; None if there are none."""
    calls = stacked.calls.with_columns(threads.rows(stacked.calls["globalTid"]).alias("thread"))
    has_length = is_time("start") & is_time("end") & (pl.col("end") > pl.col("start"))
    calls = calls.filter(has_length & (pl.col("thread") >= 0))
    if calls.is_empty():
        return None
    frames, stacks, leaf = _native_tree(tables, stacked.chains, calls[raw.STACK_ID])
    located = calls.join(leaf, left_on=raw.STACK_ID, right_on="id", how="inner", maintain_order="left")
    return frames, stacks, _native_samples(located)


def native_stacks(tables: dict[str, pl.DataFrame], threads: Threads) -> StackFrames | None:
    """Return frames, stacks and samples of the CPU sampler, of known threads; None if the capture has none."""
    samples = tables.get(raw.CPU_SAMPLES, pl.DataFrame())
    if samples.is_empty():
        return None
    samples = samples.with_columns(threads.rows(samples["globalTid"]).alias("thread"))
    samples = samples.filter(is_time("start") & (pl.col("thread") >= 0))
    if samples.is_empty():
        return None
    frames, stacks, leaf = _native_tree(tables, tables.get(raw.CPU_STACKS, pl.DataFrame()), samples["id"])
    columns = samples.with_columns(pl.col("start").alias("end")).join(leaf, on="id", how="left", maintain_order="left")
    return frames, stacks, _native_samples(columns.with_columns(pl.col("stack").fill_null(-1)))


def _native_samples(columns: pl.DataFrame) -> pl.DataFrame:
    """Return SAMPLES of columns with start, end, thread and stack."""
    unknown = [pl.lit(None).alias(name) for name in ("python_thread", "holds_gil")]
    return columns.with_columns(unknown).select(list(SAMPLES)).cast(dict(SAMPLES))  # type: ignore[arg-type]


def _native_tree(tables: Mapping[str, pl.DataFrame], chains: pl.DataFrame, used: pl.Series) -> StackFrames:
    """Return frames and stacks of native code, and the innermost node (`stack`) of each chain (`id`) that is used."""
    empty = (pl.DataFrame(schema=dict(FRAMES)), pl.DataFrame(schema=dict(STACKS)))
    if not chains.is_empty():
        if chains["id"].n_unique() > used.len():
            chains = chains.filter(pl.col("id").is_in(used.implode()))
        if not _is_ordered(chains):
            chains = chains.sort("id", "stackDepth")
        chains = _without_noise(chains, tables)
        if chains["id"].len() > MAX_DEPTH:
            chains = chains.filter(pl.int_range(pl.len()).over("id") < MAX_DEPTH)
    if chains.is_empty():
        return *empty, pl.DataFrame(schema={"id": pl.Int64, "stack": pl.Int32})
    depths = chains.group_by("id", maintain_order=True).len("depth")
    numbers = chains.select(pl.col("symbol", "module")).to_numpy()
    tree = CallTree.from_chains(np.ascontiguousarray(numbers), depths["depth"].cast(pl.Int64).to_numpy())
    symbols, modules = (texts_of(pl.Series(tree.frames[:, column]), dict(tables)) for column in (0, 1))
    names = [UNRESOLVED if symbol == UNNAMED else qualified_name(symbol) for symbol in symbols]
    files = [without_path(module) for module in modules]
    is_library = pl.col("file").str.contains(LIBRARY_MODULE) | pl.col("function").str.contains(LIBRARY_NAME)
    frames = pl.DataFrame({"function": names, "file": files, "line": 0}).with_columns(is_library.alias("library"))
    stacks = pl.DataFrame({"parent": tree.parent, "frame": tree.frame})
    leaf = pl.DataFrame({"id": depths["id"], "stack": tree.leaf})
    return frames.cast(dict(FRAMES)), stacks.cast(dict(STACKS)), leaf  # type: ignore[arg-type]


def qualified_name(symbol: str) -> str:
    """Return `a::B::run` for `void a::B<int>::run<float>(float*) const`: a demangled name without types."""
    return _without_templates(symbol).partition("(")[0].strip().rpartition(" ")[2] or symbol


def _without_templates(symbol: str) -> str:
    """Return a symbol without the text between matching < and >, in one pass however deep they are nested."""
    texts = [[""]]  # outside, and after each < that is open
    for part in BRACKET.split(symbol):
        if part == ">" and len(texts) > 1:
            texts.pop()
        elif part == "<":
            texts.append([part])
        else:
            texts[-1].append(part)
    return "".join(part for text in texts for part in text)


def _without_noise(chains: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return chains without frames of the profiler and of nothing; functions without a name in a row become one.

    The symbol of a function without a name is -1.
    """
    strings = tables[raw.STRINGS].unique("id", keep="first")
    numbers = strings.filter(pl.col("value").str.starts_with("0x"))["id"]
    noise = strings.filter(pl.col("value").str.contains(NOISE))["id"]
    symbol = pl.when(pl.col("symbol").is_in(numbers.implode())).then(-1).otherwise(pl.col("symbol").fill_null(-1))
    kept = chains.with_columns(symbol.alias("symbol"), pl.col("module").fill_null(-1)).filter(
        ~pl.col("module").is_in(noise.implode()) & ~pl.col("symbol").is_in(noise.implode())
    )
    is_same = (pl.col("id", "symbol", "module") == pl.col("id", "symbol", "module").shift(1)).name.suffix("_same")
    repeated = pl.all_horizontal(pl.col("id_same", "symbol_same", "module_same")) & (pl.col("symbol") == -1)
    return kept.with_columns(is_same).filter(~repeated.fill_null(False)).select(chains.columns)


def _is_ordered(chains: pl.DataFrame) -> bool:
    """Return whether the frames of each sample come together, the innermost first."""
    number, depth = (chains[name].fill_null(0).to_numpy() for name in ("id", "stackDepth"))
    same = number[1:] == number[:-1]
    return bool((number[1:] >= number[:-1]).all() and (depth[1:][same] >= depth[:-1][same]).all())
