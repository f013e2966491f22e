"""Chooses the reader of a capture by its content, never by its name.

A new format takes one module with a class that implements `Reader`, and one entry in READERS.

A compressed capture (gzip, xz or zstd) is decompressed into a private folder, within limits.
"""

from __future__ import annotations

import gzip
import importlib
import lzma
import re
import shutil
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, runtime_checkable

from traceview.errors import DamagedExportError, NotAnExportError, ReportError, RequestError
from traceview.read.kineto import KinetoReader
from traceview.read.nsys_rep import NsysReportReader, refuse_other_exports, refuse_stream
from traceview.read.parquet import TableFolderReader
from traceview.read.raw import RawCapture, Wanted
from traceview.read.source import (
    HEAD_BYTES,
    MAX_DECODED,
    display_name,
    private_folder,
    read_head,
    refuse_pointer,
    size_text,
    table_files,
    unchanged,
)
from traceview.read.sqlite.reader import SqliteReader, tables_with_metadata, write_sqlite

CHUNK_BYTES = 1 << 20
MIN_SUSPICIOUS = 64 << 20  # bytes; smaller results may have any ratio
MAX_RATIO = 200  # real exports shrink 4 to 10 times
MIN_FREE = 256 << 20  # bytes left free on the disk that holds temporary files


class Packing(NamedTuple):
    """A compression format: its first bytes, file suffix, decompression command and Python reader."""

    magic: bytes
    suffix: str
    command: str
    open: Callable[[IO[bytes]], Any]


def _open_zstd(file: IO[bytes]) -> Any:
    """Open zstd with the standard library (Python 3.14 and later) or with the package zstandard."""
    try:
        return importlib.import_module("compression.zstd").ZstdFile(file)
    except ImportError:
        pass
    zstandard = importlib.import_module("zstandard")
    # Like zstd itself, read consecutive frames as one file.
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file, read_across_frames=True)


PACKINGS = (
    Packing(b"\x1f\x8b", ".gz", "gunzip -k", lambda file: gzip.GzipFile(fileobj=file)),
    Packing(b"\xfd7zXZ\x00", ".xz", "unxz -k", lzma.LZMAFile),
    Packing(b"\x28\xb5\x2f\xfd", ".zst", "unzstd", _open_zstd),
)


def is_packed(head: bytes) -> bool:
    """Return whether a file with these first bytes is compressed."""
    return head.startswith(tuple(packing.magic for packing in PACKINGS))


def unpack(path: Path, folder: Path) -> Path:
    """Decompress a file into `folder` under its name without .gz, .xz or .zst, and return the new path.

    Raises ReportError above --max-decoded, above MAX_RATIO times the compressed size, and if the disk has no room,
    which is checked before the first byte is written; DamagedExportError if the data is cut off or damaged.
    """
    name = display_name(path)
    with ExitStack() as stack:
        try:
            source = stack.enter_context(path.open("rb"))
            head = source.read(8)
            source.seek(0)
            packing = next(packing for packing in PACKINGS if head.startswith(packing.magic))
            unpacked = stack.enter_context(packing.open(source))
        except OSError as error:
            raise ReportError(f"{name}: cannot be read ({error.strerror}); check its permissions") from None
        except ImportError:
            raise ReportError(
                f"{name}: zstd needs the package zstandard; pip install 'traceview[zstd]', or unpack it: unzstd {name}"
            ) from None
        out = folder / (path.name.removesuffix(packing.suffix) or "capture")
        packed_size = path.stat().st_size
        _check_room(folder, packed_size, name, packing.command)
        _copy(unpacked, stack.enter_context(out.open("xb")), packed_size, name, packing.command)
    return out


def _check_room(folder: Path, size: int, name: str, command: str) -> None:
    """Raise ReportError if the folder's disk has no room for `size` more bytes with MIN_FREE left."""
    if shutil.disk_usage(folder).free < size + MIN_FREE:
        raise ReportError(
            f"{name}: the folder for temporary files has no room for it; set TMPDIR to a folder with room, "
            f"or unpack it yourself: {command} {name}"
        )


