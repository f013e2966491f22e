"""Whether a capture can be trusted (docs/definitions.md "Health of a capture"): what the profiler lost or lacks.

Each check yields a Note for what it finds. A check without a finding yields one line, which `traceview info` shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.model.times import MAX_DISTANCE
from traceview.model.trace import CLOCK_FIGURES, LIBRARY_DOMAINS, PROFILER_DOMAINS, SOURCES, Note
from traceview.model.units import duration, quantity, share, signed_duration
from traceview.normalise.api import without_suffix
from traceview.normalise.codes import NAMES, UNNAMED, categories, texts_of
from traceview.normalise.threads import process_of
from traceview.read import raw

MIN_LOST_SHARE = 0.01
DROPPED = r"(?i)events? dropped:?\s*([0-9]+)|dropped ([0-9]+)[^0-9]{0,40}events?"
DRIVER = r"CUDA driver version \(([\d.]+)\) is not supported"
NO_UNIFIED_MEMORY = "Unified Memory cannot be traced|Unified Memory trace is not"
# A query fails in normal operation: the event is not ready, the symbol or attribute does not exist.
QUERY = "Query|Get|CanAccess|PeekAtLastError"
LAUNCH = r"^(?:cuda|cu|hip(?:Ext)?(?:Module)?)(?:Graph)?Launch"
STICKY = (700, 702, 710, 714, 715, 716, 717, 718, 719)  # errors of a kernel, after which the context is lost
NORMAL_RESULTS = (0, 4, 600, 704)  # success, unloading, not ready, peer access already enabled
RESULTS: Mapping[str, str] = NAMES["results"]
PROFILER_TYPES = (3, 4, 5)  # buffer flush, instrumentation, resources: time of the profiler
CODE_TYPES: Mapping[int, str] = {2: "JIT compilation", 6: "module loading", 7: "lazy loading of functions"}
QUEUE_FULL_TYPE = 8  # the host waits for space in the queue, also without a profiler
MIN_OVERHEAD_NS = 1_000_000
MAX_NAMED_CALLS = 4
GPU_FIGURES = ("busy", "compute", "copies", "communication", "idle", "iterations", "host.sync")
CALL_FIGURES = ("idle", "host.sync", "nvtx", "iterations")
# The figures that depend on the rows of each table.
FIGURES_OF_TABLES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((raw.KERNEL, raw.GRAPH, raw.MEMCPY, raw.MEMSET), GPU_FIGURES),
    raw.RUNTIME: CALL_FIGURES,
    raw.SYNCHRONIZATION: ("host.sync",),
    raw.NVTX: ("nvtx", "iterations"),
    **dict.fromkeys((raw.OVERHEAD, raw.CUPTI_OVERHEAD), ("idle",)),
}
LEFT_OUT = re.compile(r"([\d,]+) (?:(?:row|event)s?\b[^:]* )?left out\b")
LOSS = re.compile(r"\b(left out|ignored)\b")

Check = Note | str  # a defect, or a line on a check that found none


class Evidence(NamedTuple):
    """Small frames that the checks need from the raw tables, made before the tables are freed.

    Attributes:
        diagnostics: The texts of the profiler's own diagnostics; None if the export has none.
        failed: Failed CUDA calls (process, correlation, name, result); None if the export does not record results.
        overhead: The ns of CUPTI's overhead by type.
        has_lost_ranges: NVTX domains exist, but no range.
    """

    diagnostics: pl.Series | None
    failed: pl.DataFrame | None
    overhead: Mapping[int, int]
    has_lost_ranges: bool


def note_of_problem(problem: str) -> Note:
    """Return a note on what reading or normalising left out of a capture (ReportInfo.problems)."""
    words = re.findall(r"\w+", problem)
    tables = [table for table in (raw.known_table(word) or word for word in words) if table in FIGURES_OF_TABLES]
    name = "unread_table" if words and raw.known_table(words[0]) else "left_out"
    return Note(name, problem, FIGURES_OF_TABLES[tables[0]] if tables and LOSS.search(problem) else ())


def count_left_out(problems: Iterable[str]) -> int:
    """Return how many rows and events the notes of reading and normalising leave out."""
    return sum(int(count.replace(",", "")) for line in problems for count in LEFT_OUT.findall(line))


def with_profiler_overhead(tables: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Return the tables with the profiler's share of CUPTI's overhead in PROFILER_OVERHEAD."""
    cupti = tables.get(raw.CUPTI_OVERHEAD, pl.DataFrame())
    if cupti.is_empty():
        return dict(tables)
    is_own = pl.col("overheadType").is_in(PROFILER_TYPES) & (pl.col("start") > 0)  # 0: CUPTI knows no time
    own = cupti.filter(is_own).select("start", "end")
    before = tables.get(raw.OVERHEAD, pl.DataFrame())
    return dict(tables) | {raw.OVERHEAD: own if before.is_empty() else pl.concat([before, own])}


