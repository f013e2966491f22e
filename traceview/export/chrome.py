"""The Trace Event Format: JSON for chrome://tracing, Perfetto and what else reads PyTorch Profiler's traces.

Categories, process and thread numbers, arguments and the names of copies are those that PyTorch Profiler writes. Times
are µs, written as decimals with three places: exact to the ns, because they never were floats.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from traceview.export.contents import Contents
from traceview.export.throughput import Counter
from traceview.export.timeline import CATEGORIES, NUMBERS, TEXTS, Timeline
from traceview.export.tracks import Track
from traceview.intervals import consecutive
from traceview.model.trace import MEMORIES

BLOCK = 1 << 17
HEAD = b'{"schemaVersion":1,"displayTimeUnit":"ns","traceEvents":[\n'
TAIL = b"\n]}\n"
SEPARATOR = b",\n"
CHROME_CATEGORIES = {
    "kernel": "kernel",
    "communication": "kernel",
    "graph": "kernel",
    "copy": "gpu_memcpy",
    "memset": "gpu_memset",
    "cuda_api": "cuda_runtime",
    "nvtx": "user_annotation",
    "idle": "idle",
}
FLOW = "ac2g"
# What PyTorch Profiler, and what reads it, calls a copy: direction and memories, (from, to).
DIRECTIONS = {
    "h2d": ("HtoD", "{}", "Device"),
    "d2h": ("DtoH", "Device", "{}"),
    "d2d": ("DtoD", "Device", "Device"),
    "h2h": ("HtoH", "{}", "{}"),
    "p2p": ("PtoP", "Device", "Device"),
}
COPY_NAMES = {
    f'"{kind}""{memory}"': f'"Memcpy {way} ({source} -> {target})"'.replace("{}", memory.capitalize())
    for kind, (way, source, target) in DIRECTIONS.items()
    for memory in MEMORIES
}
BANDWIDTH = "memory bandwidth (GB/s)"
# Above any thread's number on Linux, and within 32 bits: rows that have no number of their own.
OWN_NUMBERS = 1_000_000_000


def pieces(of: Contents) -> Iterator[bytes]:
    """Yield a trace in pieces."""
    held = HEAD
    for piece in filter(None, _lines(of)):
        yield held
        held = piece
    yield held.removesuffix(SEPARATOR)
    yield TAIL


def _lines(of: Contents) -> Iterator[bytes]:
    line, rows = Timeline(of), _Rows(of)
    for slices in line.parts():
        yield from rows.named(line.tracks.made)
        for first in range(0, len(slices), BLOCK):
            block = slices[first : first + BLOCK]
            yield _text(_slices(block, line.texts, rows))
            yield _text(_flows(block, rows))
    for counter in line.counters():
        yield from rows.named(line.tracks.made)
        yield _text(_counted(counter, line.tracks.made[counter.track - 1], rows))


def _text(lines: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    lines.write_csv(out, include_header=False, quote_style="never", line_terminator=SEPARATOR.decode())
    return out.getvalue()


class _Rows:
    """Which process and thread number each row has."""

    def __init__(self, of: Contents) -> None:
        processes = {int(process) for part in (of.trace.threads, of.trace.streams) for process in part["process"]}
        # A GPU is a process whose number is its place among the GPUs, as in PyTorch Profiler's traces.
        few = len(of.trace.devices)
        self._first = 0 if all(process >= few for process in processes) else max(processes) + 1
        self._taken: set[tuple[int, int]] = set()
        self.at: list[str] = []  # of each Track.id - 1: '"pid":0,"tid":7'
        self.arguments: list[str] = []  # what the arguments of its slices begin with

    def named(self, tracks: Sequence[Track]) -> Iterator[bytes]:
        """Number the rows that are new, and yield the events that name them."""
        for track in tracks[len(self.at) :]:
            process = self._first + track.device if track.device >= 0 else track.process
            thread = self._thread(track, process)
            self.at.append(f'"pid":{process},"tid":{thread}')
            of_stream = f',"device":{track.device},"stream":{track.stream_id},"context":{track.context}'
            self.arguments.append(of_stream if track.kind == "stream" else "")
            level = "process" if track.kind in ("process", "device") else "thread"
            if track.kind != "counter":
                yield self._meta(f"{level}_name", {"name": track.name})
                yield self._meta(f"{level}_sort_index", {"sort_index": track.id})

    def _meta(self, name: str, arguments: dict[str, str | int]) -> bytes:
        return f'{{"ph":"M","name":"{name}",{self.at[-1]},"args":{json.dumps(arguments)}}}'.encode() + SEPARATOR

    def _thread(self, track: Track, process: int) -> int:
        own = {"thread": track.tid, "stream": track.stream_id}.get(track.kind, -1)
        if track.kind in ("process", "device", "counter"):
            return 0
        if own < 0 or (process, own) in self._taken:
            own = OWN_NUMBERS + track.id
        self._taken.add((process, own))
        return own


def _microseconds(ns: pl.Expr) -> pl.Expr:
    size = ns.abs()
    sign = pl.when(ns < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return pl.concat_str(sign, size // 1000, pl.lit("."), (size % 1000).cast(pl.String).str.zfill(3))


def _picked(texts: Sequence[str], place: pl.Series) -> pl.Series:
    return pl.Series(texts, dtype=pl.String).gather(place)


def _slices(block: pl.DataFrame, texts: Sequence[str], rows: _Rows) -> pl.DataFrame:
    heads = [f'{{"ph":"X","cat":"{CHROME_CATEGORIES[name]}","name":' for name in CATEGORIES]
    quoted = {place: json.dumps(texts[place]) for place in _used(block)}
    block = block.with_columns(
        head=_picked(heads, block["category"]),
        name=_quoted(block["name"], quoted),
        at=_picked(rows.at, block["track"] - 1),
        arguments=_picked(rows.arguments, block["track"] - 1),
        **{name: _quoted(block[name], quoted) for name in TEXTS if name in block.columns},
    )
    if "kind" in block.columns:
        block = _copies_named(block)
    arguments = [
        (pl.lit(f',"{name}":') + pl.col(name).cast(pl.String)).fill_null("")
        for name in (*NUMBERS, *TEXTS, BANDWIDTH)
        if name in block.columns
    ]
    return block.select(
        pl.concat_str(
            "head",
            "name",
            pl.lit(","),
            "at",
            pl.lit(',"ts":'),
            _microseconds(pl.col("start")),
            pl.lit(',"dur":'),
            _microseconds(pl.col("end") - pl.col("start")),
            pl.lit(',"args":{'),
            pl.concat_str("arguments", *arguments).str.strip_prefix(","),
            pl.lit("}}"),
        )
    )


def _copies_named(block: pl.DataFrame) -> pl.DataFrame:
    """Call copies and memsets what PyTorch Profiler calls them, with their bandwidth."""
    pair = pl.col("kind") + pl.col("memory")
    known = pair.replace_strict(list(COPY_NAMES), list(COPY_NAMES.values()), default=None, return_dtype=pl.String)
    memset = pl.when(pl.col("category") == CATEGORIES.index("memset")).then(pl.lit('"Memset (Device)"'))
    length = pl.col("end") - pl.col("start")
    bandwidth = pl.when((length > 0) & (pl.col("bytes") >= 0)).then((pl.col("bytes") / length).round(3))
    return block.with_columns(pl.coalesce(known, memset, "name").alias("name"), bandwidth.alias(BANDWIDTH))


def _used(block: pl.DataFrame) -> list[int]:
    names = [name for name in ("name", *TEXTS) if name in block.columns]
    return pl.concat([block[name].unique() for name in names]).unique().drop_nulls().to_list()


def _quoted(place: pl.Series, quoted: dict[int, str]) -> pl.Series:
    return place.replace_strict(list(quoted), list(quoted.values()), default=None, return_dtype=pl.String)


def _flows(block: pl.DataFrame, rows: _Rows) -> pl.DataFrame:
    """Return the arrows' ends: one for each of a call's operations, one for each operation that has a call."""
    count = block["flows"].to_numpy().astype(np.int64)
    owner = np.repeat(np.arange(len(block)), count)
    number = consecutive(np.zeros_like(count), count)
    ends = block.select("start", "track", "flow", "category")[owner]
    ends = ends.with_columns(flow=ends["flow"].cast(pl.Int64) + pl.Series(number, dtype=pl.Int64))
    ends = ends.with_columns(at=_picked(rows.at, ends["track"] - 1))
    begins = pl.lit(f'{{"ph":"s","cat":"{FLOW}","name":"{FLOW}","id":')
    arrives = pl.lit(f'{{"ph":"f","bp":"e","cat":"{FLOW}","name":"{FLOW}","id":')
    return ends.select(
        pl.concat_str(
            pl.when(pl.col("category") == CATEGORIES.index("cuda_api")).then(begins).otherwise(arrives),
            "flow",
            pl.lit(","),
            "at",
            pl.lit(',"ts":'),
            _microseconds(pl.col("start")),
            pl.lit("}"),
        )
    )


def _counted(counter: Counter, track: Track, rows: _Rows) -> pl.DataFrame:
    head = f'{{"ph":"C","name":{json.dumps(track.name)},{rows.at[track.id - 1]},"ts":'
    return pl.DataFrame({"at": counter.at, "value": counter.value}).select(
        pl.concat_str(pl.lit(head), _microseconds(pl.col("at")), pl.lit(',"args":{"bytes/s":'), "value", pl.lit("}}"))
    )
