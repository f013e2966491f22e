"""Why nothing computes beside a copy, a memset or communication: one cause for each exposed nanosecond.

docs/definitions.md "Exposed time by cause". A stretch is exposed time of one operation X with one following operation
N: the next one that starts on a computing stream. The call that launches N, and the operations before N, cut it by
cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import BEFORE_ALL, Intervals, Rows, Times, values_at
from traceview.measure.activity import COMMUNICATION, COPY, Activity, Copies
from traceview.measure.shared_work import codes_of, once_per_frame, once_per_trace
from traceview.measure.stream_order import CONTEXT, NO_STREAM, StreamOrder
from traceview.model.analysis import EXPOSED_CAUSES
from traceview.model.frozen import dataclass
from traceview.model.trace import CLASSES, ROLES, Trace, Window

HOST, WAITS_FOR_IT, LAUNCH, SAME_STREAM, KERNEL_GAP, LAUNCHED_LATE, WAITED_ITSELF = range(7)
OTHER, QUEUE, COPY_ENGINE, END, UNKNOWN = range(7, len(EXPOSED_CAUSES))
# ns after the return of its launch call in which an operation starts as soon as it is launched: on an idle stream 95 of
# 100 start within 2 to 15 µs (30 devices of samples and shared captures).
AT_ONCE_AFTER_LAUNCH = 20_000
# ns after the end of what an event stands for in which work that waits for it starts: 1 to 24 µs in 640 known cases of
# samples/ (DDP on H100 and H200), with a median of 2 to 8 µs.
AFTER_EVENT = 24_000
# Waits return up to 7 µs before the end of what they wait for in a capture whose clocks agree (normalise/devices.py).
CLOCK_NOISE = 8_000
# Memsets have causes if they take at least a 200th of the window. Models have short memsets between many kernels.
MIN_MEMSETS = 200
BLOCKING = np.isin(ROLES, ("sync", "blocking_copy"))  # by role


Codes = NDArray[np.uint8]
_Part = tuple[Times, Times, Times, Codes | int, Rows | int]
COMMUNICATION_WORK, MEMSET_WORK = "communication", "memset"


def copy_key(kind: str, memory: str) -> str:
    """Return the name of one kind of copies: "h2d pageable"."""
    return f"{kind} {memory}"


def members_by_kind(work: Activity, copies: Copies) -> dict[str, Times]:
    """Return the indices of each kind of work besides compute: communication, copies in their order, and memsets."""
    return {
        COMMUNICATION_WORK: np.flatnonzero(work.codes == COMMUNICATION),
        **{copy_key(kind, memory): members for kind, memory, members in copies.groups()},
        MEMSET_WORK: np.flatnonzero(work.codes == CLASSES.index("memset")),
    }


class _Pieces(NamedTuple):
    """Exposed time of one operation X with one following operation N.

    `group` is the kind of work, `exposed` (X) and `following` (N) are places in StreamOrder, `following` -1 if nothing
    follows in the window. N is launched by a call in [called, returned). The time until `alone` has the `cause`; after
    that N waits.
    """

    group: NDArray[np.intp]
    exposed: Rows
    following: Rows
    start: Times
    called: Times
    returned: Times
    alone: Times
    end: Times
    cause: Codes


class _Waits(NamedTuple):
    """Pieces (`row`) in which a launched operation waits.

    The operation before it on its stream runs until `ran`, an ordinary gap lasts until `stepped`, and the time until
    `awaited` has the `cause`. `first` is the cause until `ran`. `previous` and `reason` are the operations that it
    waits for meanwhile, or -1.
    """

    row: Times
    ran: Times
    stepped: Times
    awaited: Times
    first: Codes
    cause: Codes
    previous: Rows
    reason: Rows


@dataclass(frozen=True)
class ExposedTime:
    """The exposed time of a device in a window, in stretches [start, end) of one operation with one cause.

    `work` is a place in `works`, the kinds of work. `operation` runs, `following` is the next one that a computing
    stream starts, and `reason` is what that one waits for: rows of Trace.operations, or -1. The stretches of a kind of
    work do not overlap.
    """

    works: tuple[str, ...]
    window: Window
    work: Codes
    operation: Rows
    following: Rows
    start: Times
    end: Times
    cause: Codes
    reason: Rows

    def inside(self, trace: Trace, window: Window) -> ExposedTime:
        """Return the exposed time in a window that this one contains, after whose end nothing follows."""
        if window == self.window:
            return self
        start, end = np.maximum(self.start, window.start), np.minimum(self.end, window.end)
        kept = np.flatnonzero(end > start)
        following = self.following[kept]
        last = values_at(trace.operations["start"].to_numpy(), following, BEFORE_ALL) >= window.end
        cause, nothing = np.where(last, np.uint8(END), self.cause[kept]), np.int32(-1)
        following, reason = np.where(last, nothing, following), np.where(last, nothing, self.reason[kept])
        rows = self.work[kept], self.operation[kept], following, start[kept], end[kept], cause, reason
        return ExposedTime(self.works, window, *rows)

    def sums(self, label: NDArray[np.integer], count: int, chosen: Times | slice = slice(None)) -> NDArray[np.int64]:
        """Return the ns of each label by cause; `label` has that of each of the `chosen` stretches."""
        key = label.astype(np.int64) * len(EXPOSED_CAUSES) + self.cause[chosen]
        lengths = (self.end - self.start)[chosen]
        ns = np.bincount(key, lengths, count * len(EXPOSED_CAUSES))  # float64 is exact for times up to 104 days
        return ns.astype(np.int64).reshape(count, len(EXPOSED_CAUSES))

    @cached_property
    def by_work(self) -> dict[str, dict[str, int]]:
        """The ns of each kind of work by cause."""
        sums = self.sums(self.work, len(self.works)).tolist()
        return {name: dict(zip(EXPOSED_CAUSES, row, strict=True)) for name, row in zip(self.works, sums, strict=True)}


def with_causes(sums: pl.DataFrame) -> pl.DataFrame:
    """Replace the columns of EXPOSED_CAUSES by their sum, exposed_ns, and the struct exposed_causes."""
    both = {"exposed_ns": pl.sum_horizontal(EXPOSED_CAUSES), "exposed_causes": pl.struct(EXPOSED_CAUSES)}
    return sums.with_columns(**both).drop(EXPOSED_CAUSES)


def rest_sums(rest: pl.DataFrame, *names: str) -> dict[str, Any]:
    """Return the sums of the columns `names` and of those of with_causes: of the rows beyond the limit of a table."""
    sums = rest.select(pl.col(*names, "exposed_ns").sum()).row(0, named=True)
    return sums | {"exposed_causes": rest["exposed_causes"].struct.unnest().sum().row(0, named=True)}


@once_per_frame
def _known_exposure(_operations: pl.DataFrame) -> dict[tuple[int, Window], ExposedTime]:
    return {}


def device_exposure(trace: Trace, work: Activity) -> ExposedTime:
    """Return the exposed time of a device in its window."""
    known = _known_exposure(trace.operations)
    if (work.device, work.window) not in known:
        known[work.device, work.window] = _exposure(trace, work)
    return known[work.device, work.window]


def queued_time(trace: Trace, rows: Times) -> Times:
    """Return the ns that operations were launched, but did not start, for no reason in the capture.

    `rows` are ascending rows of Trace.operations. Times beside exposed work count, on devices whose exposed time was
    measured; the widest window of a device does.
    """
    ns = np.zeros(len(rows), np.int64)
    known = _known_exposure(trace.operations)
    widest = dict(sorted(known, key=lambda key: key[1].length))
    for exposed in map(known.__getitem__, widest.items()):
        queued = np.flatnonzero((exposed.cause == QUEUE) & np.isin(exposed.following, rows))
        for work in np.unique(exposed.work[queued]):
            chosen = queued[exposed.work[queued] == work]
            place = np.searchsorted(rows, exposed.following[chosen])
            lengths = np.bincount(place, (exposed.end - exposed.start)[chosen], len(ns))
            np.maximum(ns, lengths.astype(np.int64), out=ns)
    return ns


def exposed_frames(trace: Trace, windows: Mapping[int, Window]) -> dict[int, pl.DataFrame]:
    """Return the exposed time of devices (rows of Trace.devices) that were analyzed in these windows, in order of time.

    The columns are those of ExposedTime.
    """
    known, names = _known_exposure(trace.operations), [each.name for each in fields(ExposedTime)][2:]
    times = {device: known[device, window] for device, window in windows.items() if (device, window) in known}
    return {
        device: pl.DataFrame({name: getattr(exposed, name) for name in names}).sort("start", "end")
        for device, exposed in times.items()
    }


def _exposure(trace: Trace, work: Activity) -> ExposedTime:
    groups = members_by_kind(work, Copies.from_activity(trace, work))
    memsets = groups[MEMSET_WORK]
    if int((work.end - work.start)[memsets].sum()) * MIN_MEMSETS < work.window.length:
        groups[MEMSET_WORK] = memsets[:0]
    order = StreamOrder.of_device(trace, work)
    free = intervals.complement(work.compute, work.window.start, work.window.end)
    pieces_of = [_exposed_pieces(work, free, members) for members in groups.values()]
    group = np.repeat(np.arange(len(groups)), [len(member) for member, _, _ in pieces_of])
    member, start, end = map(np.concatenate, zip(*pieces_of, strict=True))
    rows = work.rows[member]
    exposed = rows if len(order.row) == len(trace.operations) else np.searchsorted(order.row, rows).astype(np.int32)
    piece, following, start, end = _cut_by_following(order, work.window.end, start, end)
    pieces = _by_launch(trace, order, group[piece], exposed[piece], following, start, end)
    return _stretches(trace, order, tuple(groups), work.window, pieces)


def _stretches(
    trace: Trace, order: StreamOrder, works: tuple[str, ...], window: Window, pieces: _Pieces
) -> ExposedTime:
    parts: list[tuple[NDArray[Any], ...]] = []
    for row, start, end, cause, reason in _parts(trace, order, pieces):
        kept = np.flatnonzero(end > start)
        causes = np.broadcast_to(np.asarray(cause, np.uint8), len(row))[kept]
        parts.append((row[kept], start[kept], end[kept], causes, np.broadcast_to(reason, len(row))[kept]))
    row, start, end, cause, reason = map(np.concatenate, zip(*parts, strict=True))
    places = [pieces.exposed[row], pieces.following[row], reason]
    if len(order.row) < len(trace.operations):  # else a place is a row
        places = [values_at(order.row, place, -1) for place in places]
    operation, following, reason = (place.astype(np.int32, copy=False) for place in places)
    work = pieces.group[row].astype(np.uint8)
    return ExposedTime(works, window, work, operation, following, start, end, cause, reason)


def _parts(trace: Trace, order: StreamOrder, pieces: _Pieces) -> Iterator[_Part]:
    """Yield parts [start, end) of pieces (`row`) with a cause, and the operations that are waited for, or -1."""
    every = np.arange(len(pieces.start))
    held, since, until = _waiting_hosts(trace, order, pieces)
    yield held, since, until, WAITS_FOR_IT, -1
    begins, row = np.argsort(np.append(every, held), kind="stable"), np.append(held, every)
    ends = np.argsort(row, kind="stable")
    yield row[ends], np.append(pieces.start, until)[begins], np.append(since, pieces.called)[ends], HOST, -1
    yield every, pieces.called, pieces.returned, LAUNCH, -1
    yield every, pieces.returned, pieces.alone, pieces.cause, -1
    waits = _launched_waits(trace, order, pieces)
    row = waits.row
    yield row, pieces.alone[row], waits.ran, waits.first, waits.previous
    yield row, waits.ran, waits.stepped, KERNEL_GAP, -1
    yield row, waits.stepped, waits.awaited, waits.cause, waits.reason
    yield row, waits.awaited, pieces.end[row], QUEUE, -1


def _exposed_pieces(work: Activity, free: Intervals, members: Times) -> tuple[Times, Times, Times]:
    """Return the member, the start and the end of each piece of time in which a group works and nothing computes."""
    end = work.end[members]
    own = intervals.own_lengths(work.start[members], end)
    if not own.all():
        members, end, own = members[own > 0], end[own > 0], own[own > 0]
    pieces = intervals.parts_in_queries(free, end - own, end)
    return members[pieces.query], pieces.start, pieces.end


def _cut_by_following(order: StreamOrder, last: int, start: Times, end: Times) -> tuple[Times, Rows, Times, Times]:
    """Cut pieces where operations of computing streams start: their index, the operation that follows, start, end."""
    begins = order.start[order.candidates]
    stop = np.searchsorted(begins, end, side="left")
    cut = np.flatnonzero((stop > 0) & (values_at(begins, stop - 1, BEFORE_ALL) > start))
    count = np.zeros(len(start), np.int64)
    count[cut] = stop[cut] - np.searchsorted(begins, start[cut], side="right")
    piece, place = np.repeat(np.arange(len(start)), count + 1), intervals.index_ranges(stop - count, count + 1)
    until, since = end[piece], start[piece]
    inner = np.flatnonzero(np.diff(piece, append=-1) == 0)
    until[inner] = since[inner + 1] = begins[place[inner]]
    place[(place >= len(begins)) | (begins.take(place, mode="clip") >= last) if len(begins) else slice(None)] = -1
    return piece, values_at(order.candidates, place, -1), since, until


def _by_launch(
    trace: Trace,
    order: StreamOrder,
    group: NDArray[np.intp],
    exposed: Rows,
    following: Rows,
    start: Times,
    end: Times,
) -> _Pieces:
    launch = values_at(order.launch, following, -1)
    called, returned = (values_at(trace.api[name].to_numpy(), launch, BEFORE_ALL) for name in ("start", "end"))
    np.clip(called, start, end, out=called)
    np.clip(returned, called, end, out=returned)
    cause = np.full(len(start), SAME_STREAM, np.uint8)
    cause[launch < 0], cause[following < 0] = UNKNOWN, END
    apart = (order.stream[following] != order.stream[exposed]) & (cause == SAME_STREAM)
    return _Pieces(group, exposed, following, start, called, returned, np.where(apart, returned, end), end, cause)


def _launched_waits(trace: Trace, order: StreamOrder, pieces: _Pieces) -> _Waits:
    row = np.flatnonzero(pieces.alone < pieces.end)
    returned, last, following = pieces.returned[row], pieces.end[row], pieces.following[row]
    previous = order.previous[following]
    before = values_at(order.end, previous, BEFORE_ALL)
    short = before - values_at(order.start, previous, 0) <= order.gap
    ran = np.clip(before, returned, last)
    stepped = np.clip(before + order.gap, ran, last)
    cause, reason, awaited = np.full(len(row), QUEUE, np.uint8), np.full(len(row), -1, np.int32), last.copy()
    some = np.flatnonzero(last > stepped)
    cause[some], reason[some], until = _causes_of_waits(trace, order, pieces.exposed[row[some]], following[some])
    other = cause[some] == OTHER
    awaited[some[other]] = np.clip(until[other], stepped[some[other]], last[some[other]])
    first = np.where(short, KERNEL_GAP, OTHER).astype(np.uint8)
    return _Waits(row, ran, stepped, awaited, first, cause, np.where(short, np.int32(-1), previous), reason)


def _causes_of_waits(trace: Trace, order: StreamOrder, exposed: Rows, following: Rows) -> tuple[Codes, Rows, Times]:
    """Return why launched operations do not start: the cause, the operation that they wait for, and until when."""
    stream, waits = order.stream, order.waits
    own, awaited = stream[exposed], waits.latest[following]
    in_call = values_at(order.launch, order.previous[following], -1) == order.launch[following]
    decided = waits.traced[stream[following]] & ~waits.open[following] & ~in_call
    decided &= waits.waits[following] | order.may_run_beside(own, stream[following])
    consumes = (values_at(stream, awaited, -1) == own) & (awaited >= exposed)
    reason, until = np.where(decided, awaited, np.int32(-1)), values_at(order.end, awaited, BEFORE_ALL)
    cause = np.where(reason >= 0, OTHER, QUEUE).astype(np.uint8)
    # Events do not show what the others wait for, nor that a copy engine is busy.
    rest = np.flatnonzero(~decided | (order.code[following] == COPY))
    follows, latest, engine = _at_once(trace, order, exposed[rest], following[rest])
    guessed = ~decided[rest]
    consumes[rest] |= guessed & ~engine & follows
    third = guessed & (latest >= 0) & (values_at(stream, latest, -1) != own[rest])
    cause[rest[third]], reason[rest[third]] = OTHER, latest[third]
    until[rest[third]] = order.start[following[rest[third]]]
    cause[rest[engine]], reason[rest[engine]] = COPY_ENGINE, latest[engine]
    some = np.flatnonzero(consumes)
    call = order.launch[exposed[some]]
    delay = order.start[exposed[some]] - values_at(trace.api["end"].to_numpy(), call, 0)
    cause[some] = np.where((call < 0) | (delay <= AT_ONCE_AFTER_LAUNCH), LAUNCHED_LATE, WAITED_ITSELF)
    reason[some] = -1
    return cause, reason, until


def _at_once(
    trace: Trace, order: StreamOrder, exposed: Rows, following: Rows
) -> tuple[NDArray[np.bool_], Rows, NDArray[np.bool_]]:
    """Return which work operations start at once after.

    The first value says whether it is X or a later operation of its stream. The second is the operation of another
    stream that ended last, or -1. The third says whether that is a copy of the same direction for which no event waits.
    """
    begin, previous = order.start[following], order.previous[following]
    ended_before = values_at(order.end, previous, BEFORE_ALL)
    last, latest = order.before(order.stream[exposed], following), order.last_ended(begin)
    running = values_at(order.end, last, BEFORE_ALL) > begin
    last = np.where(running, values_at(order.previous, last, -1), last)
    within = np.where(order.waits.open[following], AFTER_EVENT, order.gap)
    follows, is_next = (
        (begin - values_at(order.end, each, BEFORE_ALL) <= within)
        & (values_at(order.end, each, BEFORE_ALL) > ended_before)
        for each in (last, latest)
    )
    is_next &= order.stream[latest] != order.stream[following]
    engine = is_next & ~order.waits.waits[following] & _same_direction(trace, order, following, latest)
    return follows & (last >= exposed), np.where(is_next, latest, np.int32(-1)), engine


def _same_direction(trace: Trace, order: StreamOrder, following: Rows, latest: Rows) -> NDArray[np.bool_]:
    """Return which operations are copies of one kind."""
    same: NDArray[np.bool_] = (order.code[following] == COPY) & (order.code[latest] == COPY)
    some = np.flatnonzero(same)
    kinds = (trace.operations["kind"][order.row[each[some]]] for each in (following, latest))
    same[some] = (next(kinds) == next(kinds)).to_numpy()
    return same


@once_per_trace
def _blocking_calls(trace: Trace) -> dict[int, tuple[Times, Intervals]]:
    """Return the blocking calls of each thread (rows of Trace.api), and when each is the first that blocks it."""
    blocking = np.flatnonzero(BLOCKING[codes_of(trace.api, "role")] | trace.api["implicit"].to_numpy())
    calls_of = {}
    for caller, own in intervals.rows_by_code(trace.api["thread"].to_numpy()[blocking]):
        calls = blocking[own]
        start, end = (trace.api[name].to_numpy()[calls] for name in ("start", "end"))
        until = end - intervals.own_lengths(start, end)
        some = until < end
        calls_of[caller] = calls[some], Intervals(until[some], end[some])
    return calls_of


def _waiting_hosts(trace: Trace, order: StreamOrder, pieces: _Pieces) -> tuple[Times, Times, Times]:
    """Return the `host` time of pieces (row, start, end) in which a call of the launching thread waits for X."""
    host = np.flatnonzero(pieces.called > pieces.start)
    thread = trace.api["thread"].to_numpy()[order.launch[pieces.following[host]]]
    parts, calls_of = [(np.zeros(0, np.int64),) * 4], _blocking_calls(trace)
    for caller, own in intervals.rows_by_code(thread) if calls_of else ():
        if caller in calls_of:
            (calls, inside), mine = calls_of[caller], host[own]
            query, since, to = intervals.parts_in_queries(inside, pieces.start[mine], pieces.called[mine])
            parts.append((calls[np.searchsorted(inside.end, since, side="right")], mine[query], since, to))
    call, row, begin, until = map(np.concatenate, zip(*parts, strict=True))
    waits = np.flatnonzero(_returns_with(trace, order, call, pieces.exposed[row]))
    waits = waits[np.argsort(row[waits], kind="stable")]
    return row[waits], begin[waits], until[waits]


@once_per_trace
def _stated_waits(trace: Trace) -> tuple[Times, Times]:
    """Return the calls that wait for one stream (ascending rows of Trace.api), and the row of Trace.streams of each."""
    events = trace.stream_events.filter(
        pl.col("launch").is_not_null(), pl.col("kind") == "synchronize", pl.col("stream_id") != NO_STREAM
    )
    stated = events.join(trace.streams.with_row_index("row"), on=CONTEXT).sort("launch")
    return stated["launch"].to_numpy(), stated["row"].to_numpy().astype(np.int64)


def _returns_with(trace: Trace, order: StreamOrder, call: Times, exposed: Rows) -> NDArray[np.bool_]:
    """Return whether blocking calls (rows of Trace.api) return when an operation or a later one of its stream ends."""
    if not len(call):
        return np.zeros(0, np.bool_)
    launch, rows = _stated_waits(trace)
    at = np.searchsorted(launch, call)
    known = at < len(launch)
    known[known] = launch[at[known]] == call[known]
    until = trace.api["end"].to_numpy()[call] + CLOCK_NOISE
    last = order.last_ended(until)
    on_its_stream = values_at(rows, np.where(known, at, -1), -1) == order.stream[exposed]
    by_stream = on_its_stream & (order.launch[exposed] < call) & (order.end[exposed] <= until)
    by_end = (values_at(order.stream, last, -1) == order.stream[exposed]) & (last >= exposed)
    returns: NDArray[np.bool_] = np.where(known, by_stream, by_end) | (order.launch[exposed] == call)
    return returns
