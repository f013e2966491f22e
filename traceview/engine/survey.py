"""What a light pass over the parts of an export's large tables shows: their times, and what they refer to.

The pass decodes a few columns of each part and keeps a row for it. With these rows, a time window finds the parts that
it needs, also where the rows of a table are not in the order of time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.model.times import MAX_DISTANCE
from traceview.model.trace import Window
from traceview.normalise import EventSummary
from traceview.normalise.codes import MAX_COUNT_SPAN, integers
from traceview.normalise.devices import (
    CLOCK_TABLES,
    COPY_COLUMNS,
    GPU_TABLES,
    RAW_COLUMNS,
    TIMED_TABLES,
    clock_rows,
    sampled_bits,
)
from traceview.normalise.devices import (
    COLUMNS as CLOCK_COLUMNS,
)
from traceview.normalise.health import NORMAL_RESULTS
from traceview.normalise.threads import process_ids
from traceview.normalise.valid_rows import MAX_TIME
from traceview.read import raw
from traceview.read.sqlite.decoder import DecodedFrames, PartedTable, StoredGroup, StoredTable, store_parts
from traceview.workers import ThisProcess, Workers

LINKED_TABLES = (raw.SYNCHRONIZATION, raw.CUDA_EVENT)  # without times: found by the correlation ids of calls
PARTED_TABLES = (*TIMED_TABLES, *LINKED_TABLES)
CORRELATION = "correlationId"
IDENTITY: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(GPU_TABLES, RAW_COLUMNS),
    raw.RUNTIME: ("globalTid",),
    **dict.fromkeys(LINKED_TABLES, ("globalPid",)),
}
NAMES = {raw.KERNEL: ("shortName",), raw.RUNTIME: ("nameId",)}
NO_NAMES = pl.DataFrame(schema={"name": pl.Int64, "ns": pl.Int64, "count": pl.Int64})
KEY_BITS = 10  # correlation ids that differ only in these lowest bits are not told apart
PARTS_AT_ONCE = 16  # 16 MiB: larger groups cost hardly less for each row


Table = PartedTable | StoredTable | pl.DataFrame  # a frame is a small table, which was read whole


class NotInPartsError(Exception):
    """The capture must be read as a whole; the message says why."""


class KeyBlocks(NamedTuple):
    """The correlation ids of some rows without their KEY_BITS lowest bits, by process: ascending and distinct."""

    blocks: Mapping[int, Times]

    @classmethod
    def from_rows(cls, rows: pl.DataFrame) -> KeyBlocks:
        """Collect the ids of rows (process, correlation)."""
        processes, blocks = rows["process"].unique().drop_nulls().to_list(), {}
        for process in processes:
            own = rows if len(processes) == 1 else rows.filter(pl.col("process") == process)
            used = np.zeros(1 << (32 - KEY_BITS), np.bool_)
            used[own["correlation"].to_numpy() >> KEY_BITS] = True
            blocks[process] = np.flatnonzero(used)
        return cls(blocks)


class TableSurvey(NamedTuple):
    """A table's parts.

    `ids` has a row for each part (its number, `part`) and for each value of IDENTITY in it: `rows`, the `first` and
    `last` start, the last `end`, the `low` and the `high` correlation id; tables without times have no times.
    `parts` has the same for each part. `names` has the summed time by the id of the name of kernels and calls (name,
    ns). `clock` has the rows that show the clocks (see clock_rows). `failed` has the calls that failed, and `stacked`
    those with a stack, with raw columns; None if the export does not record results or stacks.
    """

    ids: pl.DataFrame
    parts: pl.DataFrame
    names: pl.DataFrame
    clock: pl.DataFrame
    failed: pl.DataFrame | None
    stacked: pl.DataFrame | None

    @classmethod
    def join(cls, groups: Sequence[SurveyedGroup]) -> TableSurvey:
        """Join what was found of groups of parts."""
        ids, names = pl.concat([group.ids for group in groups]), pl.concat([group.names for group in groups])
        failed = [group.failed for group in groups if group.failed is not None]
        stacked = [group.stacked for group in groups if group.stacked is not None]
        parts = ids.group_by("part").agg(_combined(ids.columns)).sort("part")
        return cls(
            ids,
            parts,
            names.group_by("name").agg(pl.col("ns", "count").sum()),
            pl.concat(group.clock for group in groups),
            pl.concat(failed) if failed else None,
            pl.concat(stacked) if stacked else None,
        )

    @property
    def rows(self) -> int:
        """The number of rows of the table."""
        return int(self.parts["rows"].sum())

    def overlapping(self, start: int, end: int) -> Times:
        """Return the parts with rows that overlap a time window, or begin in it."""
        overlaps = (self.parts["first"] < end) & (self.parts["end"] >= start)
        return self.parts.filter(overlaps)["part"].to_numpy()

    def linked(self, column: str, keys: KeyBlocks) -> Times:
        """Return the parts that may hold one of `keys`; `column` has the process of the rows."""
        chosen = [np.empty(0, np.int64)]
        owner = process_ids(self.ids[column].to_numpy())
        for number in np.unique(owner):
            own = self.ids.filter(pl.Series(owner == number))
            low, high = (own[name].to_numpy() >> KEY_BITS for name in ("low", "high"))
            wanted = keys.blocks.get(int(number), np.empty(0, np.int64))
            may = np.searchsorted(wanted, high, side="right") > np.searchsorted(wanted, low, side="left")
            chosen.append(own["part"].to_numpy()[may])
        return np.unique(np.concatenate(chosen))


def _combined(columns: Sequence[str]) -> list[pl.Expr]:
    """Return the figures of several rows of TableSurvey.ids."""
    rules = {"rows": pl.Expr.sum, "first": pl.Expr.min, "low": pl.Expr.min}
    names = [name for name in ("rows", "first", "last", "end", "low", "high") if name in columns]
    return [rules.get(name, pl.Expr.max)(pl.col(name)) for name in names]


class SurveyedGroup(NamedTuple):
    """What TableSurvey has of adjoining parts, and their copy if one was made."""

    ids: pl.DataFrame
    names: pl.DataFrame
    clock: pl.DataFrame
    failed: pl.DataFrame | None
    stacked: pl.DataFrame | None
    stored: StoredGroup | None = None


def survey_tables(
    tables: Mapping[str, PartedTable | pl.DataFrame], store: Path | None = None, workers: Workers | None = None
) -> tuple[dict[str, TableSurvey], dict[str, Table]]:
    """Survey tables in parts, and small tables (frames), which are one part each; return the surveys and the tables.

    `store` is a folder for a compact copy of the tables in parts, from which the returned tables are read. Raises
    NotInPartsError if a row has an invalid time, or the table of an event is not ordered by time.
    """
    jobs = [(name, first) for name, table in tables.items() for first in _firsts(table)]
    survey = _Survey(
        tables, store, sampled_bits(sum(_row_count(tables[name]) for name in TIMED_TABLES if name in tables))
    )
    done = (workers or ThisProcess()).in_order(survey.group, jobs)
    groups: dict[str, list[SurveyedGroup]] = {name: [] for name in tables}
    for (name, _), group in zip(jobs, done, strict=True):
        groups[name].append(group)
    surveys = {name: TableSurvey.join(own) for name, own in groups.items()}
    _check(surveys)
    if store is None:
        return surveys, dict(tables)
    stored = {name: [group.stored for group in own if group.stored] for name, own in groups.items()}
    return surveys, {
        name: StoredTable.join(store, table, stored[name]) if isinstance(table, PartedTable) else table
        for name, table in tables.items()
    }


def _row_count(table: PartedTable | pl.DataFrame) -> int:
    """Return the number of rows of a table; more if row ids are missing."""
    return len(table) if isinstance(table, pl.DataFrame) else sum(part.last - part.after for part in table.parts)


def _firsts(table: Table) -> range:
    return range(0, len(table.parts) if isinstance(table, PartedTable) else 1, PARTS_AT_ONCE)


class _Survey(NamedTuple):
    """The survey of `tables`; `store` is the folder for their compact copy, if one is made. `bits`: see clock_rows."""

    tables: Mapping[str, PartedTable | pl.DataFrame]
    store: Path | None
    bits: int

    def group(self, job: tuple[str, int]) -> SurveyedGroup:
        """Survey the parts of a table (name, first part)."""
        name, first = job
        table = self.tables[name]
        if isinstance(table, pl.DataFrame):
            return _survey_frame(name, table, np.zeros(1, np.int64), 0, self.bits)
        columns = {CORRELATION, *IDENTITY[name], *CLOCK_COLUMNS.get(name, ()), *NAMES.get(name, ())}
        light = table.with_columns([*columns, *({*CALL_READERS, *COPY_COLUMNS} & set(table.decoder.columns))])
        frames, edges = _read_group(light if self.store is None else table, first)
        stored = None if self.store is None else store_parts(self.store / f"{name}.{first}", frames, edges)
        rows = frames.columns
        if frames.groups is not None:
            rows = rows.with_columns(frames.groups["shortName"][rows[raw.SHAPE]].alias("shortName"))
        return _survey_frame(name, rows, edges, first, self.bits)._replace(stored=stored)


def _read_group(table: PartedTable, first: int) -> tuple[DecodedFrames, Times]:
    """Read the parts from `first` on, and return their rows and the first row of each."""
    parts = table.parts[first : first + PARTS_AT_ONCE]
    frames = table.read(first, first + len(parts))
    if len(frames.columns) == parts[-1].last - parts[0].after:
        return frames, np.array([part.after - parts[0].after for part in parts])
    # Row ids are missing, so they do not say how many rows a part has.
    counts = [len(table.read(part, part + 1).columns) for part in range(first, first + len(parts) - 1)]
    return frames, np.cumsum([0, *counts])


def _survey_frame(name: str, frame: pl.DataFrame, edges: Times, first: int, bits: int) -> SurveyedGroup:
    """Survey adjoining parts of a table. Part `first` + i begins at row `edges[i]`. `bits`: see clock_rows."""
    values = {column: integers(frame[column]) for column in (CORRELATION, *IDENTITY[name])}
    extremes = [("low", values[CORRELATION], np.minimum), ("high", values[CORRELATION], np.maximum)]
    if name in TIMED_TABLES:
        start, end = _valid_times(name, frame)
        extremes += [("first", start, np.minimum), ("last", start, np.maximum), ("end", end, np.maximum)]
    changes = np.zeros(len(frame), np.bool_)
    changes[edges if len(frame) else []] = True
    for column in IDENTITY[name]:
        changes[1:] |= values[column][1:] != values[column][:-1]
    runs = np.flatnonzero(changes)  # rows with equal ids follow each other
    part = first + np.searchsorted(edges, runs, side="right") - 1
    columns = {"part": part, **{column: values[column][runs] for column in IDENTITY[name]}}
    columns["rows"] = np.diff(runs, append=len(frame))
    columns |= {what: combine.reduceat(of_rows, runs) if len(runs) else runs for what, of_rows, combine in extremes}
    keys = ["part", *IDENTITY[name]]
    ids = pl.DataFrame(columns).group_by(keys).agg(_combined(list(columns)))
    names = _names(frame, *NAMES[name]) if name in NAMES else NO_NAMES
    failed, stacked = (read(frame) if column in frame.columns else None for column, read in CALL_READERS.items())
    clock = clock_rows(name, frame, bits) if name in CLOCK_TABLES else pl.DataFrame()
    return SurveyedGroup(ids, names, clock, failed, stacked)


def _valid_times(name: str, frame: pl.DataFrame) -> tuple[Times, Times]:
    """Return the times of a table's rows. Raises NotInPartsError if one is invalid, or work is not ordered by time."""
    if frame["start"].null_count() or frame["end"].null_count():
        raise NotInPartsError(f"{name} has rows without a time")
    start, end = (frame[column].to_numpy() for column in raw.TIMES)
    if (start > end).any():
        raise NotInPartsError(f"{name} has rows that end before they start")
    if name in GPU_TABLES and (start[1:] < start[:-1]).any():
        raise NotInPartsError(f"{name} is not in the order of time")
    return start, end


