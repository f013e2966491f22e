"""Cuts a trace into pieces of complete events, a few megabytes each, because a trace may be larger than memory.

A trace is one JSON object. Its list `traceEvents` is cut into pieces; the rest of the object (GPUs, rank, clock) is
small and is called the document here. Its host name, paths and users are not read. A trace may also be the list alone,
in which case the format allows that its closing bracket is missing. A trace that ends early is read up to its last
whole event.

The words that begin an event say where the one before ends. Quotes and braces do not, because torch writes names as
they are. In valid JSON, no text contains these words: its quotes would be escaped.

A GPU event names its GPU and stream; its process is the one that launched it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import polars as pl

from traceview.model.catalogue import read_toml
from traceview.read.raw import NOT_A_TIME, DistributedInfo, ProcessGroup
from traceview.read.source import MAX_TEXT

BLOCK_BYTES = 8 << 20
MAX_DOCUMENT_BYTES = 16 << 20  # limit for the text before the events, and for the text after them
MAX_BASE_NS = 1 << 62
NAMES = read_toml(Path(__file__).with_name("kineto.toml"))
GPU_LIMITS: Mapping[str, str] = NAMES["limits"]
EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
LIST_BEGIN = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*(?=[{\]])")
# Where an event ends and the next one begins. torch begins events with "ph" or "name"; programs that sort keys with the
# others. No list after the events has objects that begin so.
BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:args|bp|cat|dur|name|ph|pid|s|tid|ts)"\s*:)')
# C++ writes the result of a division by zero as a word that JSON does not have; Kineto writes N/A.
NOT_A_NUMBER = r":\s*-?(?:nan|inf|NaN|Infinity|N/A)\s*([,}])"
A_NUMBER = re.compile(NOT_A_NUMBER)
# The name of an event, up to the next key that torch writes; and any text, up to the next key or the end of its object.
NAME_TEXT = re.compile(r'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:|\}\s*$))', re.S)
ANY_TEXT = re.compile(r'("[^"\\]{1,80}"\s*:\s*")(.*?)("\s*(?:,\s*"[^"\\]{1,80}"\s*:|\}))', re.S)
VALID_ESCAPES = re.compile(r'(?:[^\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*', re.S)
QUOTE_INSIDE = re.compile(r'(?<!\\)((?:\\\\)*)"')
CONTROL = re.compile(r"[\x00-\x1f]")
LIST_END = re.compile(rb"\}[^{}\]]{0,64}\]")
MAX_ENDS = 100  # places that are tried for the end of the list
SEPARATOR = b"\x1e"  # valid JSON never contains this byte unescaped

# Quote these numbers: as JSON numbers they would become floats and lose digits.
TIME = r'"(ts|dur)"\s*:\s*(-?[0-9][-+.0-9eE]*)'
QUOTED = '"${1}":"${2}"'
PLAIN_DECIMAL = r"^(-?)([0-9]{1,16})(?:\.([0-9]{1,30}))?$"
MAX_MICROSECONDS = 9_000_000_000_000_000  # fits into 64 bits as ns
EXACT_MICROSECONDS = float(1 << 40)  # a smaller float holds ns exactly

BLANKS = b" \t\r\n"


class NotJsonError(ValueError):
    """The text is not JSON, or not a trace; `cut_off` if it only ends early."""

    def __init__(self, reason: str, *, cut_off: bool = False) -> None:
        super().__init__(reason)
        self.cut_off = cut_off


class Pieces:
    """One pass over a trace: iterate for the events; afterwards `before` and `after` are the text around them.

    Each piece is the text of some events with SEPARATOR between them; they need not be JSON. `is_list` is set if the
    trace has no object around its events, and `is_open` if the end of this object or list is missing.
    Raises NotJsonError.
    """

    def __init__(self, source: IO[bytes], block: int = BLOCK_BYTES) -> None:
        self.source, self.block = source, block
        self.before = self.after = b""
        self.is_list = self.is_open = False

    def __iter__(self) -> Iterator[bytes]:
        self.before, rest = self._read_to_events()
        more = rest
        while more:
            piece, separator, rest = BOUNDARY.sub(b"}" + SEPARATOR, rest).rpartition(SEPARATOR)
            if separator:
                # Only the first event of a piece can be longer than what is read at once.
                end = piece.find(SEPARATOR)
                _check_event_length(end if end >= 0 else len(piece))
                yield piece
            _check_event_length(len(rest))
            # Read as much as is left over, so that a long event is not searched again for every block.
            more = self._read(max(self.block, len(rest)))
            rest += more
        yield from self._last_events(rest)

    def document(self) -> TraceDocument:
        """Return the document, after iteration. Raises NotJsonError."""
        if self.is_list:
            return read_document(b"{}")
        return read_document(self.before + (b"]}" if self.is_open else self.after))

    def _last_events(self, rest: bytes) -> Iterator[bytes]:
        """Yield the last event, which the list's bracket ends, and set `after`, or `is_open`."""
        if rest.lstrip(BLANKS).startswith(b"]"):
            self.after = rest
            return
        for end in islice(LIST_END.finditer(rest), MAX_ENDS):
            after = rest[end.end() :]
            if (b"{" not in after) if self.is_list else _is_rest_of_document(after):
                self.after = b"]" + after
                yield rest[: end.end() - 1].rstrip(BLANKS + b",")
                return
        self.is_open = True
        last = rest[: rest.rfind(b"}") + 1]
        if repaired_event(last.decode("utf-8", "replace")) is not None:
            yield last

    def _read(self, count: int) -> bytes:
        """Read bytes; valid JSON has no SEPARATOR."""
        return self.source.read(count).replace(SEPARATOR, b"\x1f")

    def _read_to_events(self) -> tuple[bytes, bytes]:
        """Return the text up to the list's bracket, and the text that was read after it."""
        text = b""
        while more := self._read(max(self.block, len(text))):
            text += more
            if (match := LIST_BEGIN.match(text)) is not None:
                self.is_list = True
                return b"", text[match.end() :]
            if (match := EVENTS_KEY.search(text)) is not None:
                return text[: match.end()], text[match.end() :]
            if len(text) > MAX_DOCUMENT_BYTES:
                raise NotJsonError("has no list of events in its first 16 MB")
        raise NotJsonError("has no list of events", cut_off=not text.rstrip(BLANKS).endswith((b"}", b"]")))


