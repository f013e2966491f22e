"""GPU work that the profiler lost, doubled or misstated: launches without work, doubled rows, ends that cannot be.

A stream runs one operation at a time. Programmatic dependent launches overlap by some us: the largest overlap is 13 us
in 67 traces of torch.profiler and in the nsys captures with kernels among 142. Captures of AMD GPUs, and of old
drivers, have single rows that last seconds, and merged traces have rows twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, blocks
from traceview.model.trace import KINDS, Note
from traceview.model.units import duration, quantity, share
from traceview.normalise.api import Links, only_process
from traceview.normalise.codes import categories, translate
from traceview.normalise.health import GPU_FIGURES, MIN_LOST_SHARE, Check
from traceview.normalise.valid_rows import sort_by_time

LAUNCHES = {
    "kernel": re.compile(r"(?:cuda|cu|hip(?:Ext)?(?:Module)?)Launch(?!Host)\w*"),
    "CUDA graph": re.compile(r"(?:cuda|cu|hip)GraphLaunch"),
}
LAUNCH_KINDS = ("other", *LAUNCHES)
CAPTURE_BEGIN = re.compile(r"(?:cuda|cu|hip)StreamBeginCapture\w*")
CAPTURE_END = re.compile(r"(?:cuda|cu|hip)StreamEndCapture")
MIN_LATER_RANGES, MIN_WORKING_SHARE = 2, 0.9
MAX_NAME_LETTERS = 60
MIN_SKIPS = 10  # holes; a few show a library that starts, or a damaged id
MIN_SKIPPED = 1000  # ids from one call to the next; calls that are not traced skip tens or hundreds
MAX_QUEUED = 1024  # launches that wait in a queue of the driver, after which a launch call blocks

Mask = NDArray[np.bool_]


class LostLaunches(NamedTuple):
    """The launches of one kind in a process: those without work and all, without those that need no work.

    `fails` is whether a call of the process failed.
    """

    process: int
    kind: str
    lost: int
    total: int
    fails: bool


class LaunchCounts(NamedTuple):
    """The launch calls that should have GPU work: `queued` of the `total` waited in a stream when the capture ended.

    `rows` is model.LOST.
    """

    total: int
    queued: int
    lost: Sequence[LostLaunches]
    rows: pl.DataFrame

    @property
    def lost_fraction(self) -> float:
        """The share of the launches whose work was lost."""
        return sum(row.lost for row in self.lost) / max(self.total, 1)


def count_launches(
    api: pl.DataFrame, operations: pl.DataFrame, failed: pl.DataFrame, links: Links | None = None
) -> LaunchCounts:
    """Return the launches of a capture. `failed` is Trace.failed, and `links` are those of `api`.

    Launches waited in a stream at the end if they came after the last call with work of their process and while the GPU
    was busy, and if they are at most MAX_QUEUED.
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
    # A copy of all columns of every launch would be large, and one key is faster than two.
    working = np.flatnonzero(has_work)
    key = api["process"].to_numpy()[working].astype(np.int64) * len(LAUNCH_KINDS) + kinds[working]
    counts = pl.DataFrame({"key": key, "row": working}).group_by("key").agg(worked=pl.len(), last=pl.col("row").max())
    process, kind = np.divmod(counts["key"].to_numpy(), len(LAUNCH_KINDS))
    counts = counts.with_columns(process=pl.Series(process, dtype=pl.Int32), kind=pl.Series(kind, dtype=pl.UInt8))
    last = counts.group_by("process").agg(pl.col("last").max())
    reach = operations.group_by("process").agg(pl.col("end").max())
    joined = calls.join(last, on="process", how="left").join(reach, on="process", how="left")
    waits = (pl.col("row") > pl.col("last")) & (pl.col("start") <= pl.col("end"))
    joined = joined.with_columns(queued=waits.fill_null(value=False))
    joined = joined.with_columns(pl.col("queued") & (pl.col("queued").sum().over("process") <= MAX_QUEUED))
    lost = joined.filter(~pl.col("queued")).group_by("process", "kind").agg(lost=pl.len())
    with_work = counts.filter(pl.col("kind") > 0).select("process", "kind", "worked")
    sums = lost.join(with_work, on=["process", "kind"], how="left").fill_null(0).sort("process", "kind")
    fails = set(failed["process"].to_list())
    known = [
        LostLaunches(process, LAUNCH_KINDS[kind], count, count + more, process in fails)
        for process, kind, count, more in sums.rows()
    ]
    without = joined.select(pl.col("row").cast(pl.Int32).alias("launch"), "queued").sort("launch")
    return LaunchCounts(
        int(with_work["worked"].sum()) + len(calls), len(calls) - int(lost["lost"].sum()), known, without
    )


