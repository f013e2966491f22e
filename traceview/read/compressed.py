"""A capture packed with gzip, xz or zstd, unpacked into a private folder within bounds."""

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
from traceview.read.sqlite.database import shown

CHUNK = 1 << 20
SMALL = 64 << 20  # below this no ratio is suspicious
MAX_RATIO = 200  # real exports shrink 4 to 10 times
SPARE = 256 << 20  # left free on the disk that holds temporary files


class _Packing(NamedTuple):
    """How a file is packed: its first bytes, its name's end, and what a user would unpack it with."""

    magic: bytes
    suffix: str
    by_hand: str
    open: Callable[[IO[bytes]], Any]


def _gzip(file: IO[bytes]) -> gzip.GzipFile:
    return gzip.GzipFile(fileobj=file)


def _zstd(file: IO[bytes]) -> Any:
    """Open zstd with the standard library from Python 3.14 on, else with the package zstandard."""
    try:
        return importlib.import_module("compression.zstd").ZstdFile(file)
    except ImportError:
        pass
    zstandard = importlib.import_module("zstandard")
    # Several frames one after the other are one file, as for zstd itself.
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file, read_across_frames=True)


PACKINGS = (
    _Packing(b"\x1f\x8b", ".gz", "gunzip -k", _gzip),
    _Packing(b"\xfd7zXZ\x00", ".xz", "unxz -k", lzma.LZMAFile),
    _Packing(b"\x28\xb5\x2f\xfd", ".zst", "unzstd", _zstd),
)


def is_packed(head: bytes) -> bool:
    """Does a file that begins so hold something packed?"""
    return head.startswith(tuple(packing.magic for packing in PACKINGS))


def unpack(path: Path, folder: Path) -> Path:
    """Unpack a file into `folder` under its name without .gz, .xz or .zst, and return where it is.

    Raises ReportError above --max-decoded, above MAX_RATIO times the packed size, and where the disk has no room,
    which is checked before the first byte is written; DamagedExportError where the packed data is cut off or damaged.
    """
    name = shown(path)
    with ExitStack() as stack:
        try:
            source = stack.enter_context(path.open("rb"))
            head = source.read(8)
            source.seek(0)
            packing = next(one for one in PACKINGS if head.startswith(one.magic))
            unpacked = stack.enter_context(packing.open(source))
        except OSError as error:
            raise ReportError(f"{name}: cannot be read ({error.strerror}); check its permissions") from None
        except ImportError:
            raise ReportError(
                f"{name}: zstd needs the package zstandard; pip install 'traceview[zstd]', or unpack it: unzstd {name}"
            ) from None
        out = folder / (path.name.removesuffix(packing.suffix) or "capture")
        packed_size = path.stat().st_size
        _check_room(folder, packed_size, name, packing.by_hand)
        _copy(unpacked, stack.enter_context(out.open("xb")), packed_size, name, packing.by_hand)
    return out


def _check_room(folder: Path, size: int, name: str, by_hand: str) -> None:
    """Raise ReportError if the folder's disk has no room for so many bytes more, with SPARE left."""
    if shutil.disk_usage(folder).free < size + SPARE:
        raise ReportError(
            f"{name}: the folder for temporary files has no room for it; set TMPDIR to one that has, "
            f"or unpack it yourself: {by_hand} {name}"
        )


def _copy(source: Any, out: IO[bytes], packed_size: int, name: str, by_hand: str) -> None:
    limit, suspicious = MAX_DECODED.get(), max(SMALL, MAX_RATIO * packed_size)
    written = 0
    while chunk := _read(source, name, by_hand):
        written += len(chunk)
        if written > limit:
            raise ReportError(
                f"{name}: unpacks to more than {size_text(limit)}; if you trust it, raise the limit: "
                f"--max-decoded {size_text(2 * limit)}"
            )
        if written > suspicious:
            raise ReportError(
                f"{name}: unpacks to more than {size_text(suspicious)}, {MAX_RATIO} times its size; "
                f"if you trust it, unpack it yourself: {by_hand} {name}"
            )
        _check_room(Path(out.name).parent, len(chunk), name, by_hand)
        try:
            out.write(chunk)
        except OSError as error:
            raise ReportError(f"{name}: cannot be unpacked ({error.strerror}); set TMPDIR to another folder") from None
    if written == 0:
        raise NotAnExportError(f"{name}: holds nothing; pack the .sqlite file again")


def _read(source: Any, name: str, by_hand: str) -> bytes:
    try:
        chunk: bytes = source.read(CHUNK)
    except MemoryError:
        raise
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise _damaged(name, by_hand) from error
    except Exception as error:
        # zstandard's own error has no name that can be imported where the package is absent.
        if type(error).__name__ != "ZstdError":
            raise
        raise _damaged(name, by_hand) from error
    return chunk


def _damaged(name: str, by_hand: str) -> DamagedExportError:
    return DamagedExportError(f"{name}: cut off or damaged ({by_hand} cannot unpack it); copy it whole")
