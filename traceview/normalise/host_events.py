"""Events of host threads apart from CUDA calls: system calls, scheduling, interpreter lock, loading, collections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times
from traceview.model.names import loading_words
from traceview.model.stacks import EVENTS, HostEvidence
from traceview.model.trace import Window, names_match
from traceview.normalise.codes import event_texts, text_enum, texts_of
from traceview.normalise.stacks import (
    StackedCalls,
    ThreadEvidence,
    call_stacks,
    function_stacks,
    joined_stacks,
    native_stacks,
    python_stacks,
)
from traceview.normalise.threads import Threads, system_names, without_path
from traceview.normalise.valid_rows import MAX_TIME
from traceview.read import raw

LOADING = {2: "just-in-time compilation", 6: "module loading", 7: "lazy function loading"}  # overheadType
GIL_DOMAIN = "GIL Trace"
HOLDS_LOCK = "holds the GIL"
NO_EVENTS = pl.DataFrame(schema={**EVENTS, "name": pl.String, "waits_for": pl.String})
UNKNOWN_FILE, MAX_FILE_NAME = "Unknown file", 60
COLLECTION = r"(?i)^(?:python )?(?:gc\b|garbage)"  # names of ranges around garbage collections
SOURCES = (
    raw.SYSTEM_CALLS,
    raw.VIDEO_CALLS,
    raw.FILE_EVENTS,
    raw.FILES,
    raw.SCHEDULING,
    raw.CUPTI_OVERHEAD,
    raw.CPU_SAMPLES,
    raw.PYTHON_SAMPLES,
)


def host_evidence(
    tables: dict[str, pl.DataFrame],
    threads: Threads,
    ranges: pl.DataFrame,
    scopes: pl.DataFrame,
    stacked: Sequence[StackedCalls],
    work: Window | None,
    callers: Sequence[int],
    names: Sequence[str],
) -> HostEvidence:
    """Return the stacks and events of threads that call CUDA or annotate. Removes their tables from `tables`.

    Samples of native code before the first and after the last GPU work (`work`) are left out: a program's start has
    many.
    """
    if work is not None and raw.CPU_SAMPLES in tables:
        during = pl.col("start").is_between(work.start, work.end)
        tables[raw.CPU_SAMPLES] = tables[raw.CPU_SAMPLES].filter(during)
    events = [frame for frame in _event_frames(tables, threads, ranges) if not frame.is_empty()]
    held = [frame.filter(pl.col("name") == HOLDS_LOCK) for frame in events if frame["state"][0] == "running"]
    known = ThreadEvidence(pl.concat([*held, NO_EVENTS]).sort("start"), callers, names)
    sources = [python_stacks(tables, threads, known), native_stacks(tables, threads), function_stacks(scopes)]
    sources += [call_stacks(calls, tables, threads) for calls in stacked]
    stacks = [source for source in sources if source]
    for name in (*SOURCES, raw.CPU_STACKS, raw.PYTHON_STACKS, raw.PYTHON_FRAMES):
        tables.pop(name, None)
    evidence = HostEvidence(*joined_stacks(stacks)) if stacks else HostEvidence()
    if not events:
        return evidence
    table = pl.concat(events).sort("start", "end")
    table = table.with_columns(text_enum(table[name]) for name in ("name", "waits_for"))
    return HostEvidence(evidence.frames, evidence.stacks, evidence.samples, table)


def _event_frames(tables: dict[str, pl.DataFrame], threads: Threads, ranges: pl.DataFrame) -> Iterator[pl.DataFrame]:
    calls = tables.get(raw.SYSTEM_CALLS, pl.DataFrame())
    if not calls.is_empty():
        waits = _events(
            _with_files(_with_thread(calls, threads).with_columns(_names(calls, tables)), tables), "waiting"
        )
        yield waits.with_columns(waited_for(waits, tables, threads))
    decoding = tables.get(raw.VIDEO_CALLS, pl.DataFrame())
    if not decoding.is_empty():
        yield _events(_with_thread(decoding, threads).with_columns(_names(decoding, tables)), "waiting")
    loading = tables.get(raw.CUPTI_OVERHEAD, pl.DataFrame())
    if not loading.is_empty() and "globalTid" in loading.columns:
        named = pl.col("overheadType").replace_strict(LOADING, default=None, return_dtype=pl.String).alias("name")
        yield _events(_with_thread(loading, threads).with_columns(named).drop_nulls("name"), "compiling")
    scheduling = tables.get(raw.SCHEDULING, pl.DataFrame())
    if not scheduling.is_empty():
        yield from _scheduling(_with_thread(scheduling, threads))
    yield from _lock_events(tables, threads)
    collections = ranges.filter(names_match(ranges["name"], COLLECTION))
    if not collections.is_empty():
        yield _events(collections.with_columns(pl.col("name").cast(pl.String)), "garbage_collection")


def _with_thread(frame: pl.DataFrame, threads: Threads) -> pl.DataFrame:
    return frame.with_columns(threads.rows(frame["globalTid"]).alias("thread"))


def _names(calls: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.Series:
    used = calls["nameId"].unique().drop_nulls()
    texts = dict(zip(used.to_list(), texts_of(used, tables), strict=True))
    return calls["nameId"].replace_strict(texts, default="(unnamed)", return_dtype=pl.String).alias("name")


def _with_files(calls: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Return system calls whose names state the file, if nsys recorded it: `read (shard_#.bin)`, without folders.

    Numbers become #, so that the files of a data set count together. Without a name nsys writes "Unknown file #0".
    """
    events, files = (tables.get(name, pl.DataFrame()) for name in (raw.FILE_EVENTS, raw.FILES))
    if events.is_empty() or files.is_empty():
        return calls
    base = pl.col("filePath").str.extract(r"([^/\\]+)[/\\]*$").str.slice(0, MAX_FILE_NAME).str.replace_all(r"\d+", "#")
    known = files.filter(~pl.col("filePath").str.starts_with(UNKNOWN_FILE)).select("fileAccessId", base.alias("file"))
    opened = events.join(known.unique("fileAccessId", keep="first", maintain_order=True), on="fileAccessId")
    opened = opened.select(pl.col("threadId").alias("tid"), pl.col("startedAt").alias("start"), "file")
    keyed = calls.with_columns((pl.col("globalTid") & 0xFFFFFF).alias("tid"))
    joined = keyed.join(opened.unique(("tid", "start")), on=("tid", "start"), how="left", maintain_order="left")
    return joined.with_columns(pl.coalesce(pl.format("{} ({})", "name", "file"), "name").alias("name"))


