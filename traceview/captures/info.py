"""`traceview info`: what a capture contains, what it lacks, and whether it can be trusted. It measures nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, replace
from pathlib import Path

import polars as pl

from traceview.errors import DamagedExportError
from traceview.measure.activity import no_gpu_work
from traceview.measure.devices import count_unmatched
from traceview.measure.nvtx import phase_names
from traceview.model.frozen import dataclass
from traceview.model.program import capture_advice, missing_in_trace
from traceview.model.stacks import OP, SCOPE_KINDS
from traceview.model.trace import Note, Trace, Trust
from traceview.model.units import duration, plain, quantity, share
from traceview.normalise import normalise
from traceview.normalise.codes import UNNAMED
from traceview.normalise.devices import without_adapters
from traceview.read import raw
from traceview.read.formats import as_sqlite
from traceview.read.raw import DistributedInfo, RawCapture
from traceview.read.source import display_name
from traceview.read.sqlite.database import EXPORT_AGAIN, Export, open_export
from traceview.read.sqlite.reader import SqliteReader, read_tables_with_gaps
from traceview.report.screen import WIDTH, middle, short_names, wrap

SHOWN = {*raw.GPU_WORK, raw.NVTX, *raw.MPI, *raw.OPENACC, raw.STRINGS, "TARGET_INFO_GPU"}
INTERNAL_TABLES = ("ENUM_", "META_DATA", "EXPORT_META", "sqlite_")
PROFILER_STEP = "ProfilerStep#"
MAX_LISTED_STREAMS = 16
MAX_LISTED_RANGES = 10
MAX_LISTED_RANKS = 8  # and as many process groups
BRIEF_TABLES, BRIEF_RANGES = 5, 4  # without --verbose
LABEL = 13  # columns that the labels take
UNREAD = Trust()  # the verdict on a capture that cannot be normalised
CLOCK_WORDS = {
    "agrees": "the GPU's clock agrees with the host's",
    "corrected": "the GPU's clock is corrected",
    "contradictory": "times of GPU and host contradict each other",
    "unknown": "nothing shows whether the clocks of GPU and host agree",
}
UNREADABLE = "unreadable"  # id of the note on a capture that cannot be analyzed


@dataclass(frozen=True, slots=True)
class UsedStream:
    """A stream with GPU work, identified by its CUDA ids; None for an id that the export does not hold."""

    process: int | None
    device: int | None
    context: int | None
    stream: int | None


@dataclass(frozen=True, slots=True)
class CaptureContents:
    """The contents of a capture.

    `tables` has the row count of each table that the analysis reads. `others` names the non-empty tables that it does
    not read. `gpus` are the listed GPUs, used or not. `ranges` has each range name with its count, the most frequent
    first; a counter in a name is `#`. `missing` has one line per missing kind of data, with the way to capture it.
    `verdict` is the verdict with its evidence, and `trust` has its numbers. `health` names what the profiler lost, and
    `passed` the checks that found nothing. `distributed` has the rank and the process groups that a trace of
    torch.profiler states.
    """

    file: str
    nsys_version: str | None
    schema_version: str | None
    span_ns: tuple[int, int] | None
    gpus: tuple[str, ...]
    streams: tuple[UsedStream, ...]
    tables: Mapping[str, int]
    others: tuple[str, ...]
    ranges: tuple[tuple[str, int], ...]
    missing: tuple[str, ...]
    profiler: str
    verdict: str
    trust: Trust
    health: tuple[Note, ...]
    passed: tuple[str, ...]
    distributed: DistributedInfo | None


def describe(report: str | Path) -> CaptureContents:
    """Describe a capture. Raises ReportError like `open_trace`."""
    path = Path(report)
    with as_sqlite(path) as (database, made), open_export(database, display_name(path)) as export:
        export.require_strings()
        raw.wanted_columns(export.columns(raw.STRINGS), raw.STRINGS, [], file=export.name, remedy=EXPORT_AGAIN)
        version, schema = export.versions()
        counts = {name: export.count(name) for name in raw.TABLES if name in export.tables}
        profiler = made.profiler if made else "nsys"
        tables, ranges, trust, health, passed = _health(database, export, made)
        lost_ranges = next((note.text for note in health if note.id == "lost_ranges"), None)
        return CaptureContents(
            file=path.name,
            nsys_version=version,
            schema_version=schema,
            span_ns=_span(tables),
            gpus=_gpus(tables),
            streams=_streams(tables),
            tables=counts,
            others=tuple(sorted(name for name in export.tables if _is_unread(export, name))),
            ranges=ranges,
            missing=(
                *_missing(counts, bool(ranges), lost_ranges, profiler),
                *_options(tables, ranges, made),
                *(made.problems if made else ()),
            ),
            profiler=profiler,
            verdict="" if trust is UNREAD else _verdict(trust),
            trust=trust,
            health=tuple(note for note in health if note.id != "lost_ranges"),
            passed=passed,
            distributed=made.distributed if made else None,
        )


def _health(
    database: Path, export: Export, made: RawCapture | None
) -> tuple[Mapping[str, pl.DataFrame], tuple[tuple[str, int], ...], Trust, tuple[Note, ...], tuple[str, ...]]:
    """Return the tables of a capture, its ranges by name, the verdict, defects, and the checks that it passed."""
    try:
        capture = made or SqliteReader().read(database)
        trace = normalise(capture)
    except DamagedExportError as error:
        return read_tables_with_gaps(export, SHOWN), (), UNREAD, (_refusal(str(error).partition(": ")[2]),), ()
    nothing = trace.operations.is_empty() and trace.ranges.is_empty()
    unlaunched = _unlaunched_note(trace)
    problems = trace.info.left_out if made is None else ()
    complete = ("all GPU work has its launch in the capture",) if unlaunched is None and len(trace.operations) else ()
    refused = [_refusal(no_gpu_work(trace))] if nothing else []
    notes = (*refused, *trace.info.health, *([unlaunched] if unlaunched else []), *problems)
    return capture.tables, _ranges(trace), trace.info.trust, notes, (*complete, *trace.info.passed)


def _refusal(reason: str) -> Note:
    return Note(UNREADABLE, f"no command can analyze this capture: {reason}", ("every figure",))


def _unlaunched_note(trace: Trace) -> Note | None:
    without, total = count_unmatched(trace), len(trace.operations)
    count = without.kernels + without.copies + without.memsets + without.graphs
    text = f"{count:,} of {total:,} operations have no launch in the capture: idle time before them has no known cause"
    return Note("unmatched", text, ("idle", "nvtx")) if count else None


def _is_unread(export: Export, table: str) -> bool:
    """Return whether a table holds rows that the analysis does not read."""
    if table in raw.TABLES or table.startswith(INTERNAL_TABLES):
        return False
    return export.has_rows(table)


def _streams(tables: Mapping[str, pl.DataFrame]) -> tuple[UsedStream, ...]:
    ids = ((pl.col("globalPid") // (1 << 24)) & 0xFFFFFF, "deviceId", "contextId", "streamId")
    frames = [tables[name].select(ids).unique() for name in raw.GPU_WORK if _has_rows(tables, name)]
    streams = {UsedStream(*row) for frame in frames for row in frame.rows()}
    return tuple(sorted(streams, key=lambda used: [-1 if value is None else value for value in astuple(used)]))


def _has_rows(tables: Mapping[str, pl.DataFrame], name: str) -> bool:
    return name in tables and not tables[name].is_empty()


def _span(tables: Mapping[str, pl.DataFrame]) -> tuple[int, int] | None:
    times = [tables[name].select(raw.TIMES) for name in raw.GPU_WORK if _has_rows(tables, name)]
    valid = pl.concat(times).filter(pl.all_horizontal(pl.col(raw.TIMES) != raw.NOT_A_TIME)) if times else pl.DataFrame()
    return None if valid.is_empty() else valid.select(pl.col("start").min(), pl.col("end").max()).row(0)


def _gpus(tables: Mapping[str, pl.DataFrame]) -> tuple[str, ...]:
    gpus = without_adapters(tables.get("TARGET_INFO_GPU", pl.DataFrame()))
    if "name" not in gpus.columns:
        return ()
    name = pl.col("name").fill_null(UNNAMED)
    if "isDiscrete" in gpus.columns:
        name += pl.when(pl.col("isDiscrete") == 0).then(pl.lit(" (integrated)")).otherwise(pl.lit(""))
    return tuple(gpus.select(name).to_series())


def _ranges(trace: Trace) -> tuple[tuple[str, int], ...]:
    """Return each range name with its count, the most frequent first; `#` stands for the number of an iteration."""
    counts = phase_names(trace.ranges).cast(pl.String).alias("name").value_counts(name="count")
    return tuple(counts.cast({"count": pl.Int64}).sort(-pl.col("count"), "name").rows())


def _missing(tables: Mapping[str, int], ranges: bool, lost_ranges: str | None, profiler: str) -> Iterator[str]:
    remedy = capture_advice(profiler)
    if not any(tables.get(name) for name in raw.GPU_WORK):
        rest = "only ranges, iterations and times of the host are" if ranges else "without ranges nothing is"
        yield f"GPU work: {rest} measured; capture it with {remedy['gpu']}"
    elif not tables.get(raw.KERNEL) and tables.get(raw.GRAPH):
        yield "single kernels: CUDA graphs were traced as a whole; capture with --cuda-graph-trace=node"
    elif not tables.get(raw.KERNEL):
        yield "kernels: the only GPU work that the capture has is copies and memsets"
    if not tables.get(raw.RUNTIME):
        yield f"CUDA API calls: without them idle time has no cause. {remedy['calls']}"
    if not ranges:
        yield f"ranges: {lost_ranges or 'they mark phases and iterations. ' + remedy['ranges']}"


def _options(
    tables: Mapping[str, pl.DataFrame], ranges: Iterable[tuple[str, int]], made: RawCapture | None
) -> Iterator[str]:
    """Yield the options of torch.profiler without which its trace was recorded."""
    if made is None or made.profiler != raw.TORCH_PROFILER:
        return
    kinds = set(tables[raw.SCOPES]["kind"].unique()) if raw.SCOPES in tables else set()
    yield from missing_in_trace(
        ops=SCOPE_KINDS.index(OP) in kinds,
        stacks=bool(kinds - {SCOPE_KINDS.index(OP)}),
        shapes=_has_rows(tables, raw.MATH),
        memory=_has_rows(tables, raw.MEMORY),
        steps=any(name.startswith(PROFILER_STEP) for name, _ in ranges),
    )


def lines(contents: CaptureContents, columns: int, *, verbose: bool) -> Iterator[str]:
    """Yield what the capture holds, lacks and loses, names shortened and control codes removed.

    Without `verbose`: the largest tables, the most frequent ranges, and of the health doubts alone.
    """
    yield from _first_lines(contents, columns)
    yield from list(_stream_lines(contents))[: None if verbose else 1]
    yield from list(_table_lines(contents, columns))[: None if verbose else 1 + min(BRIEF_TABLES, len(contents.tables))]
    yield from list(_range_lines(contents, columns))[: None if verbose else 1 + min(BRIEF_RANGES, len(contents.ranges))]
    for line in contents.missing:
        yield from _labelled("MISSING", line, columns)
    if verbose:
        yield from _health_lines(contents, columns)
        return
    doubts = replace(contents, health=tuple(note for note in contents.health if note.affects), passed=())
    yield from list(_health_lines(doubts, columns))[1:]
    if contents.passed:
        yield from _labelled("ok", f"{quantity(len(contents.passed), 'check')} of the capture's health", columns)


def _first_lines(contents: CaptureContents, columns: int) -> Iterator[str]:
    yield middle(plain(contents.file, 200), columns)
    for note in contents.health:
        if note.id == UNREADABLE:
            yield from _labelled("UNREADABLE", note.text, columns)
    if contents.verdict:
        yield from _labelled("verdict", contents.verdict, columns)
    version = f"nsys {contents.nsys_version or 'unknown'}, export schema {contents.schema_version or 'unknown'}"
    yield from _labelled("version", version if contents.profiler == "nsys" else contents.profiler, columns)
    yield from _labelled("GPUs seen", _gpu_names(contents), columns)
    yield from _labelled("processes", _processes(contents), columns)
    if contents.distributed:
        yield from _labelled("ranks", _ranks(contents.distributed), columns)
    if contents.span_ns:
        start, end = contents.span_ns
        yield from _labelled("GPU work", f"{duration(end - start)}, from {start} to {end} ns", columns)


def _verdict(trust: Trust) -> str:
    """Return the verdict with its evidence: "mended: 3 GPU operations are cut; the GPU's clock agrees ..."."""
    counts = {"are left out": trust.left_out, "of GPU work are cut": trust.cut, "are doubled": trust.doubled}
    evidence = [f"{quantity(count, 'row')} {what}" for what, count in counts.items() if count]
    if trust.launches:
        lost = f"{share(trust.lost, trust.launches)} of {trust.launches:,} launches lack their GPU work"
        evidence.append(lost if trust.lost else f"all {quantity(trust.launches, 'launch', 'launches')} have GPU work")
    evidence += [f"{trust.unrecorded:,} CUDA calls are not recorded"] if trust.unrecorded else []
    evidence.append(CLOCK_WORDS[trust.clock])
    evidence += [f"the profiler does not support the driver {trust.driver}"] if trust.driver else []
    evidence += [trust.failed] if trust.failed else []
    evidence += [f"not read: {', '.join(trust.unread_tables)}"] if trust.unread_tables else []
    return f"{trust.verdict}: {quantity(trust.events, 'event')}; {'; '.join(evidence)}"


def _ranks(run: DistributedInfo) -> str:
    """Return "rank 0 of 4; process groups: default_pg of 4 (0, 1, 2, 3), mesh_tp of 2 (0, 1)"."""
    rank, size = ("?" if value is None else value for value in (run.rank, run.world_size))
    groups = []
    for group in run.groups[:MAX_LISTED_RANKS]:
        members = f" ({', '.join(map(str, group.ranks))})" if 0 < len(group.ranks) <= MAX_LISTED_RANKS else ""
        groups.append(f"{group.name or '?'} of {group.size or len(group.ranks) or '?'}{members}")
    if (more := len(run.groups) - len(groups)) > 0:
        groups.append(f"{more} more")
    return f"rank {rank} of {size}" + f"; process groups: {', '.join(groups)}" * bool(groups)


def _labelled(label: str, text: str, columns: int) -> list[str]:
    return wrap(plain(text, 2000), f"  {label:<{LABEL - 2}}", " " * LABEL, columns)


def _gpu_names(contents: CaptureContents) -> str:
    counts = Counter(contents.gpus).items()
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts) or "not named"


def _processes(contents: CaptureContents) -> str:
    known = sorted({used.process for used in contents.streams if used.process is not None})
    if len(known) == len({used.process for used in contents.streams}):
        return ", ".join(map(str, known)) or "none with GPU work"
    return ", ".join([*map(str, known), "not recorded for some GPU work"]) if known else "not recorded"


def _stream_lines(contents: CaptureContents) -> Iterator[str]:
    yield from _labelled("streams", f"{len(contents.streams)} with GPU work", WIDTH)
    for used in contents.streams[:MAX_LISTED_STREAMS]:
        process, device, context, stream = ("?" if value is None else value for value in astuple(used))
        yield f"    stream {stream} of process {process} on device {device}, context {context}"
    if len(contents.streams) > MAX_LISTED_STREAMS:
        yield f"    and {len(contents.streams) - MAX_LISTED_STREAMS} more"


def _table_lines(contents: CaptureContents, columns: int) -> Iterator[str]:
    text = f"{len(contents.tables)} read by the analysis, with row counts"
    yield from _labelled("tables", text, columns)
    for name, rows in sorted(contents.tables.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"    {rows:>12,}  {name}"
    if contents.others:
        yield from wrap(plain("not read: " + ", ".join(contents.others), 4000), "    ", "      ", columns)


def _range_lines(contents: CaptureContents, columns: int) -> Iterator[str]:
    total = sum(times for _, times in contents.ranges)
    text = f"{quantity(total, 'range')} with {quantity(len(contents.ranges), 'name')}" if total else "no ranges"
    yield from _labelled("NVTX", text, columns)
    listed = contents.ranges[:MAX_LISTED_RANGES]
    names = short_names([plain(name, 200) for name, _ in listed], columns - 20)
    for name, (_, times) in zip(names, listed, strict=True):
        yield f"    {times:>12,}  {name}"
    if len(contents.ranges) > MAX_LISTED_RANGES:
        yield f"    and {quantity(len(contents.ranges) - MAX_LISTED_RANGES, 'more name')}"


def _health_lines(contents: CaptureContents, columns: int) -> Iterator[str]:
    """Yield what the profiler lost, each with the figures that it affects, and the checks that found nothing."""
    notes = [note for note in contents.health if note.id != UNREADABLE]
    yield from _labelled("health", "" if notes or contents.passed else "nothing to check", columns)
    for note in sorted(notes, key=lambda note: (not note.affects, note.id != "left_out")):
        affected = f" (affects {', '.join(note.affects)})" if note.affects else ""
        yield from _labelled("  DOUBT" if note.affects else "  note", note.text + affected, columns)
    for check in contents.passed:
        yield from _labelled("  ok", check, columns)
