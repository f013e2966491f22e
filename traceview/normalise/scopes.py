"""Ops, modules and functions (model/stacks.py), from a trace of torch.profiler or from NVTX ranges around them.

An NVTX range is an op if its name has the form of `emit_nvtx` (`aten::addmm, seq = 12, op_id = 3, sizes = [...]`).
It is a module if its category is called `module`, as in the ranges of instrument.annotate_module, or if its name is
that of the hooks of NVIDIA and vLLM (`{'Module': 'layers.0.mlp', ...}`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.model.stacks import MODULE, OP, SCOPE_KINDS, no_scopes
from traceview.model.trace import TORCH_OPS
from traceview.normalise.codes import categories, enum_column, name_column
from traceview.normalise.threads import Threads, process_of
from traceview.normalise.valid_rows import MAX_TIME
from traceview.read import raw

OP_MARK = r", (?:op_id|seq) = \d"
OP_PARTS = r"^(.*?)(?:, seq = (\d+))?(?:, op_id = \d+)?(?:, sizes = .*)?(?:, input_op_ids = .*)?$"
# A range of record_function has an op_id too, but neither a namespace nor a sequence number.
OP_NAME = r"::|^[\w:]+Backward\d*$"
BACKWARD_OP = r"^autograd::engine::evaluate_function|Backward\d*$"
MODULE_NAME = r"^\{'Module': '([^']+)'"
MODULE_CATEGORY = "module"
BACKWARD_SUFFIX = " backward"


def trace_scopes(tables: dict[str, pl.DataFrame], threads: Threads) -> pl.DataFrame:
    """Return model.SCOPES of a trace of torch.profiler."""
    scopes = tables.get(raw.SCOPES)
    if scopes is None or scopes.is_empty():
        return no_scopes()
    start, end = pl.col("start"), pl.col("end")
    valid = (
        scopes.with_columns(
            threads.rows(scopes["globalTid"]).cast(pl.Int16), name_column(scopes["nameId"], tables).alias("name")
        )
        .filter(start.is_between(-MAX_TIME, MAX_TIME), end.is_between(start, MAX_TIME), pl.col("thread") >= 0)
        .filter(pl.col("kind").is_between(0, len(SCOPE_KINDS) - 1))
    )
    return valid.select(
        *("start", "end", "name", "thread"),
        process_of("globalTid").alias("process"),
        enum_column(valid["kind"].to_numpy().astype(np.uint8), pl.Enum(SCOPE_KINDS)).alias("kind"),
        (pl.col("backward") == 1).fill_null(False).alias("backward"),
        *("sequence", "forward_thread"),
        pl.lit(None, pl.Int32).alias("range"),
    )


class NamedRanges(NamedTuple):
    """Trace.ranges with folded names of ops, and the scopes among them."""

    ranges: pl.DataFrame
    scopes: pl.DataFrame


def range_scopes(ranges: pl.DataFrame, in_category: pl.Series) -> NamedRanges:
    """Find the ops and modules among ranges (model.RANGES); `in_category` marks ranges of the category of modules."""
    names = categories(ranges["name"])
    texts = _names(names)
    if texts["range_name"].to_list() == names and not texts["is_module"].any() and not in_category.any():
        return NamedRanges(ranges, no_scopes())
    parts = texts[ranges["name"].to_physical()].with_columns(pl.col("is_module") | in_category)
    domain = pl.when(parts["is_op"]).then(pl.lit(TORCH_OPS)).otherwise(ranges["domain"].cast(pl.String))
    named = ranges.with_columns(_as_enum(parts["range_name"]).alias("name"), domain.alias("domain"))
    return NamedRanges(named.with_columns(_as_enum(named["domain"])), _scopes(ranges.drop("name"), parts))


def _names(texts: list[str]) -> pl.DataFrame:
    """Return the parts of the names of ranges: range_name (folded), name (of the scope), sequence, is_op, is_module."""
    names = pl.DataFrame({"text": texts}, schema={"text": pl.String})
    marked, module = pl.col("text").str.contains(OP_MARK), pl.col("text").str.extract(MODULE_NAME)
    parts = pl.col("text").str.extract_groups(OP_PARTS).struct
    folded = pl.when(marked).then(parts.field("1")).otherwise("text")
    sequence = pl.when(marked).then(parts.field("2").cast(pl.Int64, strict=False))
    return names.select(
        folded.alias("range_name"),
        pl.coalesce(module, folded).alias("name"),
        sequence.alias("sequence"),
        (marked & (sequence.is_not_null() | folded.str.contains(OP_NAME))).alias("is_op"),
        module.is_not_null().alias("is_module"),
    )


def _scopes(ranges: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Return model.SCOPES of ranges whose names hold `parts`."""
    name = pl.col("name")
    around_backward = pl.col("is_module") & name.str.ends_with(BACKWARD_SUFFIX)
    scopes = (
        pl.concat([ranges, parts], how="horizontal")
        .with_row_index("range")
        .filter(pl.col("is_op") | pl.col("is_module"))
        .select(
            *("start", "end"),
            pl.when(around_backward).then(name.str.strip_suffix(BACKWARD_SUFFIX)).otherwise(name).alias("name"),
            *("thread", "process"),
            pl.when("is_module").then(pl.lit(MODULE)).otherwise(pl.lit(OP)).cast(pl.Enum(SCOPE_KINDS)).alias("kind"),
            (around_backward | (pl.col("is_op") & name.str.contains(BACKWARD_OP))).alias("backward"),
            "sequence",
            pl.lit(None, pl.Int64).alias("forward_thread"),
            pl.col("range").cast(pl.Int32),
        )
    )
    return scopes.with_columns(_as_enum(scopes["name"]))


def _as_enum(texts: pl.Series) -> pl.Series:
    return texts.cast(pl.Enum(texts.unique(maintain_order=True)))