def _events(frame: pl.DataFrame, state: str) -> pl.DataFrame:
    """Return EVENTS with names as text: the events of known threads that have a length."""
    times = pl.col("start").is_between(-MAX_TIME, MAX_TIME) & pl.col("end").is_between(-MAX_TIME, MAX_TIME)
    valid = frame.filter(times & (pl.col("end") > pl.col("start")) & (pl.col("thread") >= 0))
    return valid.select(
        *("start", "end", pl.lit(state, EVENTS["state"]).alias("state"), "name"),
        *(pl.col("thread").cast(pl.Int16), pl.lit("").alias("waits_for")),
    )


def _scheduling(switches: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield when threads ran on a CPU and when they did not."""
    ordered = switches.filter(pl.col("thread") >= 0).sort("thread", "start", maintain_order=True)
    until = ordered.with_columns(pl.col("start").shift(-1).over("thread").alias("end")).drop_nulls("end")
    for scheduled, state, name in ((1, "running", "on CPU"), (0, "off_cpu", "off CPU")):
        yield _events(until.filter(pl.col("isSchedIn") == scheduled).with_columns(pl.lit(name).alias("name")), state)


def _lock_events(tables: dict[str, pl.DataFrame], threads: Threads) -> Iterator[pl.DataFrame]:
    """Yield when threads waited for the interpreter lock and held it (`nsys profile -t python-gil`)."""
    nvtx = tables.get(raw.NVTX, pl.DataFrame())
    if nvtx.is_empty() or not {"text", "domainId"} <= set(nvtx.columns):
        return
    created = nvtx.filter(raw.creates_domain(GIL_DOMAIN))
    if created.is_empty():
        return
    own = nvtx.filter(
        pl.col("domainId").is_in(created["domainId"].implode()) & pl.col("eventType").is_in(raw.RANGE_TYPES)
    )
    named = _with_thread(own, threads).with_columns(event_texts(own, tables).alias("label"))
    for word, state, name in (("Waiting", "waiting", "GIL"), ("Holding", "running", HOLDS_LOCK)):
        chosen = named.filter(pl.col("label").str.starts_with(word))
        yield _events(chosen.with_columns(pl.lit(name).alias("name")), state)


# What host threads wait for. The name of a call says how a thread waits, and the thread that runs meanwhile what for: a
# worker that prepares data, a thread that pins memory, another rank. CPU samples and scheduling show who runs; without
# them, a system call of another thread that returns when the wait ends.
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
    tables = times.filter(pl.col("end") > pl.col("start")).partition_by("globalTid", as_dict=True)
    return {
        int(tid): intervals.union(rows["start"].to_numpy(), rows["end"].to_numpy()) for (tid,), rows in tables.items()
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
