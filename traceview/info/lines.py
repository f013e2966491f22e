"""What `traceview info` prints, in 80 columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from traceview.info.contents import Contents
from traceview.report.format import milliseconds, plain
from traceview.report.layout import cut, left, wrap

STREAMS = 16
RANGES = 10


def lines(of: Contents) -> Iterator[str]:
    """Yield the lines; names from the capture are shortened and made harmless."""
    yield cut(plain(of.file, 200), 76)
    version = f"nsys {of.nsys_version or 'unknown'}, export schema {of.schema_version or 'unknown'}"
    yield _pair("version", version if of.profiler == "nsys" else of.profiler)
    yield from _wrapped("GPUs seen", _gpus(of))
    processes = sorted({one.process for one in of.streams})
    yield from _wrapped("processes", ", ".join(map(str, processes)) or "none worked on a GPU")
    if of.span_ns:
        start, end = of.span_ns
        yield _pair("GPU work", f"{milliseconds(end - start)}, from {start} to {end} ns")
    yield from _streams(of)
    yield from _tables(of)
    yield from _ranges(of)
    for line in of.missing:
        yield from wrap(plain(line, 1000), "  LACKS      ", " " * 13)


def _pair(word: str, text: str) -> str:
    return cut(f"  {word:<11}{plain(text, 500)}", 80)


def _wrapped(word: str, text: str) -> list[str]:
    return wrap(plain(text, 2000), f"  {word:<11}", " " * 13)


def _gpus(of: Contents) -> str:
    counts = Counter(of.gpus).items()
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts) or "not named"


def _streams(of: Contents) -> Iterator[str]:
    yield _pair("streams", f"{len(of.streams)} did work{'' if of.streams else ' on a GPU'}")
    for one in of.streams[:STREAMS]:
        yield f"    stream {one.stream} of process {one.process} on device {one.device}, context {one.context}"
    if len(of.streams) > STREAMS:
        yield f"    and {len(of.streams) - STREAMS} more"


def _tables(of: Contents) -> Iterator[str]:
    yield _pair("tables", f"{len(of.tables)} that the analysis reads, with their rows")
    for name, rows in sorted(of.tables.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"    {rows:>12,}  {name}"
    if of.others:
        yield from wrap(plain("not read: " + ", ".join(of.others), 4000), "    ", "      ")


def _ranges(of: Contents) -> Iterator[str]:
    total = sum(times for _, times in of.ranges)
    yield _pair("NVTX", f"{total:,} ranges of {len(of.ranges):,} names")
    for name, times in of.ranges[:RANGES]:
        yield f"    {times:>12,}  {left(plain(name, 200), 60).rstrip()}"
    if len(of.ranges) > RANGES:
        yield f"    and {len(of.ranges) - RANGES} more names"
