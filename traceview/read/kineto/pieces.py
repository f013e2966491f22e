"""Cuts a trace into pieces of complete events, a few megabytes each, because a trace may be larger than memory.

A trace is one JSON object. Its list `traceEvents` is cut into pieces; the rest of the object (GPUs, rank, clock) is
small and is called the document here. Its host name, paths and users are not read. A trace may also be the list alone,
in which case the format allows that its closing bracket is missing.

A GPU event names its GPU and stream; its process is the one that launched it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.model.catalogue import read_toml
from traceview.read.raw import NOT_A_TIME, DistributedInfo, ProcessGroup
from traceview.read.source import MAX_TEXT

BLOCK_BYTES = 8 << 20
MAX_DOCUMENT_BYTES = 16 << 20  # limit for the text before the events, and for the text after them
MAX_DEPTH = 64  # events have two levels; a parser may crash at a hundred thousand
MAX_BASE_NS = 1 << 62
NAMES = read_toml(Path(__file__).with_name("kineto.toml"))
GPU_LIMITS: Mapping[str, str] = NAMES["limits"]
EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
LIST_BEGIN = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*(?={)")
SEPARATOR = 0x1E  # valid JSON never contains this byte unescaped

# Quote these numbers: as JSON numbers they would become floats and lose digits.
TIME = r'"(ts|dur)"\s*:\s*(-?[0-9][-+.0-9eE]*)'
QUOTED = '"${1}":"${2}"'
# C++ writes the result of a division by zero as a word that JSON does not have.
NOT_A_NUMBER = r":\s*-?(?:nan|inf|NaN|Infinity)\s*([,}])"
PLAIN_DECIMAL = r"^(-?)([0-9]{1,16})(?:\.([0-9]{1,30}))?$"
MAX_MICROSECONDS = 9_000_000_000_000_000  # fits into 64 bits as ns
EXACT_MICROSECONDS = float(1 << 40)  # a smaller float holds ns exactly

QUOTE, BACKSLASH = ord('"'), ord("\\")
BLANKS = b" \t\r\n"
BLANK = np.isin(np.arange(256), list(BLANKS))
STEPS = np.zeros(256, np.int8)
STEPS[[ord("{"), ord("[")]] = 1
STEPS[[ord("}"), ord("]")]] = -1
STRUCTURE = STEPS != 0


class NotJsonError(ValueError):
    """The text is not JSON, or not a trace; `cut_off` if it only ends early."""

    def __init__(self, reason: str, *, cut_off: bool = False) -> None:
        super().__init__(reason)
        self.cut_off = cut_off


class Pieces:
    """One pass over a trace: iterate for the events; afterwards `document` is the text without its events.

    Each piece is the text of some events with SEPARATOR between them. `is_list` is set if the trace has no object
    around its events, and `is_open` if the closing bracket of this list is missing. Raises NotJsonError.
    """

    def __init__(self, source: IO[bytes], block: int = BLOCK_BYTES) -> None:
        self.source, self.block = source, block
        self.document = b""
        self.is_list = self.is_open = False

    def __iter__(self) -> Iterator[bytes]:
        before, rest = self._read_to_events()
        comma_due = False
        while True:
            rest = rest.lstrip(BLANKS)
            if comma_due and rest.startswith(b","):
                rest, comma_due = rest[1:], False
            ends, last = _event_ends(np.frombuffer(rest, np.uint8))
            if len(ends):
                _check_event_length(int(np.diff(ends, prepend=0).max()))
                yield _separate(rest, ends)
                comma_due = True
            if last is not None:
                # A comma after the last event is harmless; other text may be an event that a flipped quote hides.
                if rest[int(ends[-1]) if len(ends) else 0 : last].strip(BLANKS) not in (b"", b","):
                    raise NotJsonError("has something that is not an event among its events")
                break
            rest = self._read_more(rest[int(ends[-1]) :] if len(ends) else rest)
            if self.is_open:
                break
        after = rest[last:] + self._read_to_end()
        if self.is_list and after.strip(BLANKS) not in (b"", b"]"):
            raise NotJsonError("has something after its list of events")
        self.document = b"{}" if self.is_list else before + after

    def _read_to_events(self) -> tuple[bytes, bytes]:
        """Return the text up to the list's bracket, and the text that was read after it."""
        text = b""
        while more := self.source.read(max(self.block, len(text))):
            text += more
            if (match := LIST_BEGIN.match(text)) is not None:
                self.is_list = True
                return b"", text[match.end() :]
            if (begin := _events_begin(text)) is not None:
                return text[:begin], text[begin:]
            if len(text) > MAX_DOCUMENT_BYTES:
                raise NotJsonError("has no list of events in its first 16 MB")
        _, depth = _bracket_levels(np.frombuffer(text, np.uint8))
        raise NotJsonError("has no list of events", cut_off=len(depth) > 0 and int(depth[-1]) > 0)

    def _read_more(self, rest: bytes) -> bytes:
        _check_event_length(len(rest))
        # Read as much as is left over, so that a long event is not scanned again for every block.
        more = self.source.read(min(max(self.block, len(rest)), MAX_TEXT + 1))
        self.is_open = not more and self.is_list and not rest.strip(BLANKS + b",")
        if not more and not self.is_open:
            raise NotJsonError("ends in the middle of its events", cut_off=True)
        return b"" if self.is_open else rest + more

    def _read_to_end(self) -> bytes:
        rest = self.source.read(MAX_DOCUMENT_BYTES)
        if self.source.read(1):
            raise NotJsonError("has more than 16 MB after its events")
        return rest


