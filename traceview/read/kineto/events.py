"""The events of a trace that the analysis needs, as typed frames: integers, and each name once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import polars as pl

from traceview.model.stacks import FUNCTION, MODULE, OP, SCOPE_KINDS
from traceview.read.kineto.pieces import (
    NAMES,
    NOT_A_NUMBER,
    QUOTED,
    SEPARATOR,
    TIME,
    Faults,
    NotJsonError,
    decode_quoted,
    decoded,
    nanoseconds,
    repaired_events,
)
from traceview.read.kineto.sizes import (
    MATH,
    MATH_COLUMNS,
    MEMORY,
    MEMORY_COLUMNS,
    MESSAGE,
    MESSAGE_COLUMNS,
    sized_events,
)
from traceview.read.raw import NOT_A_TIME
from traceview.read.source import MAX_NAME, DecodedSize

SCOPE = "scope"
SCOPE_CATEGORY = r'"cat"\s*:\s*"(?:cpu_op|Operator|python_function)"'
NAME_KEY = r'"name"\s*:\s*"'
# Frames of `python_function` that no program wrote; a path may remain before the package.
LIBRARY = rf"{NAME_KEY}(?:<|(?:[^\"]*/)?(?:torch/|(?:contextlib|functools|threading|typing|enum|weakref|abc)\.py\())"
PYTHON = r'"cat"\s*:\s*"python_function"'
STARTS_TRACE = r'/profiler\.py\(\d+\): _?start_trace"'  # the function in which the profiler begins
MODULE_NAME = r"^nn\.Module: (.+)$"
FUNCTION_NAME = r"^(.*)\((\d+)\): (.*)$"
LINE = r":\d+ "
PYTHON_LIBRARY = r"lib(?:64)?/python\d+\.\d+"
PACKAGES_FOLDER = rf"/(?:{PYTHON_LIBRARY}/(?:site|dist)-packages|(?:site|dist)-packages|{PYTHON_LIBRARY})/(.+)$"
EVALUATION = "autograd::engine::evaluate_function"
SCOPE_SCHEMA = pl.Struct(
    dict.fromkeys(("ph", "cat", "name", "pid", "tid", "ts", "dur"), pl.String)
    | {"args": pl.Struct(dict.fromkeys(("Sequence number", "Fwd thread id"), pl.String))}
)
SCOPE_COLUMNS = ("pid", "tid", "start", "end", "name", "kind", "backward", "sequence", "forward_thread")
MAX_PATH_PARTS = 2  # parts that are kept of a path that is not relative to a package or to the program's folder


def scope_events(events: pl.Series) -> list[pl.DataFrame]:
    """Return the scopes among the texts of events, in a frame if there are any.

    torch.profiler writes ops always, and modules and functions with with_stack=True. A module's name has a number for
    each instance of its class. Functions of PyTorch and of Python's standard library are left out: they are not the
    program's. Those that are open when the profiler begins have the line of that moment, which is not theirs.
    """
    events = events.filter(events.str.contains(SCOPE_CATEGORY))
    if events.is_empty():
        return []
    python, began = events.str.contains(PYTHON), None
    if python.any():
        starts = decode_quoted(events.filter(events.str.contains(STARTS_TRACE)), SCOPE_SCHEMA)
        began = starts.select(nanoseconds(pl.col("ts")).min()).item()
        events = events.filter(~(python & events.str.contains(LIBRARY)))
    args = pl.col("args").struct
    module, function = pl.col("name").str.extract(MODULE_NAME), _function_name(pl.col("name"))
    is_open = nanoseconds(pl.col("ts")) <= pl.lit(began, pl.Int64)
    function = pl.when(is_open).then(function.str.replace(LINE, " ")).otherwise(function)
    is_python = pl.col("cat") == "python_function"
    from_engine = pl.col("name").str.starts_with(EVALUATION)
    kind = pl.when(~is_python).then(pl.lit(OP)).when(module.is_not_null()).then(pl.lit(MODULE))
    thread = args.field("Fwd thread id").cast(pl.Int64, strict=False)
    named = pl.when(is_python).then(pl.coalesce(module, function)).otherwise("name")
    scopes = (
        decode_quoted(events, SCOPE_SCHEMA)
        .filter(pl.col("ph") == "X")
        .select(
            pl.lit(SCOPE).alias("sort"),
            named.str.slice(0, MAX_NAME + 1).alias("name"),
            *(pl.col(name).cast(pl.Int64, strict=False) for name in ("pid", "tid")),
            nanoseconds(pl.col("ts")).alias("start"),
            nanoseconds(pl.col("dur")).alias("length"),
            kind.otherwise(pl.lit(FUNCTION)).replace_strict(SCOPE_KINDS, range(len(SCOPE_KINDS))).alias("kind"),
            ((thread > 0).fill_null(False) | from_engine).cast(pl.Int64).alias("backward"),
            args.field("Sequence number").cast(pl.Int64, strict=False).alias("sequence"),
            pl.when(thread > 0).then(thread).alias("forward_thread"),
        )
    )
    return [scopes.filter(pl.col("name").is_not_null())]


def _function_name(name: pl.Expr) -> pl.Expr:
    """Return `models/gpt.py:31 forward` of `/home/me/models/gpt.py(31): forward`; null for another form.

    A path that is not relative keeps what follows the folder of packages, or its last MAX_PATH_PARTS parts.
    """
    parts = name.str.extract_groups(FUNCTION_NAME).struct
    path = parts.field("1").str.replace_all("\\", "/", literal=True)
    installed = path.str.extract(PACKAGES_FOLDER)
    last = path.str.split("/").list.tail(MAX_PATH_PARTS).list.join("/")
    short = pl.when(path.str.contains(r"^(?:[/.~]|\w:)")).then(pl.coalesce(installed, last))
    return pl.format("{}:{} {}", short.otherwise(path), parts.field("2"), parts.field("3"))


SORTS: Mapping[str, str] = NAMES["sorts"]
METADATA = "metadata"
# In 2021 ranges had the category of operators; torch itself gives these names.
OLD_RANGE = r"(?:ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)#)"
HIP_CORRELATION = "External id"  # old traces of AMD GPUs link calls and their work by it
NUMBERS = ("correlation", "stream", "device", "context", "bytes")
SYNC_NUMBERS = ("wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id", "event_id")
PEER_NUMBERS = ("inDevice", "inContext")  # peer-to-peer copies use these names
DIMENSIONS = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
LAUNCH_NUMBERS: Mapping[str, str] = {**NAMES["launch"], **{name: name for name in DIMENSIONS}}
ARGUMENTS = (*NUMBERS, *SYNC_NUMBERS, *PEER_NUMBERS, *LAUNCH_NUMBERS, HIP_CORRELATION, "name")
SCHEMA = pl.Struct(
    dict.fromkeys(("ph", "cat", "name", "pid", "tid", "ts", "dur"), pl.String)
    | {"args": pl.Struct(dict.fromkeys(ARGUMENTS, pl.String))}
)
WANTED = rf'"cat"\s*:\s*"(?:{"|".join(SORTS)})"|"name"\s*:\s*"(?:(?:process|thread)_name"|{OLD_RANGE})'
# Three numbers in a list become three values, so that lists of other types stay unread.
SIZES = r'"(grid|block)"\s*:\s*\[\s*([0-9]+)\s*,\s*([0-9]+)\s*,\s*([0-9]+)\s*\]'
HOST = ("pid", "tid", "start", "end", "correlation", "name")
ON_A_STREAM = (*HOST, "device", "context", "stream")
# The columns that are kept for each sort of event (values of SORTS).
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "kernel": (*ON_A_STREAM, *LAUNCH_NUMBERS.values()),
    "memcpy": (*ON_A_STREAM, "bytes"),
    "memset": (*ON_A_STREAM, "bytes"),
    "call": HOST,
    "range": HOST,
    "overhead": HOST,
    "sync": (*ON_A_STREAM, "wait_on_stream", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id"),
    "event": (*ON_A_STREAM, "event_id"),
    METADATA: ("pid", "tid", "name", "label"),
    SCOPE: SCOPE_COLUMNS,
    MATH: MATH_COLUMNS,
    MESSAGE: MESSAGE_COLUMNS,
    MEMORY: MEMORY_COLUMNS,
}
TIMED_SORTS = ("kernel", "memcpy", "memset", "call", "range", "overhead")
PIECES_AT_ONCE = 2  # a piece takes about ten times its size while it is decoded
LONG_PIECE_BYTES = 32 << 20  # a piece of this size holds one long event, and is decoded alone


class TraceEvents(NamedTuple):
    """`frames` has a frame per sort of COLUMNS; `name` and `label` are indices into `names`; all columns are Int64."""

    frames: Mapping[str, pl.DataFrame]
    names: tuple[str, ...]
    faults: Faults = Faults()

    @property
    def event_count(self) -> int:
        """The number of events."""
        return sum(map(len, self.frames.values()))


def trace_events(pieces: Iterable[bytes], size: DecodedSize) -> TraceEvents:
    """Decode all pieces. Raises NotJsonError, and ReportError above the limit of `size`."""
    indices: dict[str, int] = {}
    parts: dict[str, list[pl.DataFrame]] = {sort: [] for sort in COLUMNS}
    faults = Faults()
    for frame, more in _decoded_pieces(pieces):
        faults = faults.plus(more)
        coded = frame.with_columns(
            _name_indices(frame["name"], indices, size), _name_indices(frame["label"], indices, size), _end_column()
        )
        for (sort,), part in coded.partition_by("sort", as_dict=True).items():
            parts[str(sort)].append(part.select(COLUMNS[str(sort)]))
            size.add(8 * part.width * part.height)
    frames = {
        sort: pl.concat(some) if some else pl.DataFrame(schema=dict.fromkeys(COLUMNS[sort], pl.Int64))
        for sort, some in parts.items()
    }
    return TraceEvents(frames, tuple(indices), faults)


def relative_times(events: TraceEvents) -> tuple[TraceEvents, int]:
    """Return the events with times relative to the first start, and that start (ns)."""
    starts = pl.concat([events.frames[sort]["start"] for sort in TIMED_SORTS])
    starts = starts.filter(starts != NOT_A_TIME)
    first = starts.min()
    if not isinstance(first, int):
        return events, 0
    moved = {
        sort: frame.with_columns(
            pl.when(pl.col(name) == NOT_A_TIME).then(pl.col(name)).otherwise(pl.col(name) - first).alias(name)
            for name in ("start", "end")
            if name in frame.columns
        )
        for sort, frame in events.frames.items()
    }
    return events._replace(frames=moved), first


def _decoded_pieces(pieces: Iterable[bytes]) -> Iterator[tuple[pl.DataFrame, Faults]]:
    """Decode pieces in order, some at the same time: polars releases the interpreter lock."""
    waiting: deque[Future[tuple[pl.DataFrame, Faults]]] = deque()
    with ThreadPoolExecutor(PIECES_AT_ONCE) as pool:
        for piece in pieces:
            waiting.append(pool.submit(decode, piece))
            while len(waiting) > (PIECES_AT_ONCE if len(piece) < LONG_PIECE_BYTES else 0):
                yield waiting.popleft().result()
        for last in waiting:
            yield last.result()


def _name_indices(texts: pl.Series, indices: dict[str, int], size: DecodedSize) -> pl.Series:
    """Return each text's index in `indices`, to which new texts are added; null for null."""
    unique = texts.unique(maintain_order=True).drop_nulls()  # the order numbers the names, and every read must agree
    size.add(int(unique.str.len_bytes().sum()))
    own = [indices.setdefault(text, len(indices)) for text in unique.to_list()]
    coded = pl.DataFrame({"text": unique, "index": pl.Series(own, dtype=pl.Int64)})
    rows = texts.to_frame("text").join(coded, on="text", how="left", maintain_order="left")
    return rows["index"].alias(texts.name)


