"""Input and output of a rule: a capture, a GPU of it, FindingDraft, and the thresholds of severities.

A rule is a pure function that yields one FindingDraft for each finding, or a Note for what costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Intervals, Rows, Times, index_ranges, rows_by_code, sorted_unique
from traceview.measure.activity import Activity, Copies
from traceview.measure.nvtx import Nesting, annotating_threads
from traceview.measure.shared_work import codes_of
from traceview.model.analysis import Analysis, DeviceUse, Gaps, HostUse, NotMeasured
from traceview.model.findings import Place
from traceview.model.names import fold_numbers
from traceview.model.program import Program
from traceview.model.trace import Note, Trace, Window
from traceview.normalise.codes import categories
from traceview.pricing.ledger import Claim, Grant, sum_columns
from traceview.pricing.speedups import KernelSequence
from traceview.pricing.texts import Entry

Keys = ParamSpec("Keys")
Result = TypeVar("Result")
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class GpuWork:
    """A GPU in the time that findings cover: the steady part of its window, or the whole window if Analysis.whole.

    Attributes:
        trace: The events of the capture.
        use: Its figures in this time.
        gaps: The idle gaps in this time, with their causes.
        activity: The operations in this time.
    """

    trace: Trace
    use: DeviceUse
    gaps: Gaps
    activity: Activity

    @property
    def row(self) -> int:
        """The row of Trace.devices."""
        return self.use.device

    @property
    def id(self) -> str:
        """Its name in reports, as "GPU 0"."""
        return self.use.id

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The processes that use it."""
        return self.use.process_ids

    @property
    def window(self) -> Window:
        """The time that findings cover."""
        return self.activity.window

    @property
    def steady(self) -> Window:
        """The steady part, or the whole window without iterations."""
        return self.use.steady.window

    @cached_property
    def gap_start(self) -> Times:
        """When each gap begins."""
        return self.gaps.frame["start"].to_numpy()

    @cached_property
    def gap_end(self) -> Times:
        """When each gap ends."""
        return self.gaps.frame["end"].to_numpy()

    @cached_property
    def gap_operation(self) -> Rows:
        """The operation (row of Trace.operations) that ends each gap, or -1."""
        return self.gaps.frame["operation"].fill_null(-1).to_numpy()

    @cached_property
    def gap_before(self) -> Rows:
        """The operation (row of Trace.operations) that ends last before each gap, or -1."""
        return self.gaps.frame["before"].fill_null(-1).to_numpy()

    @cached_property
    def gap_thread(self) -> NDArray[np.int16]:
        """The thread (row of Trace.threads) that each gap waits for, or -1."""
        return self.gaps.frame["thread"].fill_null(-1).to_numpy()

    @cached_property
    def steady_gaps(self) -> slice:
        """The gaps that begin in the steady part."""
        return slice(*np.searchsorted(self.gap_start, (self.steady.start, self.steady.end)).tolist())

    @cached_property
    def copies(self) -> Copies:
        """The copies of `activity`."""
        return Copies.from_activity(self.trace, self.activity)

    @cached_property
    def kernels(self) -> KernelSequence:
        """The compute kernels of `activity`; their `places` index it."""
        return KernelSequence.from_rows(self.trace, self.row, self.activity.rows)

    def gaps_at(self, moments: Times) -> Times:
        """Return the gap that contains each moment (the gap's end included), or -1."""
        index = np.searchsorted(self.gap_start, moments, side="right") - 1
        if len(self.gap_start) == 0:
            return np.full(len(moments), -1, np.int64)
        inside = (index >= 0) & (moments <= self.gap_end[np.maximum(index, 0)])
        return np.where(inside, index, -1)

    def gaps_before(self, chosen: Mask) -> Times:
        """Return the gaps that end with a chosen operation; `chosen` marks rows of Trace.operations."""
        ending = self.gap_operation
        gaps: Times = np.flatnonzero(np.append(chosen, False)[ending])  # the last one for gaps without an operation
        # The window can end inside the last gap, so that the operation after it is outside.
        cut = len(gaps) and gaps[-1] == len(ending) - 1 and self.starts_after_window(int(ending[-1]))
        return gaps[:-1] if cut else gaps

    def starts_after_window(self, operation: int) -> bool:
        """Return whether an operation (row of Trace.operations) starts after the time that findings cover."""
        place = int(np.searchsorted(self.activity.nonempty_rows, operation))
        return int(self.activity.nonempty_start[place]) >= self.window.end

    def gap_waits(self, causes: Sequence[str], gaps: slice) -> Times | None:
        """Return the ns of these causes in each of the gaps; None if no gap has one of them."""
        frame, sums = self.gaps.frame, self.gaps.causes
        columns = [frame[cause][gaps].to_numpy() for cause in causes if sums[cause]]
        return sum_columns(columns) if columns else None

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of Trace.operations for the device's work; an Enum column as codes."""
        return self.activity.select(codes_of(self.trace.operations, name))