def _is_rest_of_document(after: bytes) -> bool:
    """Return whether a text is what follows the list of events in a trace."""
    try:
        _parsed('{"traceEvents": []' + after.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return False
    return True


def _check_event_length(length: int) -> None:
    if length > MAX_TEXT:
        raise NotJsonError(f"holds an event of more than {MAX_TEXT >> 20} MB")


def decode_quoted(events: pl.Series, schema: pl.Struct) -> pl.DataFrame:
    """Return the fields of events, times as text. Raises NotJsonError."""
    return decoded(events.str.replace_all(TIME, QUOTED), schema)


def decoded(events: pl.Series, schema: pl.Struct) -> pl.DataFrame:
    """Return the fields of events. Raises NotJsonError."""
    with suppress(pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return events.str.json_decode(schema).struct.unnest()
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


def _parsed(text: str) -> Any:
    """Return the value of JSON, also with single backslashes in paths. Raises ValueError or RecursionError."""
    try:
        return json.loads(text, strict=False)
    except json.JSONDecodeError:
        return json.loads(with_escaped_texts(text), strict=False)


def read_document(text: bytes) -> TraceDocument:
    """Read the text of a trace without its events. Raises NotJsonError."""
    try:
        document = _parsed(text.decode("utf-8", "replace"))
    except RecursionError:
        raise NotJsonError("is nested too deep") from None
    except json.JSONDecodeError as error:
        ends_early = error.msg.startswith("Invalid") and not error.doc.rstrip().endswith("}")
        at_the_end = ends_early or error.msg.startswith("Unterminated") or not error.doc[error.pos :].strip()
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


class Faults(NamedTuple):
    """How many events of a trace were repaired, and how many were left out because they are not events."""

    repaired: int = 0
    left_out: int = 0

    def plus(self, other: Faults) -> Faults:
        """Return the faults of two parts of a trace."""
        return Faults(self.repaired + other.repaired, self.left_out + other.left_out)


def repaired_events(texts: Iterable[str]) -> tuple[list[str], Faults]:
    """Return the events that are JSON, or can be made JSON."""
    fixed = [(text, text if is_event(text) else repaired_event(text)) for text in texts]
    events = [event for _, event in fixed if event is not None]
    repaired = sum(event is not None and event is not text for text, event in fixed)
    return events, Faults(repaired, len(fixed) - len(events))


def repaired_event(text: str) -> str | None:
    """Return an event with its texts escaped and null for words in place of numbers; None if it is still not JSON."""
    for change in (
        lambda event: A_NUMBER.sub(r": null\1", event),
        lambda event: NAME_TEXT.sub(_escaped, event, count=1),
        with_escaped_texts,
    ):
        text = change(text)
        if is_event(text):
            return text
    return None


def with_escaped_texts(text: str) -> str:
    """Return the text of an object with what is inside its texts escaped."""
    return ANY_TEXT.sub(_escaped, text)


def is_event(text: str) -> bool:
    """Return whether a text is one JSON object without NaN and Infinity."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse_word), dict)
    except (ValueError, RecursionError):
        return False


def _refuse_word(word: str) -> None:
    raise ValueError(word)


def _escaped(match: re.Match[str]) -> str:
    begin, text, end = match.groups()
    return begin + escaped_text(text) + end


def escaped_text(text: str) -> str:
    """Return the inside of a JSON string with quotes, backslashes and control characters escaped.

    A text with an escape that JSON lacks, such as a path of Windows, has no other escapes either.
    """
    if not VALID_ESCAPES.fullmatch(text):
        text = text.replace("\\", "\\\\")
    return CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", QUOTE_INSIDE.sub(r'\1\\"', text))