def _end_column() -> pl.Expr:
    start, length = pl.col("start"), pl.col("length")
    invalid = (start == NOT_A_TIME) | (length == NOT_A_TIME)
    return pl.when(invalid).then(pl.lit(NOT_A_TIME, pl.Int64)).otherwise(start + length).alias("end")


def decode(piece: bytes) -> tuple[pl.DataFrame, Faults]:
    """Return the wanted events of a piece, its scopes, and events of which a size is known (sizes.py).

    Columns: sort (a value of SORTS, or METADATA), name and label (text; `label` is the name that metadata assigns),
    pid, tid, start, length (ns), NUMBERS, SYNC_NUMBERS and the values of LAUNCH_NUMBERS. All but the texts are Int64,
    null if an event lacks them. Events that are not JSON are repaired or left out.
    """
    replaced = 0
    try:
        events = pl.Series(piece.decode().split(SEPARATOR.decode()))
    except UnicodeDecodeError:
        events = pl.Series(piece.decode("utf-8", "replace").split(SEPARATOR.decode()))
        replaced = int(events.str.contains("\ufffd", literal=True).sum())
    with suppress(NotJsonError):
        return _wanted_events(events), Faults(replaced)
    numbers = events.str.replace_all(NOT_A_NUMBER, ": null${1}")
    with suppress(NotJsonError):
        return _wanted_events(numbers), Faults(replaced + int((numbers != events).sum()))
    texts, faults = repaired_events(events)
    frame, unreadable = _readable_events(pl.Series(texts, dtype=pl.String))
    return frame, faults.plus(Faults(replaced, unreadable))


