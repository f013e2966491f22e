"""CUDA events that the profiler lost: launches without GPU work, and ranges after the last CUDA event.

What a part of a capture shows of its calls merges with what the next part shows. A complete capture is one part.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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


class CallPart(NamedTuple):
    """What a part of a capture shows of its calls.

    `worked` counts the calls with GPU work, by process and kind (a number in KINDS). `missing` counts the launches
    without work (process, kind, waits, ended, count). `waits` marks those after the last call with work of their
    process in the part that were made while the GPU was busy. `ended` is the number of stream captures that began
    before the part and end in it before the call: if more were in progress, the launch becomes a node of a CUDA graph.
    `captures` has the stream captures that begin minus those that end in the part (process, change), and the lowest
    such number in it (`low`, at most 0). `ends` has the last end of calls and work of each process with calls.
    """

    worked: Mapping[tuple[int, int], int]
    missing: pl.DataFrame
    captures: pl.DataFrame
    ends: Mapping[int, int]

    @classmethod
    def build(
        cls,
        api: pl.DataFrame,
        operations: pl.DataFrame,
        failed: pl.DataFrame,
        own: slice = slice(None),
        links: Links | None = None,
    ) -> CallPart:
        """Count the rows `own` of Trace.api. `failed` is Trace.failed, and `links` are those of `api`."""
        kinds = _launch_kinds(api)
        has_work, is_own = _have_work(api, operations), np.zeros(len(api), np.bool_)
        is_own[own] = True
        rows, working = np.flatnonzero(is_own & ~has_work & (kinds > 0)), np.flatnonzero(is_own & has_work)
        calls = api.select("start", "process", "correlation")[rows]
        calls = calls.with_columns(kind=pl.Series(kinds[rows]), row=pl.Series(rows))
        # A copy of all columns of every launch would be large.
        worked = api.select("process")[working].with_columns(kind=pl.Series(kinds[working]), row=pl.Series(working))
        if len(calls):
            first = (links or Links.from_api(api)).rows(calls)  # old exports list a call under two names
            calls = calls.filter((first == calls["row"]).fill_null(False))
            calls = calls.join(failed, on=["process", "correlation"], how="anti", maintain_order="left")
        captures = _captures(api[own])
        calls = _with_waits(_without_captured(calls, captures), worked, operations)
        return cls(
            _count_worked(worked),
            calls.group_by("process", "kind", "waits", "ended").agg(count=pl.len()),
            captures.group_by("process").agg(pl.col("change", "low").last()),
            _last_ends(api, operations),
        )


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


def _captures(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that begin or end a stream capture (process, start), and what CallPart.captures has up to them.

    `calls` are rows of Trace.api.
    """
    names = categories(calls["name"])
    change = [bool(CAPTURE_BEGIN.fullmatch(name)) - bool(CAPTURE_END.fullmatch(name)) for name in names]
    codes = calls["name"].to_physical().to_numpy() if any(change) else np.empty(0, np.uint8)
    changes = translate(codes, np.array(change, np.int8).view(np.uint8)).view(np.int8)
    rows = np.flatnonzero(changes)
    depth = pl.col("change").cum_sum()
    borders = calls[rows].select("process", "start", change=pl.Series(changes[rows], dtype=pl.Int64))
    return borders.select(
        "process", "start", depth.over("process"), low=depth.cum_min().clip(upper_bound=0).over("process")
    )


def _without_captured(calls: pl.DataFrame, captures: pl.DataFrame) -> pl.DataFrame:
    """Leave out launches during a stream capture of their process that began in the part, and add CallPart's `ended`.

    They become nodes of a CUDA graph.
    """
    before = calls.join_asof(captures, on="start", by="process", check_sortedness=False)  # both are sorted
    low = pl.col("low").fill_null(0)
    return before.filter(pl.col("change").fill_null(0) == low).with_columns(ended=-low)


