"""Decompresses a capture (gzip, xz or zstd) into a private folder, within limits."""

from __future__ import annotations

import gzip
import importlib
import lzma
import shutil
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

from traceview.errors import DamagedExportError, NotAnExportError, ReportError
from traceview.read.limits import MAX_DECODED, size_text
from traceview.read.source import display_name

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


def _open_gzip(file: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file)


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
    Packing(b"\x1f\x8b", ".gz", "gunzip -k", _open_gzip),
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
    written = 0
    while chunk := _read_chunk(source, name, command):
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


def _read_chunk(source: Any, name: str, command: str) -> bytes:
    try:
        chunk: bytes = source.read(CHUNK_BYTES)
    except MemoryError:
        raise
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise _damaged_error(name, command) from error
    except Exception as error:
        # ZstdError cannot be imported if the package zstandard is absent.
        if type(error).__name__ != "ZstdError":
            raise
        raise _damaged_error(name, command) from error
    return chunk


def _damaged_error(name: str, command: str) -> DamagedExportError:
    return DamagedExportError(f"{name}: cut off or damaged ({command} cannot unpack it); copy it again")
