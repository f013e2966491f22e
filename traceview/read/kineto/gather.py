"""All events of a trace that are of interest: whole numbers in memory, each name once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import polars as pl

from traceview.read.kineto.events import METADATA, decode
from traceview.read.limits import DecodedSize
from traceview.read.raw import NOT_A_TIME

HOST = ("pid", "tid", "start", "end", "correlation", "name")
ON_A_STREAM = (*HOST, "device", "context", "stream")
WAITS = ("wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id")
# What is kept of each sort of event (values of events.SORTS).
KEPT: Mapping[str, tuple[str, ...]] = {
    "kernel": ON_A_STREAM,
    "memcpy": (*ON_A_STREAM, "bytes"),
    "memset": (*ON_A_STREAM, "bytes"),
    "call": HOST,
    "range": HOST,
    "overhead": HOST,
    "sync": (*ON_A_STREAM, *WAITS),
    "event": (*ON_A_STREAM, "event_id"),
    METADATA: ("pid", "tid", "name", "label"),
}
AT_ONCE = 2  # pieces; each takes some ten times its size while it is decoded
LONG_PIECE = 32 << 20  # bytes; such a piece holds one long event, and is decoded alone
TIMED = ("kernel", "memcpy", "memset", "call", "range", "overhead")


@dataclass(frozen=True, slots=True)
class Gathered:
    """`events` has a frame for each sort of KEPT; `name` and `label` are places in `names`; the rest is Int64."""

    events: Mapping[str, pl.DataFrame]
    names: tuple[str, ...]


def gather(pieces: Iterable[bytes], size: DecodedSize) -> Gathered:
    """Decode all pieces. Raises NotJsonError, and ReportError above the limit of `size`."""
    places: dict[str, int] = {}
    parts: dict[str, list[pl.DataFrame]] = {sort: [] for sort in KEPT}
    for found in _decoded(pieces):
        found = found.with_columns(_place(found["name"], places, size), _place(found["label"], places, size), _end())
        for (sort,), part in found.partition_by("sort", as_dict=True).items():
            parts[str(sort)].append(part.select(KEPT[str(sort)]))
            size.add(8 * part.width * part.height)
    return Gathered({sort: _joined(sort, part) for sort, part in parts.items()}, tuple(places))


def from_zero(found: Gathered) -> tuple[Gathered, int]:
    """Return the events with times that count from the first of them, and that moment as it was (ns)."""
    starts = pl.concat([found.events[sort]["start"] for sort in TIMED])
    starts = starts.filter(starts != NOT_A_TIME)
    first = starts.min()
    if not isinstance(first, int):
        return found, 0
    moved = {
        sort: frame.with_columns(
            pl.when(pl.col(name) == NOT_A_TIME).then(pl.col(name)).otherwise(pl.col(name) - first).alias(name)
            for name in ("start", "end")
            if name in frame.columns
        )
        for sort, frame in found.events.items()
    }
    return Gathered(moved, found.names), first


def _decoded(pieces: Iterable[bytes]) -> Iterator[pl.DataFrame]:
    """Decode pieces in order, some at once: polars lets go of the interpreter meanwhile."""
    waiting: deque[Future[pl.DataFrame]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for piece in pieces:
            waiting.append(pool.submit(decode, piece))
            while len(waiting) > (AT_ONCE if len(piece) < LONG_PIECE else 0):
                yield waiting.popleft().result()
        for last in waiting:
            yield last.result()


def _place(texts: pl.Series, places: dict[str, int], size: DecodedSize) -> pl.Series:
    """Return each text's place among all names so far; null for null."""
    unique = texts.unique().drop_nulls()
    size.add(int(unique.str.len_bytes().sum()))
    known = [places.setdefault(text, len(places)) for text in unique.to_list()]
    coded = pl.DataFrame({"text": unique, "place": pl.Series(known, dtype=pl.Int64)})
    rows = texts.to_frame("text").join(coded, on="text", how="left", maintain_order="left")
    return rows["place"].alias(texts.name)


def _end() -> pl.Expr:
    start, length = pl.col("start"), pl.col("length")
    odd = (start == NOT_A_TIME) | (length == NOT_A_TIME)
    return pl.when(odd).then(pl.lit(NOT_A_TIME, pl.Int64)).otherwise(start + length).alias("end")


def _joined(sort: str, parts: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(parts) if parts else pl.DataFrame(schema=dict.fromkeys(KEPT[sort], pl.Int64))
