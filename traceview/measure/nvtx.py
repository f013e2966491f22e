"""NVTX ranges: their names, their nesting, and the GPU work that belongs to them.

docs/definitions.md "NVTX projected on the GPU" defines which operations belong to a range, and "Iterations" which names
are equal.

`Nesting` answers by moment. `Stretches` cuts each thread's time where ranges open or close, so that millions of calls
need one binary search each.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, sorted_unique
from traceview.measure.activity import overlaps_window
from traceview.measure.shared_work import launch_rows, once_per_frame
from traceview.model.names import fold_numbers
from traceview.model.sizes import empty_frame
from traceview.model.trace import LIBRARY_DOMAINS, PROJECTED, Trace, enum_texts

LIBRARY_NAMES = (
    r"^(aten|autograd|torch|c10d|cudnn|cublas|cub|thrust|executor_utils|GpuLower|\w*Fusion\w*)::|^nccl:|^torch\."
    r"|\bop_id\b|^MPI_|^P?nccl[A-Z]|^## Call CompiledFxGraph|^Torch-Compiled Region|^CompiledFunction"
    r"|^Optimizer\.|^enumerate\(DataLoader\)|^DistributedDataParallel\.forward|^autograd|^(Xla[A-Z]\w*|Thunk|TSL):"
    r"|^gc generation \d$|^\[DALI\]|^myelin[A-Z]"
)
# A function that JAX compiled, such as `jit_step`. XLA numbers these, and not the modules that it only tries.
JITTED = r"^XlaModule:#hlo_module=p?jit_.*program_id="
MAX_COUNTERS = 4  # numbers in a name that are compared
MIN_INCREASING = 0.9
MAX_RESTARTS = 2  # a loop may run again, for example after its warm-up
# Words before a number that counts on in an outer loop, and before one that numbers the layers of a model.
COUNTER_WORDS, PART_WORDS = r"(?i)iter|step|batch|epoch|token|frame", r"(?i)layer|block|stage|level|chunk"
# Ranges that say that they are the step of a loop, as `ProfilerStep#7` of PyTorch's profiler.
STEP_WORDS = r"(?i)(^|[^a-z])(profiler)?(iter(ation)?|step)s?([^a-z]|$)"
# Ranges that say that they are a whole step, or a whole pass over a model.
PASS_WORDS = r"(?i)(^|[^a-z])(iter(ation)?|step|forward|backward|fwd|bwd)([^a-z]|$)"
# A numbered layer of a model, as `TransformerLayer_#`, or the path of a module in a list, as `model.layers.#`.
LAYER_NAME = r"(?i)layers?[^a-z]?#|\w\.#(\.|$)"


@once_per_frame
def without_library_ranges(ranges: pl.DataFrame) -> pl.DataFrame:
    """Leave out the ranges of libraries; `ranges` is model.RANGES."""
    domains, names = enum_texts(ranges["domain"]), enum_texts(ranges["name"])
    of_library = domains.is_in(LIBRARY_DOMAINS), names.str.contains(LIBRARY_NAMES) & ~names.str.contains(JITTED)
    other_domain, other_name = ((~mask).to_numpy() for mask in of_library)
    return ranges.filter(
        pl.Series(other_domain[_codes(ranges["domain"])] & other_name[_codes(ranges["name"])], dtype=pl.Boolean)
    )


@once_per_frame
def phase_names(ranges: pl.DataFrame) -> pl.Series:
    """Return the name of the phase of each range: without the numbers that count the ranges of a thread.

    `ranges` is in the order of model.RANGES. The numbers in a name are a counter if they increase from range to
    range: `iteration 7` becomes `iteration #`, but `layer 0` to `layer 11` in each iteration stay as they are. The
    number of an iteration may restart in an outer loop, that of a layer may not. The column is an Enum of the names
    that are used, in the order of the alphabet.
    """
    texts, code = enum_texts(ranges["name"]), _codes(ranges["name"])
    folded = fold_numbers(texts)
    has_number = (texts != folded).to_numpy()
    phases = pl.concat([texts, folded])
    if has_number.any():
        rows = np.flatnonzero(has_number[code])
        counted = _are_counted(code[rows], ranges["thread"].to_numpy()[rows], texts, folded)
        code = code.astype(np.int64)
        code[rows[counted]] += len(texts)
    used = np.bincount(code, minlength=len(phases)) > 0
    names = phases.filter(pl.Series(used)).unique().sort()
    return phases.set(pl.Series(~used), None).cast(pl.Enum(names))[code].alias("phase")


def _are_counted(code: NDArray[Any], thread: NDArray[Any], texts: pl.Series, folded: pl.Series) -> NDArray[np.bool_]:
    """Return which of some ranges have a counter in their name; `code` is the name's place in `texts`."""
    name = folded.rank("dense").to_numpy().astype(np.int64)[code]
    order = np.lexsort((name, thread))
    begins = (np.diff(thread[order], prepend=-1) != 0) | (np.diff(name[order], prepend=-1) != 0)
    group, code = np.cumsum(begins) - 1, code[order]
    change = np.zeros(len(code), np.int8)
    for value, known in reversed(_counters(texts)):
        number, compared = value[code], known[code] & ~begins
        compared[1:] &= known[code[:-1]]
        for sign, differs in ((1, number[1:] > number[:-1]), (-1, number[1:] < number[:-1])):
            change[1:][compared[1:] & differs] = sign
    lengths, increases, restarts = (
        np.bincount(group, weights) for weights in (None, (change == 1).astype(float), (change == -1).astype(float))
    )
    first = folded[code[begins]]
    counts, is_part = (first.str.contains(words).to_numpy() for words in (COUNTER_WORDS, PART_WORDS))
    may_restart = (restarts == 0) | ((restarts <= MAX_RESTARTS) | counts) & ~is_part
    is_counter = (increases >= MIN_INCREASING * (lengths - restarts - 1)) & may_restart
    counted = np.empty(len(code), np.bool_)
    counted[order] = is_counter[group]
    return counted


