"""CUDA events that the profiler lost: launches without GPU work, and ranges after the last CUDA event."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.trace import Note
from traceview.model.units import share
from traceview.normalise.api import Links, only_process
from traceview.normalise.codes import categories, translate
from traceview.normalise.health import GPU_FIGURES, MIN_LOST_SHARE, Check

LAUNCHES = {
    "kernel": re.compile(r"(?:cuda|cu|hip(?:Ext)?(?:Module)?)Launch(?!Host)\w*"),
    "CUDA graph": re.compile(r"(?:cuda|cu|hip)GraphLaunch"),
}
KINDS = ("other", *LAUNCHES)
CAPTURE_BEGIN = re.compile(r"(?:cuda|cu|hip)StreamBeginCapture\w*")
CAPTURE_END = re.compile(r"(?:cuda|cu|hip)StreamEndCapture")
MIN_LATER_RANGES, MIN_WORKING_SHARE = 2, 0.9
MAX_NAME_LETTERS = 60

Mask = NDArray[np.bool_]


class LostLaunches(NamedTuple):
    """The launches of one kind in a process: those without work and all, without those that need no work."""

    process: int
    kind: str
    lost: int
    total: int


class LaunchCounts(NamedTuple):
    """The launch calls that should have GPU work: `queued` of the `total` waited in a stream when the capture ended."""

    total: int
    queued: int
    lost: Sequence[LostLaunches]


def count_launches(
    api: pl.DataFrame, operations: pl.DataFrame, failed: pl.DataFrame, links: Links | None = None
) -> LaunchCounts:
    """Return the launches of a capture. `failed` is Trace.failed, and `links` are those of `api`.

    A launch waited in a stream at the end if it came after the last call with work of its process and while the GPU
    was busy.
    """
    kinds, has_work = _launch_kinds(api), _have_work(api, operations)
    rows = np.flatnonzero(~has_work & (kinds > 0))
    calls = api.select("start", "process", "correlation")[rows]
    calls = calls.with_columns(kind=pl.Series(kinds[rows]), row=pl.Series(rows))
    if len(calls):
        first = (links or Links.from_api(api)).rows(calls)  # old exports list a call under two names
        calls = calls.filter((first == calls["row"]).fill_null(False))
        calls = calls.join(failed, on=["process", "correlation"], how="anti", maintain_order="left")
        calls = _without_captured(calls, api)
    # A copy of all columns of every launch would be large.
    working = np.flatnonzero(has_work)
    worked = api.select("process")[working].with_columns(kind=pl.Series(kinds[working]), row=pl.Series(working))
    last = worked.group_by("process").agg(last=pl.col("row").max())
    reach = operations.group_by("process").agg(pl.col("end").max())
    joined = calls.join(last, on="process", how="left").join(reach, on="process", how="left")
    waits = (pl.col("row") > pl.col("last")) & (pl.col("start") <= pl.col("end"))
    lost = joined.filter(~waits.fill_null(value=False)).group_by("process", "kind").agg(lost=pl.len())
    with_work = worked.filter(pl.col("kind") > 0).group_by("process", "kind").agg(worked=pl.len())
    sums = lost.join(with_work, on=["process", "kind"], how="left").fill_null(0).sort("process", "kind")
    known = [LostLaunches(process, KINDS[kind], count, count + more) for process, kind, count, more in sums.rows()]
    return LaunchCounts(int(with_work["worked"].sum()) + len(calls), len(calls) - int(lost["lost"].sum()), known)


def _have_work(api: pl.DataFrame, operations: pl.DataFrame) -> Mask:
    has_work = np.zeros(len(api), np.bool_)
    has_work[operations["launch"].drop_nulls().to_numpy()] = True
    return has_work


def _launch_kinds(api: pl.DataFrame) -> NDArray[np.uint8]:
    """Return the kind of each call, a number in KINDS."""
    patterns = list(enumerate(LAUNCHES.values(), 1))
    kinds = [
        next((kind for kind, pattern in patterns if pattern.fullmatch(name)), 0) for name in categories(api["name"])
    ]
    return translate(api["name"].to_physical().to_numpy(), np.array(kinds, np.uint8))


def graphs_without_work(api: pl.DataFrame, operations: pl.DataFrame) -> Times:
    """Return the calls (rows of Trace.api) that launch a CUDA graph of which the trace has no work."""
    if not any(LAUNCHES["CUDA graph"].fullmatch(name) for name in categories(api["name"])):
        return np.zeros(0, np.int64)
    return np.flatnonzero((_launch_kinds(api) == KINDS.index("CUDA graph")) & ~_have_work(api, operations))


def _without_captured(calls: pl.DataFrame, api: pl.DataFrame) -> pl.DataFrame:
    """Leave out launches during a stream capture of their process: they become nodes of a CUDA graph."""
    names = categories(api["name"])
    change = [bool(CAPTURE_BEGIN.fullmatch(name)) - bool(CAPTURE_END.fullmatch(name)) for name in names]
    if not any(change):
        return calls
    changes = translate(api["name"].to_physical().to_numpy(), np.array(change, np.int8).view(np.uint8)).view(np.int8)
    rows = np.flatnonzero(changes)
    depth = pl.col("change").cum_sum()
    # A capture that ends without a begin began before the trace.
    open_captures = depth - depth.cum_min().clip(upper_bound=0)
    borders = api.select("process", "start")[rows].with_columns(change=pl.Series(changes[rows], dtype=pl.Int64))
    borders = borders.select("process", "start", depth=open_captures.over("process"))
    before = calls.join_asof(borders, on="start", by="process", check_sortedness=False)  # both are sorted
    return before.filter(pl.col("depth").fill_null(0) == 0)


def _last_ends(api: pl.DataFrame, operations: pl.DataFrame) -> dict[int, int]:
    """Return the last end of the calls and the work of each process with calls."""
    calls, work = (dict(_latest(frame)) for frame in (api, operations))
    return {process: max(end, work.get(process, end)) for process, end in sorted(calls.items())}


def _latest(frame: pl.DataFrame) -> list[tuple[int, int]]:
    only = only_process(frame)
    if only is not None:
        return [(only, int(frame["end"].to_numpy().max()))]
    return frame.group_by("process").agg(pl.col("end").max()).rows()


def check_events(
    api: pl.DataFrame, operations: pl.DataFrame, failed: pl.DataFrame, ranges: pl.DataFrame, links: Links
) -> Iterator[Check]:
    """Yield a Note for each kind of CUDA events that a capture lost, and a line for each check that finds none.

    The frames are those of a Trace, and `links` are those of `api`.
    """
    yield from _check_launches(count_launches(api, operations, failed, links))
    ends = _last_ends(api, operations)
    if ends and len(ranges):
        notes = [note for process, last in ends.items() if (note := _early_end(process, last, ranges, api))]
        yield from notes or ("no range that usually calls CUDA follows the last CUDA event",)


def _check_launches(launches: LaunchCounts) -> Iterator[Check]:
    for row in launches.lost:
        if row.lost > MIN_LOST_SHARE * row.total:
            yield _lost_launches(row)
    total, lost = launches.total, sum(row.lost for row in launches.lost)
    if total and lost <= MIN_LOST_SHARE * total:
        rest = f"; {launches.queued:,} were still queued at its end" if launches.queued else ""
        yield f"{total - lost - launches.queued:,} of {total:,} launches have their GPU work in the capture{rest}"


def _lost_launches(row: LostLaunches) -> Note:
    what = f"{row.lost:,} of {row.total:,} {row.kind} launches of process {row.process}"
    text = f"{what} ({share(row.lost, row.total)}) have no GPU work in the capture"
    are_graphs = row.kind == "CUDA graph"
    if are_graphs:
        remedy = "their replays were not recorded; use a newer profiler, or with nsys --cuda-graph-trace=node"
    elif row.lost == row.total:
        remedy = (
            "the profiler got no events from the GPU, as on WSL2, without permission, or where hardware tracing fails; "
            "use a newer driver and profiler, or with nsys -t cuda-sw"
        )
    else:
        remedy = "these events were lost, so busy time is too short and idle time too long; capture fewer steps"
    return Note("lost_graph_replays" if are_graphs else "lost_launches", f"{text}: {remedy}", GPU_FIGURES)


def _early_end(process: int, last: int, ranges: pl.DataFrame, api: pl.DataFrame) -> Note | None:
    """Return a note if ranges of a process follow its `last` CUDA event, and earlier ones of their names call CUDA."""
    own = pl.col("process") == process
    later = ranges.filter(own & (pl.col("start") > last)).select(_folded_name())["name"]
    if len(later) < MIN_LATER_RANGES:
        return None
    earlier = ranges.filter(own & (pl.col("end") <= last)).select("start", "end", _folded_name())
    earlier = earlier.filter(pl.col("name").is_in(later.unique().to_list()))
    calls = api.filter(own)["start"].to_numpy()
    place = np.searchsorted(calls, earlier["start"].to_numpy())
    is_calling = (place < len(calls)) & (calls.take(place, mode="clip") < earlier["end"].to_numpy())
    shares = earlier.with_columns(calls=is_calling).group_by("name").agg(pl.col("calls").mean())
    usual = shares.filter(pl.col("calls") >= MIN_WORKING_SHARE)["name"]
    lost = later.filter(later.is_in(usual.to_list()))
    if len(lost) < MIN_LATER_RANGES:
        return None
    return Note(
        "cuda_ends_early",
        f"the CUDA events of process {process} end at {last / 1e9:.3f} s, but {len(lost):,} ranges "
        f"such as {lost[0][:MAX_NAME_LETTERS]!r} follow: the CUDA events after that moment were not recorded (a full "
        "buffer, or the CUDA capture stopped), so figures of later ranges and iterations are wrong",
        ("iterations", "nvtx"),
    )


def _folded_name() -> pl.Expr:
    return pl.col("name").cast(pl.String).str.replace_all(r"\d+", "#")