def _check_event_length(length: int) -> None:
    if length > MAX_TEXT:
        raise NotJsonError(f"holds an event of more than {MAX_TEXT >> 20} MB")


def _events_begin(text: bytes) -> int | None:
    """Return the place after the bracket of the list of events; only the key of the outermost object counts."""
    matches = list(EVENTS_KEY.finditer(text))
    if not matches:
        return None
    starts = np.array([match.start() for match in matches])
    plain = np.frombuffer(text, np.uint8)
    at, depth = _bracket_levels(plain)
    if not len(at):
        return None
    before = np.searchsorted(at, starts)
    own = (before > 0) & (depth[before - 1] == 1) & (np.searchsorted(_quote_places(plain), starts) % 2 == 0)
    return matches[int(np.argmax(own))].end() if own.any() else None


def _event_ends(text: NDArray[np.uint8]) -> tuple[NDArray[np.int64], int | None]:
    """Return where each complete event ends (after its brace), and the place of the bracket that ends the list."""
    at, depth = _bracket_levels(text)
    if len(depth) and int(depth.max()) > MAX_DEPTH:
        raise NotJsonError(f"is nested more than {MAX_DEPTH} levels deep")
    beyond = np.flatnonzero(depth < 0)
    last = int(at[beyond[0]]) if len(beyond) else None
    if len(beyond):
        at, depth = at[: beyond[0]], depth[: beyond[0]]
    ends = at[depth == 0]
    if (text[ends] != ord("}")).any():
        raise NotJsonError("has an event that is not an object")
    return ends + 1, last


