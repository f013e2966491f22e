"""Cuts a trace into pieces of complete events, a few megabytes each, because a trace may be larger than memory.

A trace is one JSON object. Its list `traceEvents` is cut into pieces; the rest of the object (GPUs, rank, clock) is
small and is called the document here. Its host name, paths and users are not read. A trace may also be the list alone,
in which case the format allows that its closing bracket is missing. A trace that ends early is read up to its last
whole event.

Quotes say where events end. In a trace with quotes inside names they do not, and the words that begin an event do
(`by_words`).

A GPU event names its GPU and stream; its process is the one that launched it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple

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
# Where an event ends and the next one begins, whatever the quotes around are. torch begins events with these keys.
BOUNDARY = r'(?<=\})\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts)"\s*:)'
EVENT_BOUNDARY = re.compile(BOUNDARY)
# C++ writes the result of a division by zero as a word that JSON does not have; Kineto writes N/A.
NOT_A_NUMBER = r":\s*-?(?:nan|inf|NaN|Infinity|N/A)\s*([,}])"
A_NUMBER = re.compile(NOT_A_NUMBER)
# The name of an event, up to the next key that torch writes; and any text, up to the next key or the end of its object.
NAME_TEXT = re.compile(r'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:|\}\s*$))', re.S)
ANY_TEXT = re.compile(r'("[^"\\]{1,80}"\s*:\s*")(.*?)("\s*(?:,\s*"[^"\\]{1,80}"\s*:|\}))', re.S)
VALID_ESCAPES = re.compile(r'(?:[^\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*', re.S)
QUOTE_INSIDE = re.compile(r'(?<!\\)((?:\\\\)*)"')
CONTROL = re.compile(r"[\x00-\x1f]")
BOUNDARY_BYTES = re.compile(BOUNDARY.encode())
LIST_END = re.compile(rb"\}[^{}\]]{0,64}\]")
MAX_ENDS = 100  # places that are tried for the end of the list
SEPARATOR = 0x1E  # valid JSON never contains this byte unescaped

# Quote these numbers: as JSON numbers they would become floats and lose digits.
TIME = r'"(ts|dur)"\s*:\s*(-?[0-9][-+.0-9eE]*)'
QUOTED = '"${1}":"${2}"'
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
    """One pass over a trace: iterate for the events; afterwards `before` and `after` are the text around them.

    Each piece is the text of some events with SEPARATOR between them. `is_list` is set if the trace has no object
    around its events, and `is_open` if the end of this object or list is missing.
    With `by_words`, events end where words begin the next one, and need not be JSON. Raises NotJsonError.
    """

    def __init__(self, source: IO[bytes], block: int = BLOCK_BYTES, *, by_words: bool = False) -> None:
        self.source, self.block, self.by_words = source, block, by_words
        self.before = self.after = b""
        self.is_list = self.is_open = False

    def __iter__(self) -> Iterator[bytes]:
        self.before, rest = self._read_to_events()
        self.after = yield from (self._cut_by_words if self.by_words else self._cut_by_quotes)(rest)
        if self.is_list and self.after.strip(BLANKS) not in (b"", b"]"):
            raise NotJsonError("has something after its list of events")

    def document(self) -> TraceDocument:
        """Return the document, after iteration. Raises NotJsonError."""
        if self.is_list:
            return read_document(b"{}")
        if not self.is_open:
            try:
                return read_document(self.before + self.after)
            except NotJsonError as error:
                if not error.cut_off:
                    raise
                self.is_open = True
        return read_document(self.before + b"]}")

    def _cut_by_quotes(self, rest: bytes) -> Generator[bytes, None, bytes]:
        """Yield the pieces, and return the text from the list's closing bracket on."""
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
                return b""
        return rest[last:] + self._read_to_end()

    def _cut_by_words(self, rest: bytes) -> Generator[bytes, None, bytes]:
        """Yield the pieces, and return the text from the list's closing bracket on."""
        while True:
            *events, rest = BOUNDARY_BYTES.split(rest)
            _check_event_length(max(map(len, (*events, rest))))
            if events:
                yield _joined(events)
            if not (more := self.source.read(max(self.block, len(rest)))):
                break
            rest += more
        for end in islice(LIST_END.finditer(rest), MAX_ENDS):
            after = rest[end.end() :]
            if (b"{" not in after) if self.is_list else _is_rest_of_document(after):
                yield _joined([rest[: end.end() - 1].rstrip(BLANKS + b",")])
                return b"]" + after
        self.is_open = True
        return b""

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
        self.is_open = not more
        if self.is_open and BOUNDARY_BYTES.search(rest):
            raise NotJsonError("has quotes inside a name")
        return rest + more

    def _read_to_end(self) -> bytes:
        rest = self.source.read(MAX_DOCUMENT_BYTES)
        if self.source.read(1):
            raise NotJsonError("has more than 16 MB after its events")
        return rest


def _joined(events: list[bytes]) -> bytes:
    """Return events with SEPARATOR between them, and another control character where they contain it."""
    return bytes([SEPARATOR]).join(event.replace(bytes([SEPARATOR]), b"\x1f") for event in events)


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
    """Return the events that are JSON, or can be made JSON; a text that holds several events is cut."""
    events: list[str] = []
    repaired = left_out = 0
    for text in texts:
        for event in (text,) if is_event(text) else EVENT_BOUNDARY.split(text):
            fixed = event if is_event(event) else repaired_event(event)
            if fixed is None:
                left_out += 1
            else:
                events.append(fixed)
                repaired += fixed is not event
    return events, Faults(repaired, left_out)


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