def _counters(names: pl.Series) -> list[tuple[Times, NDArray[np.bool_]]]:
    """Return the first numbers in each name, with their signs; false where there is none, or it is too large."""
    signed = names.str.replace_all(r"(^|[^\w.])-(\d+)", "${1}~${2}")
    texts = signed.str.extract_all(r"~?\d+")
    columns = (texts.list.get(index, null_on_oob=True) for index in range(MAX_COUNTERS))
    counters = [column.str.replace("~", "-", literal=True).cast(pl.Int64, strict=False) for column in columns]
    return [(counter.fill_null(0).to_numpy(), counter.is_not_null().to_numpy()) for counter in counters]


def _codes(column: pl.Series) -> NDArray[Any]:
    return column.to_physical().to_numpy()


class Nesting(NamedTuple):
    """Ranges by (thread, start, longest first). A place is an index in this order.

    `rows` are the caller's rows in this order. `before` is, for each place, the latest earlier place of the same thread
    whose range ends no sooner, or -1; all ranges between them end earlier. `edges` maps a thread to its first and last
    place.
    """

    rows: Times
    start: Times
    end: Times
    before: Times
    edges: dict[int, tuple[int, int]]

    @classmethod
    def build(cls, start: Times, end: Times, thread: Times) -> Nesting:
        """Index ranges, which may overlap in any way."""
        rows = np.lexsort((-end, start, thread))
        ordered = thread[rows].astype(np.int64)
        borders = np.flatnonzero(np.diff(ordered, prepend=-2, append=-2)) if len(rows) else rows
        edges = {int(ordered[first]): (int(first), int(last)) for first, last in pairwise(borders)}
        return cls(rows, start[rows], end[rows], _earlier_places(end[rows], borders), edges)

    def rows_at(self, place: Times) -> Times:
        """Return the caller's row of each place; -1 for place -1."""
        rows: Times = np.append(self.rows, -1)[place]
        return rows

    def innermost(self, thread: Times, moments: Times) -> Times:
        """Return the place of the open range with the latest start on each thread at each moment, or -1.

        A range is open at t if start <= t < end. If two ranges start together, the shorter one is inside.
        """
        place = np.full(len(moments), -1, np.int64)
        order = np.argsort(thread, kind="stable")
        ordered = thread[order]
        for known_thread, (first, last) in self.edges.items():
            low, high = np.searchsorted(ordered, (known_thread, known_thread + 1))
            queries = order[low:high]
            latest = first - 1 + np.searchsorted(self.start[first:last], moments[queries], side="right")
            place[queries] = np.where(latest < first, -1, latest)
        return self._first_open(place, moments)

    def enclosing(self, place: Times, moments: Times) -> Times:
        """Return the place of the next outer range that is open at each moment, or -1."""
        first = np.zeros(len(self.rows), np.bool_)
        first[[low for low, _ in self.edges.values()]] = True
        return self._first_open(np.where(first[place], -1, place - 1), moments)

    def levels(self, place: Times, moments: Times) -> Iterator[tuple[Times, Times]]:
        """Yield the queries that have an open range, and its place: innermost ranges first, then outwards."""
        query = np.flatnonzero(place >= 0)
        place = place[query]
        while len(query):
            yield query, place
            outer = self.enclosing(place, moments[query])
            some = np.flatnonzero(outer >= 0)
            query, place = query[some], outer[some]

    def _first_open(self, place: Times, moments: Times) -> Times:
        """Follow `before` from each place to a range that is open at the moment, or -1."""
        place = place.copy()
        queries = np.flatnonzero(place >= 0)
        while len(queries := queries[self.end[place[queries]] <= moments[queries]]):
            place[queries] = self.before[place[queries]]
            queries = queries[place[queries] >= 0]
        return place


