"""What `traceview info` prints about the contents of a capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, replace

from traceview.info.contents import CaptureContents
from traceview.report.format import plain
from traceview.report.screen import cut, short_names, wrap
from traceview.units import duration, quantity

MAX_LISTED_STREAMS = 16
MAX_LISTED_RANGES = 10
BRIEF_TABLES, BRIEF_RANGES = 5, 4  # without --verbose


def brief_lines(contents: CaptureContents) -> Iterator[str]:
    """Yield what the capture holds, lacks and loses: the largest tables, the most frequent ranges, doubts."""
    yield from _first_lines(contents)
    yield _labelled_line("streams", f"{len(contents.streams)} with GPU work")
    yield from list(_table_lines(contents))[: 1 + min(BRIEF_TABLES, len(contents.tables))]
    yield from list(_range_lines(contents))[: 1 + min(BRIEF_RANGES, len(contents.ranges))]
    yield from _missing_lines(contents)
    doubts = replace(contents, health=tuple(note for note in contents.health if note.affects), passed=())
    yield from list(_health_lines(doubts))[1:]
    if contents.passed:
        yield f"  ok         {quantity(len(contents.passed), 'check')} of the capture's health"


def lines(contents: CaptureContents) -> Iterator[str]:
    """Yield all lines that `traceview info --verbose` prints, names shortened and control codes removed."""
    yield from _first_lines(contents)
    yield from _stream_lines(contents)
    yield from _table_lines(contents)
    yield from _range_lines(contents)
    yield from _missing_lines(contents)
    yield from _health_lines(contents)


def _first_lines(contents: CaptureContents) -> Iterator[str]:
    yield cut(plain(contents.file, 200), 76)
    version = f"nsys {contents.nsys_version or 'unknown'}, export schema {contents.schema_version or 'unknown'}"
    yield _labelled_line("version", version if contents.profiler == "nsys" else contents.profiler)
    yield from _labelled_lines("GPUs seen", _gpu_names(contents))
    yield from _labelled_lines("processes", _processes(contents))
    if contents.span_ns:
        start, end = contents.span_ns
        yield _labelled_line("GPU work", f"{duration(end - start)}, from {start} to {end} ns")


def _missing_lines(contents: CaptureContents) -> Iterator[str]:
    for line in contents.missing:
        yield from wrap(plain(line, 1000), "  MISSING    ", " " * 13)


def _labelled_line(label: str, text: str) -> str:
    return cut(f"  {label:<11}{plain(text, 500)}", 80)


def _labelled_lines(label: str, text: str) -> list[str]:
    return wrap(plain(text, 2000), f"  {label:<11}", " " * 13)


def _gpu_names(contents: CaptureContents) -> str:
    counts = Counter(contents.gpus).items()
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts) or "not named"


def _processes(contents: CaptureContents) -> str:
    known = sorted({used.process for used in contents.streams if used.process is not None})
    if len(known) == len({used.process for used in contents.streams}):
        return ", ".join(map(str, known)) or "none with GPU work"
    return ", ".join([*map(str, known), "not recorded for some GPU work"]) if known else "not recorded"


def _stream_lines(contents: CaptureContents) -> Iterator[str]:
    yield _labelled_line("streams", f"{len(contents.streams)} with GPU work")
    for used in contents.streams[:MAX_LISTED_STREAMS]:
        process, device, context, stream = ("?" if value is None else value for value in astuple(used))
        yield f"    stream {stream} of process {process} on device {device}, context {context}"
    if len(contents.streams) > MAX_LISTED_STREAMS:
        yield f"    and {len(contents.streams) - MAX_LISTED_STREAMS} more"


def _table_lines(contents: CaptureContents) -> Iterator[str]:
    yield _labelled_line("tables", f"{len(contents.tables)} read by the analysis, with row counts")
    for name, rows in sorted(contents.tables.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"    {rows:>12,}  {name}"
    if contents.others:
        yield from wrap(plain("not read: " + ", ".join(contents.others), 4000), "    ", "      ")


def _range_lines(contents: CaptureContents) -> Iterator[str]:
    total = sum(times for _, times in contents.ranges)
    yield _labelled_line("NVTX", f"{total:,} ranges with {len(contents.ranges):,} names")
    listed = contents.ranges[:MAX_LISTED_RANGES]
    for name, (_, times) in zip(short_names([plain(name, 200) for name, _ in listed], 60), listed, strict=True):
        yield f"    {times:>12,}  {name}"
    if len(contents.ranges) > MAX_LISTED_RANGES:
        yield f"    and {len(contents.ranges) - MAX_LISTED_RANGES} more names"


def _health_lines(contents: CaptureContents) -> Iterator[str]:
    """Yield what the profiler lost, each with the figures that it affects, and the checks that found nothing."""
    yield _labelled_line("health", "" if contents.health or contents.passed else "nothing to check").rstrip()
    for note in sorted(contents.health, key=lambda note: (not note.affects, note.id != "left_out")):
        affected = f" (affects {', '.join(note.affects)})" if note.affects else ""
        label = "DOUBT" if note.affects else "note"
        yield from wrap(plain(note.text + affected, 1000), f"    {label:<9}", " " * 13)
    for check in contents.passed:
        yield from wrap(plain(check, 1000), "    ok       ", " " * 13)