def collect_evidence(tables: dict[str, pl.DataFrame]) -> Evidence:
    """Extract what the checks need. Removes the tables and columns that only they need from `tables`."""
    diagnostics = tables.pop(raw.DIAGNOSTICS, pl.DataFrame())
    overhead = tables.get(raw.CUPTI_OVERHEAD, pl.DataFrame())
    calls = tables.get(raw.RUNTIME, pl.DataFrame())
    failed = None
    if "returnValue" in calls.columns:
        failed = _failed_calls(calls, tables)
        tables[raw.RUNTIME] = calls.drop("returnValue")
    nvtx = tables.get(raw.NVTX, pl.DataFrame())
    types = nvtx["eventType"].unique().to_list() if not nvtx.is_empty() else []
    return Evidence(
        None if diagnostics.is_empty() else diagnostics["text"].drop_nulls(),
        failed,
        _overhead_by_type(overhead),
        not set(raw.RANGE_TYPES) & set(types) and raw.DOMAIN_CREATED in types and _has_own_domain(nvtx),
    )


def _has_own_domain(nvtx: pl.DataFrame) -> bool:
    """Return whether a domain exists that neither nsys nor a library creates: they create some without a range."""
    created = nvtx.filter(pl.col("eventType") == raw.DOMAIN_CREATED)
    if "text" not in created.columns:
        return True
    return not created["text"].fill_null("").is_in((*PROFILER_DOMAINS, *LIBRARY_DOMAINS)).all()