def _earlier_places(end: Times, borders: Times) -> Times:
    """Return, for each place, the latest earlier place of its thread whose range ends no sooner, or -1.

    Each round follows the pointers found so far, so that chains halve and rounds are few.
    """
    before = np.arange(-1, len(end) - 1)
    before[borders[:-1]] = -1
    short = np.flatnonzero(before >= 0)
    while len(short := short[end[before[short]] < end[short]]):
        before[short] = before[before[short]]
        short = short[before[short] >= 0]
    return before


def innermost_ranges(start: Times, end: Times, thread: Times, query_thread: Times, moments: Times) -> Times:
    """Return the row of the innermost range that is open on each thread at each moment, or -1."""
    if len(start) == 0:
        return np.full(len(moments), -1, np.int64)
    nesting = Nesting.build(start, end, thread)
    place = nesting.innermost(query_thread.astype(np.int64), moments)
    return nesting.rows_at(place)


class Stretches(NamedTuple):
    """The time of every thread, cut where ranges open or close: the same ranges are open throughout a stretch.

    Stretches are ordered by (thread, first moment). Stretch 0 stands for all time without open ranges, on thread -1.
    `first` is a stretch's first moment. `place` is the innermost open range as a place of `nesting`, or -1.
    """

    nesting: Nesting
    thread: Times
    first: Times
    place: Times

    @classmethod
    def build(cls, start: Times, end: Times, thread: Times) -> Stretches:
        """Cut the threads at every start and end of their ranges."""
        nesting = Nesting.build(start, end, thread)
        edges = np.concatenate([nesting.start, nesting.end])
        times = sorted_unique(edges)
        # Ranks replace moments because thread * ns may overflow.
        threads = thread[nesting.rows].astype(np.int64)
        keys = sorted_unique(np.tile(threads, 2) * len(times) + np.searchsorted(times, edges))
        owner, rank = np.divmod(keys, max(len(times), 1))
        first = times[rank]
        place = nesting.innermost(owner, first)
        none = np.array([-1], np.int64)
        return cls(nesting, *(np.concatenate([none, column]) for column in (owner, first, place)))

    def lookup(self, moments: Times) -> StretchLookup:
        """Prepare look-ups at moments that ascend."""
        size = len(moments) + 1
        row = np.searchsorted(moments, self.first, side="left")
        return StretchLookup(self.thread * size + row, size, self.place)

    def open_ranges(self, stretch: NDArray[np.integer]) -> tuple[Times, Times]:
        """Return every pair of an index into `stretch` and the row of a range that is open there."""
        indices, rows = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for index, place in self.nesting.levels(self.place[stretch], self.first[stretch]):
            indices.append(index)
            rows.append(self.nesting.rows[place])
        return np.concatenate(indices), np.concatenate(rows)


class StretchLookup(NamedTuple):
    """Finds the stretch of (thread, row), where rows number ascending moments.

    `keys` are thread * size + the row of the first moment in each stretch.
    """

    keys: Times
    size: int
    place: Times

    def stretch_at(self, thread: Times, row: Times) -> Times:
        """Return the stretch on each thread at the moment of each row; 0 where no range is open."""
        stretch = np.searchsorted(self.keys, thread * np.int64(self.size) + row, side="right") - 1
        stretch[self.place[stretch] < 0] = 0
        return stretch

    def borders_passed(self) -> NDArray[np.int32]:
        """Return, for each row, how many rows up to it are the first in a stretch of any thread; -1 as a last entry."""
        rows = sorted_unique(self.keys[1:] % self.size)
        count = np.diff(rows, prepend=0, append=self.size - 1)
        numbers = np.arange(len(rows) + 2, dtype=np.int32)
        numbers[-1] = -1
        return np.repeat(numbers, np.append(count, 1))


class Projection(NamedTuple):
    """The ranges of each GPU operation, which are the ranges open at its launch.

    A run is a sequence of operations that belong to the same stretch. `begin` is the first row of Trace.operations of
    each run. `stretch` is a run's stretch, 0 where it belongs to no range. `via_process` marks runs whose launching
    thread has no open range, while the annotating thread of its process has.
    """

    stretches: Stretches
    operations: int
    begin: Times
    stretch: Times
    via_process: NDArray[np.bool_]