def _readable_events(events: pl.Series) -> tuple[pl.DataFrame, int]:
    """Return the wanted ones of events that are JSON, and how many have a value of a type that torch does not write."""
    with suppress(NotJsonError):
        return _wanted_events(events), 0
    if len(events) == 1:
        return _wanted_events(events.clear()), 1
    half = len(events) // 2
    (first, lost_first), (second, lost_second) = _readable_events(events[:half]), _readable_events(events[half:])
    return pl.concat([first, second], how="diagonal"), lost_first + lost_second


def _wanted_events(events: pl.Series) -> pl.DataFrame:
    wanted = events.filter(events.str.contains(WANTED)).str.replace_all(TIME, QUOTED)
    wanted = wanted.str.replace_all(SIZES, '"${1}X":${2},"${1}Y":${3},"${1}Z":${4}')
    more = [*sized_events(events), *scope_events(events)]
    return pl.concat([_typed_events(decoded(wanted, SCHEMA)), *more], how="diagonal")


def _typed_events(events: pl.DataFrame) -> pl.DataFrame:
    args = pl.col("args").struct
    metadata = (pl.col("ph") == "M") & pl.col("name").is_in(["process_name", "thread_name"])
    old_range = (pl.col("cat") == "Operator") & pl.col("name").str.contains(f"^{OLD_RANGE}")
    by_category = pl.col("cat").replace_strict(SORTS, default=None, return_dtype=pl.String)
    sort = pl.when(old_range).then(pl.lit("range")).otherwise(by_category)
    is_hip = sort.is_in(["kernel", "memcpy", "memset"]) | pl.col("name").str.starts_with("hip")
    correlation = pl.coalesce(args.field("correlation"), pl.when(is_hip).then(args.field(HIP_CORRELATION)))
    return (
        events.select(
            pl.when(metadata).then(pl.lit(METADATA)).when(pl.col("ph") == "X").then(sort).alias("sort"),
            pl.col("name").fill_null("").str.slice(0, MAX_NAME + 1),
            args.field("name").str.slice(0, MAX_NAME + 1).alias("label"),
            _integer(pl.col("pid")).alias("pid"),
            _integer(pl.col("tid")).alias("tid"),
            nanoseconds(pl.col("ts")).alias("start"),
            nanoseconds(pl.col("dur")).alias("length"),
            _integer(correlation).alias("correlation"),
            *(_integer(args.field(name)).alias(name) for name in (*NUMBERS[1:], *SYNC_NUMBERS, *PEER_NUMBERS)),
            *(_integer(args.field(source)).alias(name) for source, name in LAUNCH_NUMBERS.items()),
        )
        .filter(pl.col("sort").is_not_null())
        .with_columns(
            pl.coalesce("device", "inDevice").alias("device"), pl.coalesce("context", "inContext").alias("context")
        )
        .drop(PEER_NUMBERS)
    )


def _integer(text: pl.Expr) -> pl.Expr:
    return text.cast(pl.Int64, strict=False)
