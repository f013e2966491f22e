"""The stretch that is read of a capture larger than memory, chosen from the times of its events alone.

The rows of a table of events ascend in time in exports of nsys, so that a stretch is a range of rows. A table whose
rows do not ascend is searched row by row.
"""

from __future__ import annotations

import os
import re
import sqlite3
from bisect import bisect_left
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from traceview.errors import ReportError
from traceview.intervals import Times
from traceview.model.times import window_between
from traceview.model.trace import Window
from traceview.model.units import plain, size
from traceview.read import raw
from traceview.read.raw import Stretch, Wanted
from traceview.read.sqlite.database import Export

BYTES_PER_EVENT = 125  # memory of an analysis; benchmarks/run at 1 and 10 million kernels
SHARE_OF_FREE = 0.75
MIN_EVENTS = 1_000  # no analysis is worth less
SAMPLES, BINS = 4_096, 64  # rows of GPU work whose times are looked at; parts of the time whose rates are compared
STEADY_RATES = 0.5, 2.0  # rates of GPU work, of the median rate, that count as steady
# ns; events before and after the stretch that are read too: the launches of its first work, and what ends its last gap.
# A queue of 1,024 launches (CUDA's limit) of kernels of 250 µs lasts as long.
MARGIN = 250_000_000


def stretch_that_fits(export: Export, wanted: Wanted | None = None, memory: int | None = None) -> Stretch | None:
    """Return the steady stretch of a capture that fits into memory; None if the whole capture fits.

    A stretch that the user wants is cut if it does not fit. Raises ReportError if nothing fits.
    """
    tables = {name: ids for name in raw.TABLES if (ids := _row_ids(export, name)) is not None}
    free = free_memory() if memory is None else memory
    capacity = int((SHARE_OF_FREE * free - BYTES_PER_PROCESS) / BYTES_PER_EVENT)
    work = {name: ids for name, ids in tables.items() if name in raw.GPU_WORK}
    if sum(stop - first for first, stop in tables.values()) <= capacity or not work:
        return None
    if capacity < MIN_EVENTS:
        raise ReportError(f"{export.name}: {size(free)} of memory are free, which is too little for any part of it")
    largest = max(work, key=lambda name: work[name][1] - work[name][0])
    starts = _sampled_starts(export, largest, *work[largest])
    whole = _time_of_work(export, work)
    events = _EventTables(export, tables)
    chosen = _wanted_window(export, wanted, whole)
    if chosen is None:
        chosen = _steady_part(starts, whole)
    window = _cut_to(events, chosen.within(whole), capacity)
    return Stretch(window, whole, events.rows_in(window))


def _row_ids(export: Export, table: str) -> tuple[int, int] | None:
    """Return the first row id of a table of events and one past the last; None for another table."""
    if table not in export.tables or "start" not in export.columns(table) or "_rowid_" in export.columns(table):
        return None
    try:
        first, last = (export.select(f"{end}(_rowid_)", table).fetchone()[0] for end in ("min", "max"))
    except sqlite3.Error:  # the table has no row ids
        return None
    return None if first is None else (int(first), int(last) + 1)


def _start_at(export: Export, table: str, row: int) -> int | None:
    """Return the start of the first event at or after a row id."""
    event = export.select("start", table, "WHERE _rowid_ >= ? ORDER BY _rowid_ LIMIT 1", (row,)).fetchone()
    return int(event[0]) if event and isinstance(event[0], int) else None


def _time_of_work(export: Export, work: Mapping[str, tuple[int, int]]) -> Window:
    """Return the time from the first start to the last end of GPU work, by the first and the last row of each table."""
    times = [
        export.select('start, "end"', table, "WHERE _rowid_ IN (?, ?)", (first, stop - 1)).fetchall()
        for table, (first, stop) in work.items()
    ]
    moments = [row for rows in times for row in rows if all(isinstance(moment, int) for moment in row)]
    return Window(min(start for start, _ in moments), max(end for _, end in moments))


def _sampled_starts(export: Export, table: str, first: int, stop: int) -> Times:
    """Return the starts of evenly spaced rows, sorted."""
    rows = np.unique(np.linspace(first, stop - 1, min(SAMPLES, stop - first)).astype(np.int64)).tolist()
    starts = [start for row in rows if (start := _start_at(export, table, row)) is not None]
    return np.sort(np.array(starts, np.int64))