def _bracket_levels(text: NDArray[np.uint8]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of the braces and brackets outside strings, and the depth after each."""
    quotes = _quote_places(text)
    at = np.flatnonzero(STRUCTURE[text])
    at = at[np.searchsorted(quotes, at) % 2 == 0]
    return at, np.cumsum(STEPS[text[at]], dtype=np.int64)


def _quote_places(text: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return where strings begin and end: quotes that do not follow an odd number of backslashes."""
    quotes = np.flatnonzero(text == QUOTE)
    after = quotes[(quotes > 0) & (text[quotes - 1] == BACKSLASH)]
    if len(after) == 0:
        return quotes
    slashes = np.flatnonzero(text == BACKSLASH)
    firsts = slashes[np.diff(slashes, prepend=-2) > 1]
    run = after - firsts[np.searchsorted(firsts, after) - 1]
    return np.setdiff1d(quotes, after[run % 2 == 1], assume_unique=True)


def _separate(text: bytes, ends: NDArray[np.int64]) -> bytes:
    """Return the events with SEPARATOR in place of the commas between them."""
    copy = np.frombuffer(text, np.uint8, count=int(ends[-1])).copy()
    if (copy == SEPARATOR).any():
        raise NotJsonError("has a control character")
    comma = ends[:-1].copy()
    while (blank := BLANK[copy[comma]]).any():
        comma[blank] += 1
    if (copy[comma] != ord(",")).any():
        raise NotJsonError("lacks a comma between two events")
    copy[comma] = SEPARATOR
    return copy.tobytes()


def decode_quoted(events: pl.Series, schema: pl.Struct) -> pl.DataFrame:
    """Return the fields of events, times as text. Raises NotJsonError."""
    return decoded(events.str.replace_all(TIME, QUOTED), schema)


def decoded(events: pl.Series, schema: pl.Struct) -> pl.DataFrame:
    """Return the fields of events. Raises NotJsonError."""
    for change in (False, True):
        texts = events.str.replace_all(NOT_A_NUMBER, ": null${1}") if change else events
        with suppress(pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return texts.str.json_decode(schema).struct.unnest()
    raise NotJsonError("has an event that is not JSON, or a value of a type that torch does not write")


def nanoseconds(text: pl.Expr) -> pl.Expr:
    """Return ns (Int64) of decimal text in µs: NOT_A_TIME for invalid or too large numbers, null for null.

    The conversion avoids floats, which cannot hold seventeen digits, and rounds from the fourth decimal on. Numbers
    with an exponent, which torch does not write, go through a float if it is exact.
    """
    parts = text.str.extract_groups(PLAIN_DECIMAL)
    integer = parts.struct.field("2").cast(pl.Int64)
    digits = parts.struct.field("3").fill_null("").str.slice(0, 4).str.pad_end(4, "0").cast(pl.Int64)
    plain = integer * 1000 + (digits + 5) // 10
    signed = pl.when(parts.struct.field("1") == "-").then(-plain).otherwise(plain)
    scientific = text.cast(pl.Float64, strict=False)
    return (
        pl.when(text.is_null())
        .then(None)
        .when(integer.is_not_null() & (integer <= MAX_MICROSECONDS))
        .then(signed)
        .when(integer.is_null() & (scientific.abs() < EXACT_MICROSECONDS))
        .then((scientific.fill_nan(None) * 1000).round().cast(pl.Int64, strict=False))
        .otherwise(pl.lit(NOT_A_TIME, pl.Int64))
    )


class TraceGpu(NamedTuple):
    """A GPU of `deviceProperties`; `limits` has those of GPU_LIMITS that are integers."""

    ordinal: int
    name: str
    limits: Mapping[str, int]

    @property
    def max_blocks(self) -> int | None:
        """The most resident blocks of an SM, which torch.profiler does not write; None if unknown."""
        blocks: dict[str, int] = NAMES["blocks"]
        return blocks.get(f"{self.limits.get('computeMajor', 0)}.{self.limits.get('computeMinor', 0)}")


class TraceDocument(NamedTuple):
    """A trace without its events: times count from `base_ns`, 0 for the Unix epoch.

    `is_torch` is set if a key of torch.profiler is present.
    """

    gpus: tuple[TraceGpu, ...]
    base_ns: int
    is_torch: bool
    distributed: DistributedInfo | None


def read_document(text: bytes) -> TraceDocument:
    """Read the text of a trace without its events. Raises NotJsonError."""
    try:
        document = json.loads(text.decode("utf-8", "replace"))
    except RecursionError:
        raise NotJsonError("is nested too deep") from None
    except json.JSONDecodeError as error:
        at_the_end = error.msg.startswith("Unterminated") or not error.doc[error.pos :].strip()
        raise NotJsonError("is not JSON around its events", cut_off=at_the_end) from None
    except ValueError:
        raise NotJsonError("has an impossible number around its events") from None
    if not isinstance(document, dict) or document.get("traceEvents"):
        raise NotJsonError("has two lists of events")
    base = document.get("baseTimeNanoseconds")
    return TraceDocument(
        tuple(_gpus(document.get("deviceProperties"))),
        base if type(base) is int and 0 <= base < MAX_BASE_NS else 0,
        bool({"schemaVersion", "deviceProperties", "distributedInfo"} & document.keys()),
        _distributed(document.get("distributedInfo")),
    )


def _gpus(listed: object) -> Iterator[TraceGpu]:
    """Yield the GPUs with an ordinal and a name."""
    for gpu in listed if isinstance(listed, list) else ():
        if isinstance(gpu, dict) and _is_small(gpu.get("id")) and isinstance(gpu.get("name"), str):
            limits = {name: gpu[name] for name in GPU_LIMITS if _is_small(gpu.get(name))}
            yield TraceGpu(gpu["id"], _text(gpu["name"]), limits)


def _distributed(info: object) -> DistributedInfo | None:
    """Return rank, world size and process groups; None without `info`. A trace may lack each of the values."""
    if not isinstance(info, dict):
        return None
    listed = info.get("pg_config")
    groups = [group for group in listed if isinstance(group, dict)] if isinstance(listed, list) else []
    return DistributedInfo(
        _small(info.get("rank")),
        _small(info.get("world_size")),
        tuple(
            ProcessGroup(
                _text(group.get("pg_desc") or group.get("pg_name")),
                _text(group.get("backend_config")),
                _small(group.get("pg_size")),
                tuple(filter(_is_small, ranks)) if isinstance(ranks := group.get("ranks"), list) else (),
            )
            for group in groups
        ),
    )


def _text(value: object) -> str:
    """Return a text without halves of surrogate pairs, which JSON can contain and a frame cannot; "" for others."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _small(value: object) -> int | None:
    return value if isinstance(value, int) and _is_small(value) else None


def _is_small(value: object) -> bool:
    return type(value) is int and abs(value) < 1 << 31


MAX_ID = 0xFFFFFF  # nsys packs a process and a thread into 24 bits each


class TraceIdentity(NamedTuple):
    """`processes` and `threads` map the trace's ids to ids of 24 bits; `main` is the most frequent process.

    `launched` has the process of each correlation id if the trace has several processes, else it is None.
    """

    processes: pl.DataFrame
    threads: pl.DataFrame
    main: int
    launched: pl.DataFrame | None

    @classmethod
    def from_events(cls, frames: Mapping[str, pl.DataFrame]) -> TraceIdentity:
        """Collect the ids of the host events."""
        host = pl.concat([frames[sort].select("pid", "tid", "correlation") for sort in ("call", "range")])
        processes = _ids_of_24_bits(host["pid"])
        calls = frames["call"].select("pid", "correlation").join(processes, on="pid", how="left")
        launched = None
        if calls["pid"].n_unique() > 1:
            launched = calls.unique("correlation", keep="first", maintain_order=True).select("correlation", "pid24")
        ids = calls["pid24"] if len(calls) else host.join(processes, on="pid", how="left")["pid24"]
        common = ids.drop_nulls().mode().sort()
        return cls(processes, _ids_of_24_bits(host["tid"]), int(common[0]) if len(common) else 0, launched)

    def global_tid(self, frame: pl.DataFrame) -> pl.Series:
        """Return nsys's globalTid of host events."""
        joined = frame.select("pid", "tid").join(self.processes, on="pid", how="left", maintain_order="left")
        joined = joined.join(self.threads, on="tid", how="left", maintain_order="left")
        packed = pl.col("pid24").fill_null(self.main) * (MAX_ID + 1) + pl.col("tid24").fill_null(0)
        return joined.select(packed.alias("globalTid")).to_series()

    def global_pid(self, frame: pl.DataFrame) -> pl.Series:
        """Return nsys's globalPid of GPU events."""
        if self.launched is None:
            return pl.Series("globalPid", [self.main * (MAX_ID + 1)], pl.Int64).new_from_index(0, len(frame))
        joined = frame.select("correlation").join(self.launched, on="correlation", how="left", maintain_order="left")
        return joined.select((pl.col("pid24").fill_null(self.main) * (MAX_ID + 1)).alias("globalPid")).to_series()


def _ids_of_24_bits(ids: pl.Series) -> pl.DataFrame:
    """Return a 24-bit id for each id: the id itself if it fits, else an unused one."""
    name = ids.name
    unique = ids.unique().drop_nulls().sort()
    fits = unique.is_between(0, MAX_ID)
    taken = set(unique.filter(fits).to_list())
    free = (number for number in range(MAX_ID, 0, -1) if number not in taken)
    wide = unique.filter(~fits)
    assigned = [next(free, 0) for _ in range(len(wide))]
    return pl.DataFrame(
        {
            name: pl.concat([unique.filter(fits), wide]),
            f"{name}24": pl.concat([unique.filter(fits), pl.Series(assigned, dtype=pl.Int64)]),
        }
    )