def project_operations(trace: Trace) -> Projection:
    """Find the ranges of every operation. An operation without a launch in the capture belongs to no range."""
    launch = launch_rows(trace.operations).astype(np.int64)  # int64 indexes without a conversion
    start, end, thread = (trace.ranges[name].to_numpy() for name in ("start", "end", "thread"))
    stretches = Stretches.build(start, end, thread)
    if trace.api.is_empty() or trace.ranges.is_empty():
        none = np.zeros(min(len(launch), 1), np.int64)
        return Projection(stretches, len(launch), none, none, none > 0)
    lookup, thread = stretches.lookup(trace.api["start"].to_numpy()), trace.api["thread"].to_numpy()
    begin = _run_starts(lookup.borders_passed()[launch], thread[launch])
    call = launch[begin]
    caller = np.where(call >= 0, thread[call], -1)
    stretch = lookup.stretch_at(caller, call)
    outside = np.flatnonzero(stretch == 0)
    stretch[outside] = lookup.stretch_at(annotating_threads(trace)[caller[outside]], call[outside])
    via_process = np.zeros(len(begin), np.bool_)
    via_process[outside] = stretch[outside] > 0
    return Projection(stretches, len(launch), begin, stretch, via_process)


def _run_starts(*columns: NDArray[np.int32]) -> Times:
    """Return the first row of each run of equal rows."""
    differs = np.ones(len(columns[0]), np.bool_)
    differs[1:] = False
    for values in columns:
        differs[1:] |= values[1:] != values[:-1]
    return np.flatnonzero(differs)


def annotating_threads(trace: Trace) -> Times:
    """Return, for each thread, the thread of its process with the most range time; -1 for none.

    The last entry, -1, stands for an unknown thread.
    """
    process = trace.threads["process"].to_numpy()
    annotating = np.full(len(process) + 1, -1, np.int64)
    for process_id, thread in _busiest_threads(trace.ranges):
        annotating[:-1][process == process_id] = thread
    return annotating


def _own_ranges(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges of each process without those of libraries, or all where it has no others."""
    own = without_library_ranges(ranges)
    return pl.concat([own, ranges.filter(~pl.col("process").is_in(own["process"].unique().implode()))])


@once_per_frame
def _busiest_threads(ranges: pl.DataFrame) -> list[tuple[int, int]]:
    """Return each process with ranges, and its thread with the most range time."""
    totals = (
        _own_ranges(ranges)
        .group_by("process", "thread")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread"], descending=[True, False])
        .unique("process", keep="first", maintain_order=True)
    )
    return list(totals.select("process", "thread").iter_rows())


def project_ranges(trace: Trace, projection: Projection | None = None) -> pl.DataFrame:
    """Return one row (see PROJECTED) for each range and device that has its work, by device and start.

    A row spans the first start to the last end of the work that the range launches. With Trace.window, only work that
    overlaps the window counts. `projection` is the result of project_operations, if it exists already.
    """
    projection = projection or project_operations(trace)
    work = _work_of_runs(trace, projection)
    if work.is_empty():
        return empty_frame(PROJECTED)
    merged = (pl.col("start").min(), pl.col("end").max(), pl.col("operations").sum())
    work = work.group_by("stretch", "device").agg(*merged)
    used = work["stretch"].unique().sort()
    index, range_row = projection.stretches.open_ranges(used.to_numpy())
    pairs = pl.DataFrame({"stretch": used.to_numpy()[index], "range": range_row.astype(np.int64)})
    return (
        pairs.join(work, on="stretch")
        .group_by("range", "device")
        .agg(*merged)
        .select(list(PROJECTED))
        .sort("device", "start", "end", "range", descending=[False, False, True, False])
    )


def _work_of_runs(trace: Trace, projection: Projection) -> pl.DataFrame:
    """Return the work of each run that belongs to a range: stretch, device, first start, last end, operations.

    Runs are cut where the device changes.
    """
    device, start, end = (trace.operations[name].to_numpy() for name in ("device", "start", "end"))
    begin = projection.begin
    if trace.window is not None:
        inside = np.flatnonzero(overlaps_window(start, end, trace.window))
        device, start, end = device[inside], start[inside], end[inside]
        begin = np.searchsorted(inside, begin)
    first = sorted_unique(np.concatenate([begin, np.flatnonzero(device[1:] != device[:-1]) + 1]))
    first = first[first < len(start)]
    # Of runs that begin at one place, only the last has work inside the window.
    stretch = projection.stretch[np.searchsorted(begin, first, side="right") - 1]
    if len(first) == 0 or not stretch.any():
        return pl.DataFrame(schema={"stretch": pl.Int64})
    work = pl.DataFrame(
        {
            "stretch": stretch,
            "device": device[first],
            "start": start[first],
            "end": np.maximum.reduceat(end, first),
            "operations": np.diff(first, append=len(start)),
        }
    )
    return work.filter(pl.col("stretch") > 0)