@dataclass(frozen=True, eq=False)
class MeasuredCapture:
    """A capture as rules see it.

    Attributes:
        analysis: The figures of the capture, without findings and without the time without the profiler.
        devices: The GPUs that work in the time that findings cover.
    """

    analysis: Analysis
    devices: tuple[GpuWork, ...]

    @cached_property
    def kept(self) -> dict[object, Any]:
        """The results of functions with once_per_capture."""
        return {}

    @cached_property
    def annotating(self) -> Times:
        """The thread that annotates for the process of each row of Trace.threads, or -1."""
        return annotating_threads(self.trace)

    @cached_property
    def nesting(self) -> Nesting:
        """The index of Trace.ranges."""
        start, end, thread = (self.trace.ranges[name].to_numpy() for name in ("start", "end", "thread"))
        return Nesting.build(start, end, thread)

    @property
    def trace(self) -> Trace:
        """The events."""
        return self.analysis.trace

    @property
    def host(self) -> HostUse:
        """The blocking calls."""
        return self.analysis.host

    @property
    def program(self) -> Program:
        """The kind of the program."""
        return self.analysis.program

    @property
    def counted(self) -> int | None:
        """The number of counted iterations, None if there are none."""
        iterations = self.analysis.iterations
        return None if isinstance(iterations, NotMeasured) else iterations.count - iterations.skipped or None

    def thread_name(self, thread: int) -> str:
        """Return the name of a row of Trace.threads, or its id if it has none."""
        name, number = self.trace.threads.select("name", "tid").row(thread)
        return name or str(number)

    @cached_property
    def iteration_starts(self) -> Times:
        """When each counted iteration begins on the host, in ns; empty without iterations."""
        iterations = self.analysis.iterations
        counted = () if isinstance(iterations, NotMeasured) else iterations.per_iteration[iterations.skipped :]
        return np.array([each.start_ns for each in counted], np.int64)

    def per_iteration(self, moments: Times) -> str:
        """Return " (one per iteration)" or " (21 per iteration)"; "" if most iterations have another number.

        `moments` are those of events, in ns.
        """
        each = round(len(moments) / max(len(self.iteration_starts), 1))
        number = np.searchsorted(self.iteration_starts, moments, side="right")
        counts = np.bincount(number, minlength=len(self.iteration_starts) + 1)[1:]
        if each == 0 or 2 * np.count_nonzero(counts == each) <= len(counts):
            return ""
        return f" ({'one' if each == 1 else each} per iteration)"

    def calls_for(self, device: GpuWork) -> pl.DataFrame:
        """Return the calls of the device's processes that begin while findings cover it, rows of Trace.api."""
        window = device.window
        return self.trace.own_calls.filter(
            pl.col("start").is_between(window.start, window.end, closed="left"),
            pl.col("process").is_in(device.process_ids),
        )

    def ranges_at(self, thread: Times, moment: Times) -> Times:
        """Return the innermost range (row of Trace.ranges) open on each thread at each moment, or -1.

        If a thread has no open range, the annotating thread of its process is used
        (docs/definitions.md "NVTX projected on the GPU").
        """
        if self.trace.ranges.is_empty() or len(moment) == 0:
            return np.full(len(moment), -1, np.int64)
        nesting = self.nesting
        place = nesting.innermost(thread.astype(np.int64), moment)
        missing = np.flatnonzero((place < 0) & (thread >= 0))
        place[missing] = nesting.innermost(self.annotating[thread[missing]], moment[missing])
        return nesting.rows_at(place)

    def ranges_during(self, thread: Times, times: Intervals) -> tuple[Times, Times, Times]:
        """Return the innermost ranges (rows of Trace.ranges, -1: none) that overlap the times of threads.

        Each has the index of the time, which ascends, and the ns of the overlap. See ranges_at.
        """
        index, begin = [np.arange(len(thread))], [times.start]
        nesting = self.nesting
        for code, own in rows_by_code(thread + 1):  # -1: unknown
            row = code - 1
            known = [nesting.edges[each] for each in {row, int(self.annotating[row])} if each in nesting.edges]
            sides = [side[first:last] for first, last in known for side in (nesting.start, nesting.end)]
            edges = sorted_unique(np.concatenate(sides)) if sides else times.start[:0]
            low = np.searchsorted(edges, times.start[own], side="right")
            inside = np.maximum(np.searchsorted(edges, times.end[own]) - low, 0)
            index.append(np.repeat(own, inside))
            begin.append(edges[index_ranges(low, inside)])
        pieces = np.stack([np.concatenate(index), np.concatenate(begin)])
        owner, start = pieces[:, np.lexsort(pieces[::-1])]
        is_last = np.append(np.diff(owner) != 0, True)[: len(owner)]
        until = np.where(is_last, times.end[owner], np.append(start[1:], 0)[: len(owner)])
        return owner, self.ranges_at(thread[owner], start), until - start

    def range_names(self, ranges: Times) -> tuple[list[str], Times]:
        """Return the distinct names of ranges, with numbers folded, and the index of each range's name.

        `ranges` are rows of Trace.ranges; -1 stands for no range and has the name "".
        """
        texts = self.trace.ranges["name"]
        code = np.full(len(ranges), -1, np.int64)
        known = np.flatnonzero(ranges >= 0)
        code[known] = codes_of(self.trace.ranges, "name")[ranges[known]]
        codes, which = np.unique(code, return_inverse=True)
        known_texts = categories(texts) if len(known) else []
        named = [known_texts[number] if number >= 0 else "" for number in codes.tolist()]
        names = fold_numbers(pl.Series(named, dtype=pl.String)).to_list()
        index = {name: at for at, name in enumerate(dict.fromkeys(names))}
        return list(index), np.array([index[name] for name in names], np.int64)[which]


