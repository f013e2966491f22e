"""Where an export goes: a file or a folder, there as a whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from traceview.errors import OutputError

PACKED = ".gz"
# Beyond it the file hardly shrinks, and takes twice as long.
PACKING = 4


def check_file(path: Path) -> None:
    """Refuse a place for a file before time is spent on it. Raises OutputError."""
    if path.is_dir():
        raise OutputError(f"{path.name or path}: is a folder; name a file with --output")
    _check_parent(path)


def check_folder(path: Path, ours: Collection[str]) -> None:
    """Refuse a place for a folder: a file, or a folder that holds anything but the files `ours`. Raises OutputError."""
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path.name}: is a file, and this format is a folder of tables; name another place for it")
    if path.is_dir():
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
        if others:
            raise OutputError(f"{path.name or path}: holds other things ({others[0]}); name a new folder with --output")
    _check_parent(path.resolve())


def _check_parent(path: Path) -> None:
    if not path.parent.is_dir():
        raise OutputError(f"{path.name}: the folder it should go into does not exist; make it, or name another")
    special = path.exists() and not path.is_file() and not path.is_dir()
    if not special and not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{path.name}: its folder cannot be written; name another place with --output")


def write_file(path: Path, pieces: Iterable[bytes]) -> None:
    """Write pieces under a temporary name beside the file, then rename it; packed where the name ends with .gz.

    A link keeps pointing where it did, and a device or pipe is written as it is. Raises OutputError, with the
    old file as it was and nothing left behind.
    """
    with _one_line(path):
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                _write(file, pieces, packed=False)
            return
        target = path.resolve()
        handle, name = tempfile.mkstemp(prefix=".traceview-", suffix=".part", dir=target.parent)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                _write(file, pieces, packed=path.name.endswith(PACKED))
            part.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
            part.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise


def _write(file: IO[bytes], pieces: Iterable[bytes], *, packed: bool) -> None:
    if packed:
        # Neither the name nor the time of making belongs to the content.
        with gzip.GzipFile("", "wb", PACKING, file, 0) as inside:
            inside.writelines(pieces)
    else:
        file.writelines(pieces)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a new folder beside `path` that takes its place when all went well.

    Raises OutputError, with the old folder as it was and nothing left behind.
    """
    with _one_line(path):
        target = path.resolve()
        part = Path(tempfile.mkdtemp(prefix=".traceview-", suffix=".part", dir=target.parent))
        try:
            yield part
            part.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o777 & ~_umask())
            _take_place(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _take_place(part: Path, target: Path) -> None:
    if not target.exists():
        part.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=".traceview-", suffix=".old", dir=target.parent))
    try:
        target.rename(aside / "old")
        try:
            part.rename(target)
        except BaseException:
            (aside / "old").rename(target)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path.name}: cannot be written ({error.strerror or error}); name another place for it"
        ) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
