"""What host threads wait for: the thread or process that works while a thread is in a call such as `poll`.

The name of a call says how a thread waits. What it waits for is the thread that runs meanwhile: a worker that prepares
data, a thread that pins memory, another rank. CPU samples and scheduling show who runs; without them, a system call of
another thread that returns when the wait ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times
from traceview.model.loading_words import loading_words
from traceview.normalise.threads import Threads, system_names, without_path
from traceview.read import raw

# Calls in which a thread waits for another one.
WAITS = r"^(?:sem_|pthread_(?:cond|join|mutex|rwlock|barrier)|futex|p?poll|p?select|epoll_|wait|recv|GIL$)"
MIN_WAIT = 100_000  # ns
MIN_RUNNING = 0.1  # share of a wait that the awaited thread runs
NEAR_END = 200_000  # ns between the end of a wait and that of a call of the thread that ends it
MAX_CANDIDATES = 64  # threads, those that run most
# Threads of drivers and profilers work for whoever waits.
SYSTEM_THREAD = re.compile(r"^cuda-?Ev|^CUPTI|^\[N[Ss]ys|^nsys|CommsProc|^NVTX|^cuda\d|nsys-launcher")


class _Candidate(NamedTuple):
    """A thread (globalTid) that others may wait for, and when it runs."""

    tid: int
    runs: Coverage


def waited_for(waits: pl.DataFrame, tables: Mapping[str, pl.DataFrame], threads: Threads) -> pl.Series:
    """Return what each wait is for: "thread pin_memory", "process python3"; "" if it is unknown.

    `waits` has the columns start, end, name and thread (row of `threads`).
    """
    texts = np.full(len(waits), "", object)
    is_wait = waits["name"].cast(pl.String).str.contains(WAITS) & (waits["end"] - waits["start"] >= MIN_WAIT)
    rows = np.flatnonzero((is_wait & (waits["thread"] >= 0)).to_numpy())
    if len(rows):
        names = _Names.from_tables(tables)
        running = list(_running_threads(tables))
        calls = tables.get(raw.SYSTEM_CALLS, pl.DataFrame(schema={"end": pl.Int64, "globalTid": pl.Int64}))
        calls = calls.select("end", "globalTid").drop_nulls().sort("end")
        thread = waits["thread"].to_numpy()[rows]
        start, end = (waits[name].to_numpy()[rows] for name in ("start", "end"))
        for row in np.unique(thread).tolist():
            own = np.flatnonzero(thread == row)
            tid = int(threads.global_tid[row])
            texts[rows[own]] = _awaited(tid, start[own], end[own], running, calls, names)
    return pl.Series("waits_for", texts.tolist(), dtype=pl.String)


class _Names(NamedTuple):
    """The names of threads by globalTid, and of processes."""

    threads: dict[int, str]
    processes: dict[int, str]

    @classmethod
    def from_tables(cls, tables: Mapping[str, pl.DataFrame]) -> _Names:
        named: dict[int, str] = dict(system_names(tables).drop_nulls().iter_rows())
        mains = {
            (tid >> 24) & 0xFFFFFF: name for tid, name in named.items() if (tid >> 24) & 0xFFFFFF == tid & 0xFFFFFF
        }
        listed = tables.get(raw.PROCESSES, pl.DataFrame())
        if "name" in listed.columns:
            known = listed.drop_nulls().select("globalPid", "name").iter_rows()
            mains |= {(pid >> 24) & 0xFFFFFF: without_path(name) for pid, name in known}
        return cls(named, mains)

    def words(self, waiting: int, other: int) -> str:
        """Return what a thread waits for; "" for a thread of the system or of an unrelated program."""
        process, awaited = ((tid >> 24) & 0xFFFFFF for tid in (waiting, other))
        name, program = self.threads.get(other, ""), self.processes.get(awaited, "")
        if SYSTEM_THREAD.search(name):
            return ""
        if process != awaited:
            if loading_words(name):
                return f"process {name}"
            related = program == self.processes.get(process) or loading_words(program)
            return f"process {program}" if program and related else ""
        return f"thread {name}" if name and name != program else "another thread"


def _running_threads(tables: Mapping[str, pl.DataFrame]) -> Iterator[_Candidate]:
    """Yield the threads that run most, by their scheduling or, without it, their samples."""
    runs = _scheduled(tables) or _sampled(tables)
    by_length = sorted(runs, key=lambda tid: (-intervals.length(runs[tid]), tid))
    for tid in by_length[:MAX_CANDIDATES]:
        yield _Candidate(tid, Coverage.from_union(runs[tid]))


def _scheduled(tables: Mapping[str, pl.DataFrame]) -> dict[int, Intervals]:
    """Return when each thread (globalTid) was on a CPU."""
    switches = tables.get(raw.SCHEDULING, pl.DataFrame())
    if switches.is_empty():
        return {}
    until = (
        switches.drop_nulls("globalTid")
        .sort("globalTid", "start", maintain_order=True)
        .with_columns(pl.col("start").shift(-1).over("globalTid").alias("end"))
        .filter(pl.col("isSchedIn") == 1)
        .drop_nulls("end")
    )
    return _by_thread(until)


def _sampled(tables: Mapping[str, pl.DataFrame]) -> dict[int, Intervals]:
    """Return when each thread (globalTid) ran, by CPU samples: each stands for the usual time between two."""
    samples = tables.get(raw.CPU_SAMPLES, pl.DataFrame())
    if samples.is_empty():
        return {}
    ordered = samples.drop_nulls("globalTid").sort("globalTid", "start").select("globalTid", "start")
    usual = ordered.select(pl.col("start").diff().over("globalTid")).to_series().median()
    half = int(usual) // 2 if isinstance(usual, (int, float)) else 0
    return _by_thread(ordered.with_columns(pl.col("start") - half, (pl.col("start") + half).alias("end")))


def _by_thread(times: pl.DataFrame) -> dict[int, Intervals]:
    parts = times.filter(pl.col("end") > pl.col("start")).partition_by("globalTid", as_dict=True)
    return {
        int(tid): intervals.union(part["start"].to_numpy(), part["end"].to_numpy()) for (tid,), part in parts.items()
    }


def _awaited(
    waiting: int, start: Times, end: Times, running: list[_Candidate], calls: pl.DataFrame, names: _Names
) -> list[str]:
    """Return what each wait of a thread is for: who runs most during it, else who returns when it ends."""
    best, texts = (end - start) * MIN_RUNNING, np.full(len(start), "", object)
    for candidate in running:
        words = "" if candidate.tid == waiting else names.words(waiting, candidate.tid)
        if words:
            runs = candidate.runs.length_between(start, end)
            more = runs > best
            best, texts[more] = np.where(more, runs, best), words
    unknown = np.flatnonzero(texts == "")
    others = calls.filter(pl.col("globalTid") != waiting, pl.col("globalTid") // (1 << 24) == waiting >> 24)
    if len(unknown) and len(others):
        returned, tids = others["end"].to_numpy(), others["globalTid"].to_numpy()
        at = np.maximum(np.searchsorted(returned, end[unknown] + NEAR_END, side="right") - 1, 0)
        near = np.abs(returned[at] - end[unknown]) <= NEAR_END
        known = {tid: names.words(waiting, tid) for tid in np.unique(tids[at]).tolist()}
        texts[unknown[near]] = [known[tid] for tid in tids[at][near].tolist()]
    return texts.tolist()