def _failed_calls(calls: pl.DataFrame, tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    result = calls["returnValue"]
    rows = np.flatnonzero(result.fill_null(0).to_numpy() if result.null_count() else result.to_numpy())
    failed = calls[rows].filter(~pl.col("returnValue").is_in(NORMAL_RESULTS))
    names = pl.Series("name", texts_of(failed["nameId"], tables), dtype=pl.String)
    return failed.select(
        process_of("globalTid").alias("process"),
        pl.col("correlationId").fill_null(0).alias("correlation"),
        names,
        pl.col("returnValue").alias("result"),
    )


def _overhead_by_type(overhead: pl.DataFrame) -> dict[int, int]:
    if overhead.is_empty():
        return {}
    length = pl.col("end") - pl.col("start")
    timed = overhead.filter((pl.col("start") > 0) & length.is_between(1, MAX_DISTANCE))
    sums = timed.group_by("overheadType").agg(length.sum())
    return {int(kind): int(ns) for kind, ns in sums.rows() if kind is not None}


def check_health(evidence: Evidence, calls: Sequence[str], operations: int) -> Iterator[Check]:
    """Yield a Note for each defect that the profiler itself recorded, and a line for each check that finds none.

    `calls` are the names of the capture's calls, and `operations` is the number of its operations.
    """
    failed = 0 if evidence.failed is None else len(evidence.failed)
    yield from _diagnostics(evidence.diagnostics, calls, operations, failed)
    yield from _failures(evidence.failed)
    yield from _overhead(evidence.overhead)
    if evidence.has_lost_ranges:
        yield Note(
            "lost_ranges",
            "there are NVTX domains, but no range: the ranges were lost during capture. nsys 2022.4 to 2024.2 does not "
            "record the Python package nvtx from 0.2.12 on; use nvtx 0.2.11 or a newer nsys",
            ("nvtx", "iterations"),
        )


def _diagnostics(texts: pl.Series | None, calls: Sequence[str], operations: int, failed: int) -> Iterator[Check]:
    if texts is None:
        return
    groups = texts.str.extract_groups(DROPPED).struct
    dropped = pl.coalesce(groups.field("1"), groups.field("2"))
    count = int(pl.select(dropped.cast(pl.Int64, strict=False).fill_null(0).sum()).item())
    # nsys counts the work of a launch that fails as dropped (cutlass_launch_fails and drug_sim of round 12).
    if count > failed:
        yield Note(
            "dropped_events",
            f"the profiler dropped {count:,} CUDA events and kept {operations:,} operations, as its diagnostics say: "
            "where work is missing, idle time is too long; capture fewer steps, or use a newer nsys",
            GPU_FIGURES if count > MIN_LOST_SHARE * operations else (),
        )
    elif not count:
        yield "the profiler reports no dropped event"
    if driver := unsupported_driver(texts):
        yield Note(
            "driver_too_new",
            f"the CUDA driver ({driver}) is newer than this nsys supports: events that nsys does not know may be "
            "missing",
        )
    if texts.str.contains(NO_UNIFIED_MEMORY).any():
        uses_it = any("Managed" in name for name in calls)
        yield Note(
            "unified_memory_not_traced",
            "unified memory was not traced, as the profiler's diagnostics say: "
            + ("its migrations are missing" if uses_it else "no call of the capture allocates any"),
            ("copies", "managed_wait") if uses_it else (),
        )


def unsupported_driver(texts: pl.Series | None) -> str | None:
    """Return the version of the CUDA driver, if the profiler's diagnostics say that it is not supported."""
    drivers = [] if texts is None else texts.str.extract(DRIVER).drop_nulls().unique().sort().to_list()
    return next(iter(drivers), None)


def failed_launches(failed: pl.DataFrame | None) -> str:
    """Return the launches that failed, and errors after which nothing runs, in words; "" for none.

    `failed` is that of Evidence.
    """
    if failed is None:
        return ""
    is_launch = pl.col("name").str.contains(LAUNCH)
    first = failed.filter(is_launch | pl.col("result").is_in(STICKY)).head(1)
    if first.is_empty():
        return ""
    name, result = first.select("name", "result").row(0)
    count = failed.filter(is_launch).height
    error = f"{without_suffix(name)}: {RESULTS.get(str(result), f'error {result}')}"
    if not count:
        return f"a CUDA call failed ({error}), after which nothing runs on the GPU"
    return f"{quantity(count, 'launch', 'launches')} failed ({error}) and did not run"


def _failures(failed: pl.DataFrame | None) -> Iterator[Check]:
    if failed is None:
        return
    acting = failed.filter(~pl.col("name").str.contains(QUERY))
    if acting.is_empty():
        yield "no CUDA call failed"
        return
    counts = acting.group_by("name", "result").agg(pl.len())
    counts = counts.sort("len", "name", "result", descending=[True, False, False])
    named = ", ".join(
        f"{without_suffix(name)} ({count:,} x {RESULTS.get(str(result), f'error {result}')})"
        for name, result, count in counts.head(MAX_NAMED_CALLS).rows()
    )
    more = f" and {len(counts) - MAX_NAMED_CALLS} more kinds" if len(counts) > MAX_NAMED_CALLS else ""
    calls = "1 CUDA call" if len(acting) == 1 else f"{len(acting):,} CUDA calls"
    yield Note("failed_calls", f"{calls} failed: {named}{more}; a failed launch has no GPU work")


def _overhead(overhead: Mapping[int, int]) -> Iterator[Check]:
    loading = {what: overhead[kind] for kind, what in CODE_TYPES.items() if overhead.get(kind, 0) >= MIN_OVERHEAD_NS}
    if loading:
        texts = ", ".join(f"{what} {duration(ns)}" for what, ns in loading.items())
        yield Note("code_loading", f"the driver loaded code during the capture, which happens once per run: {texts}")
    if (full := overhead.get(QUEUE_FULL_TYPE, 0)) >= MIN_OVERHEAD_NS:
        yield Note(
            "launch_queue_full",
            f"CUDA calls waited {duration(full)} in total because the launch queue was full: the host was far "
            "ahead of the GPU, and this wait is not lost time of the GPU",
        )


def clock_notes(devices: pl.DataFrame) -> Iterator[Note]:
    """Yield notes on each GPU whose clock was corrected, or cannot be; `devices` is Trace.devices."""
    for name, offset, low, high, wrong in devices.select("id", *CLOCK_FIGURES).iter_rows():
        if wrong:
            counted = quantity(wrong, "launch or wait", "launches and waits")
            yield Note(
                "clocks_disagree" if offset is None else "impossible_times",
                f"{counted} of {name} contradict the others by more than 1 ms: the work starts before its launch, or "
                "ends after a call that waited for it"
                + ("; no offset between the clocks fits, so the causes of idle time are unknown" * (offset is None)),
                CALL_FIGURES,
            )
        if offset:
            yield Note(
                "clock_corrected",
                f"the clock of {name} is {duration(abs(offset))} {'ahead of' if offset > 0 else 'behind'} the host's "
                f"({_offset_words(low, high)}): its times are corrected by this offset, which its launches and "
                "synchronizations show",
                CALL_FIGURES,
            )


def _offset_words(low: int, high: int) -> str:
    """Return the range of an offset; one figure where both ends look alike."""
    first, last = signed_duration(low), signed_duration(high)
    return f"offset {first}" if first == last else f"offset {first} to {last}"


def clock_verdict(devices: pl.DataFrame) -> str:
    """Return what the clocks of all GPUs are against the host's (model.trace.Trust.clock)."""
    offsets, wrong = devices["clock_offset"].to_list(), devices["clock_contradictions"].fill_null(0).to_list()
    if any(wrong):
        return "contradictory"
    if None in offsets or not offsets:
        return "unknown"
    return "corrected" if any(offsets) else "agrees"


AFFECTED: Mapping[str, tuple[str, ...]] = {
    "kernel": ("compute", "communication", "devices.kernels", "iterations"),
    "CUDA API call": ("idle", "host.sync"),
    "NVTX range": ("nvtx", "iterations"),
}
MEANING: Mapping[str, str] = {
    "kernel": "communication among them counts as compute, and their families are unknown",
    "CUDA API call": "synchronizations, copies and allocations among them count as other calls",
    "NVTX range": f"they share the name {UNNAMED}, so that iterations and ranges may be others",
}


def _unnamed_ranges(tables: Mapping[str, pl.DataFrame]) -> tuple[int, int]:
    """Count the NVTX ranges whose text is an id without a string, and all; one without an id was never named."""
    nvtx = tables.get(raw.NVTX, pl.DataFrame())
    if nvtx.is_empty() or "textId" not in nvtx.columns:
        return 0, len(nvtx)
    ranges = nvtx.filter(pl.col("eventType").is_in(raw.RANGE_TYPES))
    own = ranges.filter(pl.col("text").is_null()) if "text" in nvtx.columns else ranges
    is_known = own["textId"].drop_nulls().is_in(tables[raw.STRINGS]["id"].to_list())
    return int((~is_known).sum()), len(ranges)


def _are_unnamed(names: pl.Series) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    texts = categories(names)
    code = texts.index(UNNAMED) if UNNAMED in texts else len(texts)
    return names.to_physical().to_numpy() == code  # type: ignore[no-any-return]


def missing_name_notes(
    operations: pl.DataFrame, api: pl.DataFrame, tables: Mapping[str, pl.DataFrame]
) -> Iterator[Note]:
    """Yield a Note for each kind of rows whose names are missing, with what they may change."""
    kernels = operations["source"].to_physical().to_numpy() == SOURCES.index("kernel")
    every = (
        (int((kernels & _are_unnamed(operations["name"])).sum()), int(kernels.sum())),
        (int(_are_unnamed(api["name"]).sum()), len(api)),
        _unnamed_ranges(tables),
    )
    for what, (count, total) in zip(AFFECTED, every, strict=True):
        if count:
            missing = f"{count:,} of {quantity(total, what)} ({share(count, total)})"
            yield Note(
                "missing_names",
                f"the names of {missing} are missing from the capture: {MEANING[what]}; export the report again",
                AFFECTED[what],
            )
