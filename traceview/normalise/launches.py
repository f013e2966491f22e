"""Launch calls whose GPU work is not in the capture."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.frozen import frozen
from traceview.normalise.codes import categories, translate
from traceview.normalise.links import Links

LAUNCHES = {"kernel": re.compile(r"(cuda|cu)Launch(?!Host)\w*"), "CUDA graph": re.compile(r"(cuda|cu)GraphLaunch")}
KINDS = tuple(LAUNCHES)
CAPTURE_BEGIN = re.compile(r"(cuda|cu)StreamBeginCapture\w*")
CAPTURE_END = re.compile(r"(cuda|cu)StreamEndCapture")


@frozen
class Launches:
    """The launch calls that should have GPU work.

    `queued` of the `total` waited in a stream when the capture ended. `lost` has the other calls without work, a row
    for each process and kind (KINDS): process, kind, lost, total.
    """

    total: int
    queued: int
    lost: pl.DataFrame


def compare_launches(
    api: pl.DataFrame, links: Links, operations: pl.DataFrame, failed: pl.DataFrame | None
) -> Launches:
    """Compare launch calls with GPU work. `failed` are calls that failed, by process and correlation."""
    codes = np.array([_kind_code(name) for name in categories(api["name"])], np.uint8)
    kind = translate(api["name"].to_physical().to_numpy(), codes)
    has_work = np.zeros(len(api), np.bool_)
    has_work[operations["launch"].drop_nulls().to_numpy()] = True
    rows = np.flatnonzero((kind > 0) & ~has_work)
    calls = api[rows].select("start", "process", "correlation", pl.Series("kind", kind[rows]), pl.Series("row", rows))
    expected = _without_failed(_without_captured(calls.filter(_is_first(calls, links)), api), failed)
    queued = _are_queued(expected, operations)
    lost = expected.filter(~queued)
    total = int(np.count_nonzero(kind)) - len(calls) + len(expected)
    return Launches(total, int(queued.sum()), _by_process(lost, api, (kind > 0) & has_work, kind))


def _kind_code(name: str) -> int:
    return next((code for code, pattern in enumerate(LAUNCHES.values(), 1) if pattern.fullmatch(name)), 0)


def _is_first(calls: pl.DataFrame, links: Links) -> pl.Series:
    """Return whether a call is the first with its correlation id: old exports list a call under two names."""
    return (links.rows(calls) == calls["row"]).fill_null(False)


def _without_captured(calls: pl.DataFrame, api: pl.DataFrame) -> pl.DataFrame:
    """Leave out launches during a stream capture of their process: they become nodes of a CUDA graph."""
    names = categories(api["name"])
    change = [bool(CAPTURE_BEGIN.fullmatch(name)) - bool(CAPTURE_END.fullmatch(name)) for name in names]
    if calls.is_empty() or not any(change):
        return calls
    changes = translate(api["name"].to_physical().to_numpy(), np.array(change, np.int8).view(np.uint8)).view(np.int8)
    rows = np.flatnonzero(changes)
    borders = api[rows].select("process", "start", pl.Series("change", changes[rows]).cast(pl.Int64))
    depth = pl.col("change").cum_sum()  # an end without its begin does not make it negative
    depths = borders.select("process", "start", (depth - depth.cum_min().clip(upper_bound=0)).over("process"))
    before = calls.join_asof(depths, on="start", by="process", check_sortedness=False)  # api is sorted
    return calls.filter(before["change"].fill_null(0) == 0)


def _without_failed(calls: pl.DataFrame, failed: pl.DataFrame | None) -> pl.DataFrame:
    return calls if failed is None else calls.join(failed, on=["process", "correlation"], how="anti")


def _are_queued(calls: pl.DataFrame, operations: pl.DataFrame) -> pl.Series:
    """Return a mask of the calls after the last launch with work, made while the GPU was busy with earlier work."""
    if calls.is_empty():
        return pl.Series([], dtype=pl.Boolean)
    last = operations.group_by("process").agg(pl.col("launch").max(), pl.col("end").max())
    joined = calls.join(last, on="process", how="left", maintain_order="left")
    return ((joined["row"] > joined["launch"]) & (joined["start"] <= joined["end"])).fill_null(False)


def _by_process(
    lost: pl.DataFrame, api: pl.DataFrame, worked: NDArray[np.bool_], kind: NDArray[np.uint8]
) -> pl.DataFrame:
    keys = ["process", "kind"]
    rows = np.flatnonzero(worked) if len(lost) else np.empty(0, np.int64)
    counts = api[rows].select("process", pl.Series("kind", kind[rows])).group_by(keys).agg(worked=pl.len())
    return (
        lost.group_by(keys)
        .agg(lost=pl.len())
        .join(counts, on=keys, how="left")
        .select(
            "process",
            pl.col("kind").replace_strict(dict(enumerate(KINDS, 1)), return_dtype=pl.String),
            "lost",
            total=pl.col("lost") + pl.col("worked").fill_null(0),
        )
        .sort("process", "kind")
    )