def _failed(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with a result that is not normal."""
    rows = calls[np.flatnonzero(integers(calls["returnValue"]))]
    return rows.select("globalTid", CORRELATION, "nameId", "returnValue").filter(
        ~pl.col("returnValue").is_in(NORMAL_RESULTS)
    )


def _stacked(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls with a stack."""
    return calls.filter(pl.col(raw.STACK_ID) > 0).select("start", "end", "globalTid", raw.STACK_ID)


# By column; only some exports have these columns.
CALL_READERS = {"returnValue": _failed, raw.STACK_ID: _stacked}


def _names(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    """Return the summed time and the number of kernels or calls by the id of their name."""
    names, length = integers(frame[column]), (frame["end"] - frame["start"]).to_numpy()
    if len(names) and names.min() >= 0 and names.max() < MAX_COUNT_SPAN:
        counts = np.bincount(names)
        used = np.flatnonzero(counts)
        ns = np.bincount(names, length)[used].astype(np.int64)
        return pl.DataFrame({"name": used, "ns": ns, "count": counts[used]})
    return pl.DataFrame({"name": names, "ns": length, "count": 1}).group_by("name").agg(pl.col("ns", "count").sum())


def _check(surveys: Mapping[str, TableSurvey]) -> None:
    """Raise NotInPartsError if times are impossible, or a table of GPU work is not in the order of time."""
    timed = {name: surveys[name].parts for name in TIMED_TABLES if name in surveys and surveys[name].rows}
    if not set(timed) & set(GPU_TABLES):
        raise NotInPartsError("it has no GPU work")
    time = extent(surveys)
    if time.start < -MAX_TIME or time.end > MAX_TIME or time.length > MAX_DISTANCE:
        raise NotInPartsError("its events are more than thirteen days apart")
    for name, parts in timed.items():
        if name in GPU_TABLES and (parts["first"][1:] < parts["last"][:-1]).any():
            raise NotInPartsError(f"{name} is not in the order of time")


def extent(surveys: Mapping[str, TableSurvey], names: Collection[str] = TIMED_TABLES) -> Window:
    """Return the time from the first start to the last end of the events of these tables."""
    parts = pl.concat([surveys[name].parts.select("first", "end") for name in names if name in surveys])
    return Window(int(parts["first"].to_numpy().min()), int(parts["end"].to_numpy().max()))


def with_corrected_times(surveys: Mapping[str, TableSurvey], offset: int) -> dict[str, TableSurvey]:
    """Return the surveys with the times of GPU work on the host's clock, which their clock is `offset` ns ahead of."""
    times = pl.col("first", "last", "end") - offset
    return {
        name: survey._replace(ids=survey.ids.with_columns(times), parts=survey.parts.with_columns(times))
        if name in GPU_TABLES
        else survey
        for name, survey in surveys.items()
    }


def event_summary(surveys: Mapping[str, TableSurvey]) -> EventSummary:
    """Return what the events of all parts refer to."""
    work = {name: surveys[name] for name in GPU_TABLES if name in surveys}
    kernels, calls = surveys.get(raw.KERNEL), surveys.get(raw.RUNTIME)
    no_ids = pl.Series([], dtype=pl.Int64)
    return EventSummary(
        stream_ids={name: survey.ids.select(RAW_COLUMNS).unique() for name, survey in work.items()},
        global_tids=calls.ids["globalTid"].unique() if calls else no_ids,
        kernels=kernels.names if kernels else NO_NAMES,
        calls=calls.names if calls else NO_NAMES,
        failed=calls.failed if calls else None,
        stacked=calls.stacked if calls else None,
        clock={name: surveys[name].clock for name in CLOCK_TABLES if name in surveys and surveys[name].rows},
        operations=sum(survey.rows for survey in work.values()),
        work=extent(surveys, GPU_TABLES),
        calls_end=extent(surveys, (raw.RUNTIME,)).end if calls and calls.rows else None,
    )