def _copy(source: Any, out: IO[bytes], packed_size: int, name: str, command: str) -> None:
    limit, suspicious = MAX_DECODED.get(), max(MIN_SUSPICIOUS, MAX_RATIO * packed_size)
    written, is_trace = 0, False
    while chunk := _read_chunk(source, name, command, partly=is_trace):
        is_trace = is_trace or (not written and KinetoReader().matches(Path(name), chunk))
        written += len(chunk)
        if written > limit:
            raise ReportError(
                f"{name}: unpacks to more than {size_text(limit)}; if you trust it, raise the limit: "
                f"--max-decoded {size_text(2 * limit)}"
            )
        if written > suspicious:
            raise ReportError(
                f"{name}: unpacks to more than {size_text(suspicious)}, {MAX_RATIO} times its size; "
                f"if you trust it, unpack it yourself: {command} {name}"
            )
        _check_room(Path(out.name).parent, len(chunk), name, command)
        try:
            out.write(chunk)
        except OSError as error:
            raise ReportError(f"{name}: cannot be unpacked ({error.strerror}); set TMPDIR to another folder") from None
    if written == 0:
        raise NotAnExportError(f"{name}: is empty inside; compress the .sqlite file again")


def _read_chunk(source: Any, name: str, command: str, *, partly: bool) -> bytes:
    """Return the next bytes, b"" at the end; `partly` makes the place where a file is cut off its end."""
    try:
        chunk: bytes = source.read1(CHUNK_BYTES)
    except EOFError as error:
        if not partly:
            raise _damaged_error(name, command) from error
        chunk = b""
    except Exception as error:
        # ZstdError cannot be imported if the package zstandard is absent.
        if not isinstance(error, (OSError, lzma.LZMAError, zlib.error)) and type(error).__name__ != "ZstdError":
            raise
        raise _damaged_error(name, command) from error
    return chunk


def _damaged_error(name: str, command: str) -> DamagedExportError:
    return DamagedExportError(f"{name}: cut off or damaged ({command} cannot unpack it); copy it again")


class Reader(Protocol):
    """Reads one capture format."""

    kind: str  # what a list of captures calls it

    def matches(self, path: Path, head: bytes, /) -> bool:
        """Return whether a file with these first HEAD_BYTES, or a folder, has this format."""

    def read(self, path: Path, wanted: Wanted | None = None, /) -> RawCapture:
        """Read the tables that the analysis needs; `wanted` is that of read_capture. Raises ReportError."""


@runtime_checkable
class NsysReader(Reader, Protocol):
    """Reads one of nsys's own formats, which hold more tables than the analysis reads."""

    def check(self, path: Path) -> None:
        """Refuse a capture that `read` cannot read, before it costs time. Raises ReportError."""

    def as_sqlite(self, path: Path) -> AbstractContextManager[Path]:
        """Return a context with an SQLite export of all tables. Raises ReportError."""


MAX_ENTRIES = 10_000
MAX_LISTED = 20  # captures of a folder
TRACE_WORDS = (b"traceEvents", b"schemaVersion", b"deviceProperties", b"distributedInfo")  # near a trace's beginning
# torch writes the ranks before the events, behind the properties of at most 16 GPUs.
DOCUMENT_HEAD_BYTES = 64 << 10
DOCUMENT = re.compile(rb'\s*\{\s*"schema_version"\s*:')  # how a document of `traceview COMMAND --json` begins
CAPTURE_INSTEAD = "capture the program with: nsys profile, or prof.export_chrome_trace('trace.json') of torch.profiler"
# Files that are taken for captures: their first bytes, and what they are.
OTHER_FILES = (
    (
        re.compile(rb'\s*\{\s*"schema"\s*:\s*"[\w.+-]{1,60}"'),
        "an execution trace of torch (ExecutionTraceObserver): operators and tensors, without times of the GPU",
    ),
    (re.compile(rb"\x80[\x02-\x05]"), "a pickle of Python, such as a snapshot of torch's memory"),
)
PERFETTO_SUFFIXES = (".pftrace", ".perfetto-trace")
RANK = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d{1,9})\b')
RANK_IN_NAME = re.compile(r"(?i)rank[-_]?(\d{1,9})(?!\d)")
READERS: tuple[Reader, ...] = (TableFolderReader(), NsysReportReader(), KinetoReader(), SqliteReader())


