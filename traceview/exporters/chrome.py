"""The Trace Event Format: JSON for chrome://tracing, Perfetto and other readers of PyTorch Profiler traces.

Categories, process and thread numbers, arguments and names of copies match those of PyTorch Profiler. Times are µs with
three decimals. They are exact to the ns, because they are formatted from integers.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from traceview.exporters.contents import ExportContents
from traceview.exporters.slices import CATEGORIES, NUMBERS, TEXTS, Counter, SliceBuilder, Track
from traceview.intervals import index_ranges
from traceview.model.trace import MEMORIES

BLOCK = 1 << 17  # slices
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
# PyTorch Profiler's name of a copy: direction, source memory, target memory.
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
# Thread numbers for tracks without one: above any thread id on Linux, and within 32 bits.
FIRST_FREE_THREAD = 1_000_000_000


def pieces(contents: ExportContents) -> Iterator[bytes]:
    """Yield the trace in pieces."""
    held = HEAD
    for piece in filter(None, _event_lines(contents)):
        yield held
        held = piece
    yield held.removesuffix(SEPARATOR)
    yield TAIL


def _event_lines(contents: ExportContents) -> Iterator[bytes]:
    builder, numbers = SliceBuilder(contents), _TrackNumbers(contents)
    created = builder.tracks.created
    for slices in builder.parts():
        yield from numbers.name_events(created)
        for first in range(0, len(slices), BLOCK):
            block = slices[first : first + BLOCK]
            yield _joined(_slice_events(block, builder.texts, numbers))
            yield _joined(_flow_events(block, numbers))
    for counter in builder.counters():
        yield from numbers.name_events(created)
        yield _joined(_counter_events(counter, created[counter.track - 1], numbers))


def _joined(lines: pl.DataFrame) -> bytes:
    out = io.BytesIO()
    lines.write_csv(out, include_header=False, quote_style="never", line_terminator=SEPARATOR.decode())
    return out.getvalue()


class _TrackNumbers:
    """The process and thread number of each track."""

    def __init__(self, contents: ExportContents) -> None:
        trace = contents.trace
        processes = {int(process) for part in (trace.threads, trace.streams) for process in part["process"]}
        # As in PyTorch Profiler, a GPU is a process numbered by its index, unless a real process has that number.
        devices = len(trace.devices)
        self._first = 0 if all(process >= devices for process in processes) else max(processes) + 1
        self._taken: set[tuple[int, int]] = set()
        self.at: list[str] = []  # the item at Track.id - 1 is such as '"pid":0,"tid":7'
        self.arguments: list[str] = []  # the item at Track.id - 1 has the first arguments of the track's slices

    def name_events(self, tracks: Sequence[Track]) -> Iterator[bytes]:
        """Number the new tracks, and yield the events that name them."""
        for track in tracks[len(self.at) :]:
            process = self._first + track.device if track.device >= 0 else track.process
            thread = self._thread(track, process)
            self.at.append(f'"pid":{process},"tid":{thread}')
            stream_arguments = f',"device":{track.device},"stream":{track.stream_id},"context":{track.context}'
            self.arguments.append(stream_arguments if track.kind == "stream" else "")
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
            own = FIRST_FREE_THREAD + track.id
        self._taken.add((process, own))
        return own


def _microseconds(ns: pl.Expr) -> pl.Expr:
    size = ns.abs()
    sign = pl.when(ns < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    return pl.concat_str(sign, size // 1000, pl.lit("."), (size % 1000).cast(pl.String).str.zfill(3))


def _texts_at(texts: Sequence[str], place: pl.Series) -> pl.Series:
    return pl.Series(texts, dtype=pl.String).gather(place)


def _slice_events(block: pl.DataFrame, texts: Sequence[str], numbers: _TrackNumbers) -> pl.DataFrame:
    heads = [f'{{"ph":"X","cat":"{CHROME_CATEGORIES[name]}","name":' for name in CATEGORIES]
    quoted = {place: json.dumps(texts[place]) for place in _used_texts(block)}
    block = block.with_columns(
        head=_texts_at(heads, block["category"]),
        name=_json_texts(block["name"], quoted),
        at=_texts_at(numbers.at, block["track"] - 1),
        arguments=_texts_at(numbers.arguments, block["track"] - 1),
        **{name: _json_texts(block[name], quoted) for name in TEXTS if name in block.columns},
    )
    if "kind" in block.columns:
        block = _with_copy_names(block)
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


def _with_copy_names(block: pl.DataFrame) -> pl.DataFrame:
    """Name copies and memsets as PyTorch Profiler does, and add the bandwidth of copies."""
    pair = pl.col("kind") + pl.col("memory")
    known = pair.replace_strict(list(COPY_NAMES), list(COPY_NAMES.values()), default=None, return_dtype=pl.String)
    memset = pl.when(pl.col("category") == CATEGORIES.index("memset")).then(pl.lit('"Memset (Device)"'))
    length = pl.col("end") - pl.col("start")
    bandwidth = pl.when((length > 0) & (pl.col("bytes") >= 0)).then((pl.col("bytes") / length).round(3))
    return block.with_columns(pl.coalesce(known, memset, "name").alias("name"), bandwidth.alias(BANDWIDTH))


def _used_texts(block: pl.DataFrame) -> list[int]:
    names = [name for name in ("name", *TEXTS) if name in block.columns]
    return pl.concat([block[name].unique() for name in names]).unique().drop_nulls().to_list()


def _json_texts(place: pl.Series, quoted: dict[int, str]) -> pl.Series:
    return place.replace_strict(list(quoted), list(quoted.values()), default=None, return_dtype=pl.String)


def _flow_events(block: pl.DataFrame, numbers: _TrackNumbers) -> pl.DataFrame:
    """Return the ends of arrows: one at the call for each of its operations, and one at each operation."""
    count = block["flows"].to_numpy().astype(np.int64)
    owner = np.repeat(np.arange(len(block)), count)
    number = index_ranges(np.zeros_like(count), count)
    ends = block.select("start", "track", "flow", "category")[owner]
    ends = ends.with_columns(flow=ends["flow"].cast(pl.Int64) + pl.Series(number, dtype=pl.Int64))
    ends = ends.with_columns(at=_texts_at(numbers.at, ends["track"] - 1))
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


def _counter_events(counter: Counter, track: Track, numbers: _TrackNumbers) -> pl.DataFrame:
    head = f'{{"ph":"C","name":{json.dumps(track.name)},{numbers.at[track.id - 1]},"ts":'
    return pl.DataFrame({"at": counter.at, "value": counter.value}).select(
        pl.concat_str(pl.lit(head), _microseconds(pl.col("at")), pl.lit(',"args":{"bytes/s":'), "value", pl.lit("}}"))
    )