def unrecorded_calls(api: pl.DataFrame) -> int:
    """Return the number of calls that nsys lost, if it lost most of them for most of the time; else 0.

    Each call of a process has the next correlation id, recorded or not. Calls that load a library or build a plan skip
    many ids once; lost buffers skip nearly all of them, for nearly all of the time between the first call and the last.
    """
    ids = api.select("process", "start", pl.col("correlation").cast(pl.Int64)).filter(pl.col("correlation") > 0)
    ids = ids.with_columns(pl.col("correlation").cum_max().over("process"))
    steps = ids.select(pl.col("correlation", "start").diff().over("process")).drop_nulls()
    skips = steps.filter(pl.col("correlation") >= MIN_SKIPPED)
    usual = 2 * len(skips) < len(steps)  # else ids do not count calls
    if len(skips) < MIN_SKIPS or not usual or any(2 * skips[name].sum() < steps[name].sum() for name in steps.columns):
        return 0
    return int(skips["correlation"].sum())


def _have_work(api: pl.DataFrame, operations: pl.DataFrame) -> Mask:
    has_work = np.zeros(len(api), np.bool_)
    has_work[operations["launch"].drop_nulls().to_numpy()] = True
    return has_work


def _launch_kinds(api: pl.DataFrame) -> NDArray[np.uint8]:
    """Return the kind of each call, a number in LAUNCH_KINDS."""
    patterns = list(enumerate(LAUNCHES.values(), 1))
    kinds = [
        next((kind for kind, pattern in patterns if pattern.fullmatch(name)), 0) for name in categories(api["name"])
    ]
    return translate(api["name"].to_physical().to_numpy(), np.array(kinds, np.uint8))


def graphs_without_work(api: pl.DataFrame, operations: pl.DataFrame) -> Times:
    """Return the calls (rows of Trace.api) that launch a CUDA graph of which the trace has no work."""
    if not any(LAUNCHES["CUDA graph"].fullmatch(name) for name in categories(api["name"])):
        return np.zeros(0, np.int64)
    return np.flatnonzero((_launch_kinds(api) == LAUNCH_KINDS.index("CUDA graph")) & ~_have_work(api, operations))


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
    launches: LaunchCounts, api: pl.DataFrame, operations: pl.DataFrame, ranges: pl.DataFrame
) -> Iterator[Check]:
    """Yield a Note for each kind of CUDA events that a capture lost, and a line for each check that finds none.

    The frames are those of a Trace, and `launches` are theirs.
    """
    yield from _check_launches(launches)
    ends = _last_ends(api, operations)
    if ends and len(ranges):
        notes = [note for process, last in ends.items() if (note := _early_end(process, last, ranges, api))]
        yield from notes or ("no range that usually calls CUDA follows the last CUDA event",)


def _check_launches(launches: LaunchCounts) -> Iterator[Check]:
    total, lost = launches.total, sum(row.lost for row in launches.lost)
    for row in launches.lost:
        if row.lost > MIN_LOST_SHARE * row.total:
            yield _lost_launches(row, is_alone=total == lost)
    if total and lost <= MIN_LOST_SHARE * total:
        rest = f"; {launches.queued:,} were still queued at its end" if launches.queued else ""
        yield f"{total - lost - launches.queued:,} of {total:,} launches have their GPU work in the capture{rest}"