class _EventTables:
    """The rows of the tables of events by time."""

    def __init__(self, export: Export, tables: Mapping[str, tuple[int, int]]) -> None:
        self.export, self.tables = export, tables
        self.ascending = {name: self._ascends(name) for name in tables}

    def _ascends(self, table: str) -> bool:
        first, stop = self.tables[table]
        rows = np.linspace(first, stop - 1, min(SAMPLES // 16, stop - first)).astype(np.int64).tolist()
        starts = [_start_at(self.export, table, row) for row in rows]
        known = np.array([start for start in starts if start is not None], np.int64)
        return len(known) == len(starts) and bool((np.diff(known) >= 0).all())

    def rows_in(self, window: Window) -> dict[str, tuple[int, int]]:
        """Return the row ids [first, stop) of the events of each table that start within MARGIN of a window."""
        return {name: self._rows(name, window) for name in self.tables}

    def count(self, window: Window) -> int:
        """Return the number of events to read for a window."""
        return sum(stop - first for first, stop in self.rows_in(window).values())

    def _rows(self, table: str, window: Window) -> tuple[int, int]:
        begin, end = window.start - MARGIN, window.end + MARGIN
        first, stop = self.tables[table]
        if self.ascending[table]:
            rows = range(first, stop)
            edges = [
                first + bisect_left(rows, moment, key=lambda row: _start_at(self.export, table, row) or 0)
                for moment in (begin, end)
            ]
            return edges[0], edges[1]
        edges = self.export.select(
            "min(_rowid_), max(_rowid_)", table, "WHERE start >= ? AND start < ?", (begin, end)
        ).fetchone()
        return (first, first) if edges[0] is None else (int(edges[0]), int(edges[1]) + 1)


def _wanted_window(export: Export, wanted: Wanted | None, whole: Window) -> Window | None:
    """Return the window that a user wants; None if it is not stated. Raises RequestError for a wrong time."""
    if wanted is None:
        return None
    if wanted.range_name is None:
        return window_between(whole, wanted.start, wanted.end)
    named, parameters = "text = ?", [wanted.range_name]
    if "textId" in export.columns(raw.NVTX) and raw.STRINGS in export.tables:
        ids = export.select("id", raw.STRINGS, "WHERE value = ?", (wanted.range_name,)).fetchall()
        named += f" OR textId IN ({', '.join(str(int(number)) for (number,) in ids)})"
    condition = f"WHERE ({named}) AND eventType IN (59, 60)"
    edges = export.select("min(start), max(coalesce(end, start))", raw.NVTX, condition, parameters).fetchone()
    return None if edges[0] is None else Window(int(edges[0]), int(edges[1]))


def _steady_part(starts: Times, whole: Window) -> Window:
    """Return the longest part of the time in which GPU work starts at about the median rate."""
    counts, edges = np.histogram(starts, BINS, (whole.start, whole.end))
    low, high = (share * float(np.median(counts[counts > 0])) for share in STEADY_RATES)
    steady = np.concatenate([[False], (counts >= low) & (counts <= high), [False]])
    first, last = (np.flatnonzero(np.diff(steady.astype(np.int8)) == sign) for sign in (1, -1))
    if len(first) == 0:
        return whole
    longest = int(np.argmax(last - first))
    return Window(int(edges[first[longest]]), int(edges[last[longest]]))


def _cut_to(events: _EventTables, window: Window, capacity: int) -> Window:
    """Return the middle of a window that has at most `capacity` events."""
    if events.count(window) <= capacity:
        return window
    middle, low, high = (window.start + window.end) // 2, 0, window.length // 2
    while high - low > max(window.length // 1_000, 1):
        half = (low + high) // 2
        if events.count(Window(middle - half, middle + half)) <= capacity:
            low = half
        else:
            high = half
    if low == 0:
        raise ReportError(f"{plain(events.export.name)}: not even a thousandth of it fits into memory; free some")
    return Window(middle - low, middle + low)


BYTES_PER_FILE_BYTE = 2.5  # memory of the analysis of a complete export, measured on 1 to 10 million kernels
BYTES_PER_PROCESS = 200_000_000
MEMINFO, STATM, CONTAINER = Path("/proc/meminfo"), Path("/proc/self/statm"), Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Return the bytes of memory that this machine has free, or this process's container or `ulimit -v` has left."""
    free, left = _free_of_container(), _left_of_address_space()
    return free if left is None else max(0, min(free, left))


def _free_of_container() -> int:
    try:
        free = 1024 * int(re.findall(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text())[0])
    except (OSError, IndexError):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # no Linux: half of all memory
    try:
        limit, used = ((CONTAINER / name).read_text() for name in ("memory.max", "memory.current"))
        return max(0, min(free, int(limit) - int(used)))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return free


def _left_of_address_space() -> int | None:
    """Return the bytes that this process may still allocate; None without a limit."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit

        limit = getrlimit(RLIMIT_AS)[0]
        pages = int(STATM.read_text().split()[0])
    except (ImportError, OSError):  # no Linux
        return None
    return None if limit == RLIM_INFINITY else limit - pages * os.sysconf("SC_PAGE_SIZE")