def _with_waits(calls: pl.DataFrame, worked: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Add the column `waits` of CallPart.missing to calls."""
    if calls.is_empty():
        return calls.with_columns(waits=pl.lit(value=False))
    last = worked.group_by("process").agg(last=pl.col("row").max())
    reach = operations.group_by("process").agg(pl.col("end").max())
    joined = calls.join(last, on="process", how="left").join(reach, on="process", how="left")
    waits = (pl.col("row") > pl.col("last").fill_null(-1)) & (pl.col("start") <= pl.col("end")).fill_null(value=False)
    return joined.with_columns(waits=waits)


def _count_worked(worked: pl.DataFrame) -> dict[tuple[int, int], int]:
    """Return the number of calls by process and kind."""
    only = only_process(worked)
    if only is not None:
        counts = np.bincount(worked["kind"].to_numpy())
        return {(only, kind): int(counts[kind]) for kind in np.flatnonzero(counts).tolist()}
    return {(process, kind): count for process, kind, count in worked.group_by("process", "kind").len().rows()}


def _last_ends(api: pl.DataFrame, operations: pl.DataFrame) -> dict[int, int]:
    """Return the last end of the calls and the work of each process with calls."""
    calls, work = (dict(_latest(frame)) for frame in (api, operations))
    return {process: max(end, work.get(process, end)) for process, end in calls.items()}


def _latest(frame: pl.DataFrame) -> list[tuple[int, int]]:
    only = only_process(frame)
    if only is not None:
        return [(only, int(frame["end"].to_numpy().max()))]
    return frame.group_by("process").agg(pl.col("end").max()).rows()


def check_events(
    parts: Sequence[CallPart],
    ranges: pl.DataFrame,
    masks_of: Callable[[Sequence[EarlierRanges]], Sequence[Mask]],
) -> Iterator[Check]:
    """Yield a Note for each kind of CUDA events that a capture lost, and a line for each check that finds none.

    `parts` of the capture adjoin, in the order of time; `ranges` is Trace.ranges. `masks_of` returns the result of
    are_calling for each item, for all parts together.
    """
    yield from _check_launches(merge_launches(parts))
    processes = sorted({process for part in parts for process in part.ends})
    ends = {process: max(part.ends[process] for part in parts if process in part.ends) for process in processes}
    if not ends or ranges.is_empty():
        return
    # Ranges after the last CUDA event of their process, of a name whose earlier ranges have CUDA calls, lack events.
    suspect = [part for process, last in ends.items() if (part := _later_ranges(process, last, ranges))]
    masks = masks_of([part.earlier for part in suspect]) if suspect else ()
    notes = [note for part, mask in zip(suspect, masks, strict=True) if (note := _early_end(part, mask))]
    yield from notes or ("no range that usually calls CUDA follows the last CUDA event",)


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


def merge_launches(parts: Sequence[CallPart]) -> LaunchCounts:
    """Return the launches of all parts together; see check_events."""
    worked, lost, queued = Counter[tuple[int, int]](), Counter[tuple[int, int]](), 0
    working = [{process for process, _ in part.worked} for part in parts]
    first, last = dict[int, int](), dict[int, int]()
    for number, processes in enumerate(working):
        first = dict.fromkeys(processes, number) | first
        last |= dict.fromkeys(processes, number)
    in_progress: dict[int, int] = {}
    for number, part in enumerate(parts):
        worked.update({key: count for key, count in part.worked.items() if key[1]})
        for process, kind, waits, ended, count in part.missing.rows():
            if in_progress.get(process, 0) > ended:
                continue
            if waits and process in first and first[process] <= number and last[process] <= number:
                queued += count
            else:
                lost[process, kind] += count
        for process, change, low in part.captures.rows():
            in_progress[process] = change + max(in_progress.get(process, 0), -low)
    rows = (LostLaunches(key[0], KINDS[key[1]], count, count + worked[key]) for key, count in lost.items())
    return LaunchCounts(worked.total() + queued + lost.total(), queued, sorted(rows))


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


class EarlierRanges(NamedTuple):
    """Ranges of a process that end before its last CUDA event, and whose names later ranges have."""

    process: int
    start: Times
    end: Times


class _LaterRanges(NamedTuple):
    """The names of ranges of a process after its `last` CUDA event, and the earlier ranges of these names."""

    last: int
    later: pl.Series
    names: pl.Series
    earlier: EarlierRanges


def are_calling(api: pl.DataFrame, ranges: EarlierRanges) -> Mask:
    """Return whether a call of Trace.api begins in each range."""
    calls = api.filter(pl.col("process") == ranges.process)["start"].to_numpy()
    if len(calls) == 0:
        return np.zeros(len(ranges.start), np.bool_)
    place = np.searchsorted(calls, ranges.start)
    calling: Mask = (place < len(calls)) & (calls.take(place, mode="clip") < ranges.end)
    return calling


def _later_ranges(process: int, last: int, ranges: pl.DataFrame) -> _LaterRanges | None:
    own = pl.col("process") == process
    later = ranges.filter(own & (pl.col("start") > last)).select(_folded_name())
    if len(later) < MIN_LATER_RANGES:
        return None
    earlier = ranges.filter(own & (pl.col("end") <= last)).select("start", "end", _folded_name())
    earlier = earlier.filter(pl.col("name").is_in(later["name"].unique().to_list()))
    return _LaterRanges(
        last,
        later["name"],
        earlier["name"],
        EarlierRanges(process, *(earlier[at].to_numpy() for at in ("start", "end"))),
    )


def _early_end(part: _LaterRanges, is_calling: Mask) -> Note | None:
    shares = pl.DataFrame({"name": part.names, "calls": is_calling}).group_by("name").agg(pl.col("calls").mean())
    usual = shares.filter(pl.col("calls") >= MIN_WORKING_SHARE)["name"]
    lost = part.later.filter(part.later.is_in(usual.to_list()))
    if len(lost) < MIN_LATER_RANGES:
        return None
    return Note(
        "cuda_ends_early",
        f"the CUDA events of process {part.earlier.process} end at {part.last / 1e9:.3f} s, but {len(lost):,} ranges "
        f"such as {lost[0][:MAX_NAME_LETTERS]!r} follow: the CUDA events after that moment were not recorded (a full "
        "buffer, or the CUDA capture stopped), so figures of later ranges and iterations are wrong",
        ("iterations", "nvtx"),
    )


def _folded_name() -> pl.Expr:
    return pl.col("name").cast(pl.String).str.replace_all(r"\d+", "#")