def _lost_launches(row: LostLaunches, *, is_alone: bool) -> Note:
    """Return the note on launches without work; `is_alone` is whether no launch of the capture has any."""
    what = f"{row.lost:,} of {row.total:,} {row.kind} launches of process {row.process}"
    text = f"{what} ({share(row.lost, row.total)}) have no GPU work in the capture"
    are_graphs = row.kind == "CUDA graph"
    if are_graphs:
        remedy = "their replays were not recorded; use a newer profiler, or with nsys --cuda-graph-trace=node"
    elif row.fails:
        remedy = "a call of the process failed, and work that fails has no record"
    elif row.lost == row.total and not is_alone:
        remedy = "that of other processes is there: this work failed, or the profiler lost it"
    elif row.lost == row.total:
        remedy = (
            "work that fails has no record; otherwise the profiler got no events from the GPU, as on WSL2, without "
            "permission, or where hardware tracing fails: use a newer driver and profiler, or nsys -t cuda-sw"
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


MAX_OVERLAP = 100_000  # ns between the start of an operation and the end of the one before it on its stream
ROW_KEY = ("source", "stream", "start", "end", "correlation", "name", "bytes")  # nodes of a graph share a launch
UNIFIED = [KINDS.index(kind) for kind in KINDS if kind.startswith("um_")]  # migrations run on no stream
MIN_USUAL = 0.5  # share of the instances of a kernel; nodes of a graph that run side by side do so in each replay


class Mended(NamedTuple):
    """What is mended: of `total` operations that remain, those that are `cut`, and the number of `doubled` rows.

    `cut` has the start of each, its end, which is now that of the next one's beginning, its correlation id, and the ns
    that were cut off.
    """

    total: int
    doubled: int
    cut: pl.DataFrame


def mended_work(operations: pl.DataFrame) -> tuple[pl.DataFrame, Mended]:
    """Return GPU work, sorted by (start, end), without doubled rows and without durations that cannot be.

    Work that ends more than MAX_OVERLAP after the next operation of its stream begins ends there. `operations` is
    model.OPERATIONS without the column `launch`.
    """
    total = len(operations)
    if (same := _equal_times(operations)) is not None:
        operations = _without_doubled(operations, same)
    start, end = (operations[name].to_numpy() for name in ("start", "end"))
    rows, ends = _impossible_ends(operations, start, end)
    cut = operations.select("start", "correlation")[rows]
    cut = cut.with_columns(end=pl.Series(ends), removed=pl.Series(end[rows] - ends))
    if len(rows):
        end = end.copy()
        end[rows] = ends
        operations = sort_by_time(operations.with_columns(pl.Series("end", end)))
    return operations, Mended(len(operations), total - len(operations), cut)


def _equal_times(operations: pl.DataFrame) -> Times | None:
    """Return the rows whose start and end are those of the row before or after them; None if there are none."""
    start, end = (operations[name].to_numpy() for name in ("start", "end"))
    equal = [
        np.flatnonzero((start[1:][block] == start[:-1][block]) & (end[1:][block] == end[:-1][block])) + block.start
        for block in blocks(max(len(start) - 1, 0))
    ]
    rows = np.concatenate([np.zeros(0, np.int64), *equal])
    return np.union1d(rows, rows + 1) if len(rows) else None


def _without_doubled(operations: pl.DataFrame, same: Times) -> pl.DataFrame:
    """Leave out the second of equal rows; `same` are those with equal times. Migrations have no correlation id."""
    key = operations[same].select(*ROW_KEY)
    again = ~key.select(pl.struct(pl.all()).is_first_distinct()).to_series().to_numpy()
    again &= (key["correlation"] != 0).to_numpy()
    if not again.any():
        return operations
    keep = np.ones(len(operations), np.bool_)
    keep[same[again]] = False
    return operations.filter(pl.Series(keep))


def _impossible_ends(operations: pl.DataFrame, start: Times, end: Times) -> tuple[Times, Times]:
    """Return the rows that reach too far into the next work of their stream, and when that begins."""
    none = np.zeros(0, np.int64)
    # The next operation of any stream begins no later than that of the same one.
    if not any((end[:-1][block] - start[1:][block] > MAX_OVERLAP).any() for block in blocks(max(len(start) - 1, 0))):
        return none, none
    stream = operations["stream"].to_numpy()
    order = np.argsort(stream, kind="stable")
    begins = start[order]
    reach = (end[order[:-1]] - begins[1:] > MAX_OVERLAP) & (stream[order[:-1]] == stream[order[1:]])
    place = np.flatnonzero(reach)
    if not len(place):
        return none, none
    rows, after = order[place], order[place + 1]
    kinds = operations["kind"].to_physical().fill_null(len(KINDS)).to_numpy()
    impossible = ~np.isin(kinds[rows], UNIFIED) & ~np.isin(kinds[after], UNIFIED)
    impossible &= ~_usual_siblings(operations, rows, after)
    return rows[impossible], begins[place + 1][impossible]


def _usual_siblings(operations: pl.DataFrame, rows: Times, after: Times) -> Mask:
    """Return which work overlaps with the next work of its own launch, as most work with its name does.

    The nodes of a CUDA graph, and the copies of one batch, can run side by side on what the capture calls one stream.
    """
    correlation = operations["correlation"].to_numpy()
    siblings: Mask = (correlation[rows] == correlation[after]) & (correlation[rows] != 0)
    if not siblings.any():
        return siblings
    names = operations["name"].to_physical().to_numpy()
    overlapping = np.bincount(names[rows[siblings]], minlength=int(names.max()) + 1)
    usual: Mask = overlapping >= MIN_USUAL * np.maximum(np.bincount(names), 1)
    siblings &= usual[names[rows]]
    return siblings


def check_mended(mended: Mended) -> Iterator[Check]:
    """Yield a Note on work that was cut, and on rows that were left out because they are there twice."""
    if count := len(mended.cut):
        longest = duration(int(mended.cut["removed"].to_numpy().max()))
        yield Note(
            "cut_work",
            f"{count:,} of {quantity(mended.total, 'GPU operation')} ({share(count, mended.total)}) "
            f"{'ends' if count == 1 else 'end'} long after the next operation of the stream begins, by "
            f"{longest} at most: a stream runs one at a time, so each counts up to "
            "that moment; the profiler or the driver wrote wrong times, as those of AMD GPUs do",
            GPU_FIGURES if count > MIN_LOST_SHARE * mended.total else (),
        )
    if mended.doubled:
        yield Note(
            "doubled_work",
            f"{quantity(mended.doubled, 'row')} of GPU work "
            f"{'is' if mended.doubled == 1 else 'are'} in the capture twice (equal stream, times and launch), as a "
            "merge of files leaves them, and each counts once",
        )
    if mended.total and not mended.doubled + len(mended.cut):
        yield "no GPU work is there twice, or ends after the next operation of its stream begins"