def read_capture(path: str | Path, wanted: Wanted | None = None) -> RawCapture:
    """Read a capture: an export of nsys (SQLite or a folder of tables), a .nsys-rep or a torch.profiler trace.

    A file may be compressed. `wanted` is the stretch to read of one that does not fit into memory. `file` of the
    result is the name of the given file. Raises ReportError.
    """
    path = Path(path)
    with _source_and_reader(path) as (source, reader):
        return reader.read(source, wanted)._replace(file=path.name)


def is_document(path: Path) -> bool:
    """Return whether a file begins as a JSON document of traceview does, which `compare` reads."""
    return DOCUMENT.match(read_head(path)) is not None


def check_capture(path: Path) -> None:
    """Refuse a capture that cannot be read before time is spent on it. Raises ReportError."""
    if not is_packed(read_head(path)):
        _reader_of(path)


def captures_in(folder: Path) -> list[tuple[Path, str]]:
    """Return the captures in a folder with their kinds, by name; at most MAX_ENTRIES entries are looked at."""
    entries = sorted(islice(folder.iterdir(), MAX_ENTRIES))
    kinds = ((path, kind_of(path)) for path in entries if not path.name.startswith("."))
    return [(path, kind) for path, kind in kinds if kind]


def capture_in(folder: Path) -> tuple[Path, str]:
    """Return the capture that a folder stands for, and a note on the other ranks of a run; "" if there are none.

    It is the folder itself, its only capture, or the first rank of a trace for each rank. Raises RequestError for
    another folder.
    """
    if table_files(folder):
        return folder, ""
    captures = [path for path, _ in captures_in(folder)]
    if len(ranks := rank_traces(captures)) > 1:
        first, trace = next(iter(ranks.items()))
        more = f" and {len(ranks) - MAX_LISTED} more" * (len(ranks) > MAX_LISTED)
        return trace, (
            f"{folder} has the traces of ranks {', '.join(map(str, islice(ranks, MAX_LISTED)))}{more}; this is rank "
            f"{first}, {trace.name}; to compare the ranks: traceview fleet {folder}"
        )
    if not captures:
        raise RequestError(f"{folder}: a folder without captures; name an .sqlite file, an .nsys-rep file or a trace")
    if len(captures) > 1:
        raise RequestError(
            f"{folder}: a folder with {len(captures)} captures; name one, for example {captures[0]}; to compare the "
            f"ranks of a run: traceview fleet {folder}"
        )
    return captures[0], ""


def named_capture(path: Path) -> Path:
    """Return a file, or the capture that a folder stands for, with a warning that it is one rank of several."""
    try:
        stands_for_another = path.is_dir() and captures_in(path)
    except OSError:
        stands_for_another = False
    if not stands_for_another:  # readers say what is wrong
        return path
    path, note = capture_in(path)
    if note:
        warnings.warn(note, stacklevel=3)
    return path


def kind_of(path: Path) -> str:
    """Return the kind of capture that a file or folder seems to be from its first bytes; "" for none."""
    return _kind_and_rank(path)[0]


def trace_rank(path: Path) -> int | None:
    """Return the rank of a torch.profiler trace: from its distributedInfo, if it begins with it, or its file name."""
    return _kind_and_rank(path)[1]


def _kind_and_rank(path: Path) -> tuple[str, int | None]:
    try:
        state = path.stat()
    except OSError:
        return "", None
    return _read_kind_and_rank(path.absolute(), state.st_mtime_ns, state.st_size)