def once_per_capture(function: Callable[Concatenate[MeasuredCapture, Keys], Result]) -> Callable[..., Result]:
    """Return a function of a capture and hashable values with its results kept: GPUs of one process share them."""

    @wraps(function)
    def result_of(capture: MeasuredCapture, *values: Keys.args, **named: Keys.kwargs) -> Result:
        key = function, *values, *named.items()
        if key not in capture.kept:
            capture.kept[key] = function(capture, *values, **named)
        return cast("Result", capture.kept[key])

    return result_of


@dataclass(frozen=True, slots=True)
class FindingDraft:
    """A finding before it is priced. Its texts are the entry with its id (pricing/texts.py).

    Attributes:
        device: The device that lost the time.
        claims: The lost time that the finding explains.
        values: What fills the placeholders of the texts. `cost`, `share` and `gaps` come from the price: the granted
            time, its share of the device's time, and the number of gaps that it comes from.
        case: The case of the entry.
        key: What tells the drafts of a rule with the same id apart.
        at_most: The most that the remedy can give, in ns; None if the remedy can give all that is claimed.
        min_gaps: Drop the draft if its price comes from fewer gaps.
        min_ns: Drop the draft if it costs less.
        note_without_cost: If less than MIN_SHARE is granted, keep the draft as a note.
        evidence: Places to show; empty selects the places with the largest granted times.
        same_everywhere: The remedy does not depend on place or calls: devices with one remedy share a finding.
        outside_ns: The time that it explains before the device's first work or after its last, which no account has.
        once: It occurs once in a run: it is first if it takes most of the run, and behind other findings elsewhere.
        of_run: The share is that of the run, also where findings cover the counted iterations.
        named_by: Returns values and case from what is granted, where the claims do not say which calls cost it.
    """

    id: str
    device: GpuWork
    claims: tuple[Claim, ...]
    values: Mapping[str, object] = field(default_factory=dict)
    case: str = ""
    key: str = ""
    at_most: int | None = None
    min_gaps: int = 0
    min_ns: int = 0
    note_without_cost: bool = False
    evidence: tuple[Place, ...] = ()
    same_everywhere: bool = False
    outside_ns: int = 0
    of_run: bool = False
    once: bool = False
    named_by: Callable[[Grant], tuple[Mapping[str, object], str]] | None = None


@dataclass(frozen=True)
class Rule:
    """What explains lost time. The docstring of the module of `find` states symptom, cause, remedy and claims.

    Attributes:
        name: The name of its module.
        find: Yields the drafts of a GPU, with claims on its ledger (pricing/ledger.py), or notes.
        entries: The texts of its findings by id (pricing/texts.py), if they are not files of traceview.
    """

    name: str
    find: Callable[[MeasuredCapture, GpuWork], Iterator[FindingDraft | Note]]
    entries: Mapping[str, Entry] = field(default_factory=dict)


MIN_SHARE = 0.001  # share of the time; no run shows a smaller loss
