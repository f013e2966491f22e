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
from traceview.read.database import shown

CHUNK = 1 << 20
SMALL = 64 << 20  # below this no ratio is suspicious
MOST_TIMES = 200  # real exports shrink 4 to 10 times
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

    Stops with ReportError at more than MOST_TIMES the packed size, or at what the disk can hold; with
    DamagedExportError where the packed data ends early or is damaged.
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
        most = max(SMALL, MOST_TIMES * path.stat().st_size)
        _copy(unpacked, stack.enter_context(out.open("xb")), most, name, packing.by_hand)
    return out


def _copy(source: Any, out: IO[bytes], most: int, name: str, by_hand: str) -> None:
    room = shutil.disk_usage(Path(out.name).parent).free - SPARE
    written = 0
    while chunk := _read(source, name, by_hand):
        written += len(chunk)
        if written > most:
            raise ReportError(
                f"{name}: unpacks to more than {most >> 20} MB, {MOST_TIMES} times its size, and was left alone; "
                f"if you trust it, unpack it yourself: {by_hand} {name}"
            )
        if written > room:
            raise ReportError(
                f"{name}: the folder for temporary files has no room for it; set TMPDIR to one that has, "
                f"or unpack it yourself: {by_hand} {name}"
            )
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