@lru_cache(MAX_ENTRIES)
def _read_kind_and_rank(path: Path, *_state: int) -> tuple[str, int | None]:
    """Return the kind and the rank of a capture, once for each state of the file."""
    start, packing = b"", None
    if head := read_head(path):
        packing = next((packing for packing in PACKINGS if head.startswith(packing.magic)), None)
        with suppress(Exception), path.open("rb") as source:  # ZstdError cannot be imported if the package is absent
            start = (packing.open(source) if packing else source).read(DOCUMENT_HEAD_BYTES)
    if packing and not start:
        return "compressed" if path.stem.endswith((".sqlite", ".json", ".nsys-rep")) else "", None
    head = start[:HEAD_BYTES]
    reader = next((reader for reader in READERS if reader.matches(path, head)), None)
    if not isinstance(reader, KinetoReader):
        return reader.kind if reader else "", None
    if not any(word in head for word in TRACE_WORDS):
        return "", None
    stated = RANK.search(start)
    rank = stated[1].decode() if stated else next(iter(RANK_IN_NAME.findall(path.name)), None)
    return reader.kind, None if rank is None else int(rank)


def rank_traces(paths: Iterable[Path]) -> dict[int, Path]:
    """Return the traces of torch.profiler by rank, if all of these captures are traces of different ranks; else {}."""
    by_rank: dict[int, Path] = {}
    for path in paths:
        rank = trace_rank(path)
        if rank is None or rank in by_rank:
            return {}
        by_rank[rank] = path
    return {rank: by_rank[rank] for rank in sorted(by_rank)}


@contextmanager
def as_sqlite(path: Path) -> Iterator[tuple[Path, RawCapture | None]]:
    """Yield an SQLite export of a capture, and the RawCapture if the export had to be made from it.

    The export is the file itself, or a temporary one that is then removed.

    Raises ReportError; DamagedExportError if the capture changes before the context ends.
    """
    with _source_and_reader(path) as (source, reader):
        if isinstance(reader, NsysReader):
            with reader.as_sqlite(source) as export:
                yield export, None
        else:
            capture = reader.read(source)._replace(file=source.name)
            with private_folder(path) as folder:
                yield write_sqlite(display_name(path), tables_with_metadata(capture), folder), capture


@contextmanager
def _source_and_reader(path: Path) -> Iterator[tuple[Path, Reader]]:
    """Yield the capture, decompressed if necessary, and its reader; check that `path` does not change meanwhile."""
    if not is_packed(read_head(path)):
        reader = _reader_of(path)
        with unchanged(path):
            yield path, reader
        return
    with private_folder(path) as folder, unchanged(path):
        inner = unpack(path, folder)
        if is_packed(read_head(inner)):
            raise NotAnExportError(f"{display_name(path)}: compressed twice; decompress it once")
        yield inner, _reader_of(inner)


def _reader_of(path: Path) -> Reader:
    """Return the reader of an uncompressed capture. Raises ReportError if none can read it."""
    head = read_head(path)
    refuse_pointer(path, head)
    refuse_other_exports(path, head)
    reader = next((reader for reader in READERS if reader.matches(path, head)), None)
    what = next((what for begin, what in OTHER_FILES if begin.match(head)), "")
    if reader is None and head and path.suffix in PERFETTO_SUFFIXES:
        what = "a Perfetto trace"
    if what:
        raise NotAnExportError(f"{display_name(path)}: {what}; {CAPTURE_INSTEAD}")
    if DOCUMENT.match(head):
        raise NotAnExportError(
            f"{display_name(path)}: is a JSON document of traceview, which `traceview compare` alone reads, not "
            "compressed; name the report"
        )
    if reader is None:
        if head:
            refuse_stream(path, head)
        reader = SqliteReader()  # its check names what is wrong
    if isinstance(reader, NsysReader):
        reader.check(path)
    return reader
