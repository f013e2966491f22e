"""Output files and folders: checks of their paths, and atomic writes."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from traceview.errors import OutputError

STDOUT = "-"
MAX_ENCODED = 1 << 22  # letters at once


def is_stdout(path: Path | None) -> bool:
    """Return whether an output path means standard output."""
    return path is not None and str(path) == STDOUT


def check_outputs(reports: Iterable[Path], outputs: Iterable[Path | None]) -> None:
    """Check that no output overwrites a report or another output, and that each can be written.

    `-` is standard output. Raises OutputError.
    """
    outputs = tuple(outputs)
    check_different(reports, outputs)
    for path in outputs:
        if path is not None and not is_stdout(path):
            check_file(path)


def check_different(reports: Iterable[Path], outputs: Iterable[Path | None]) -> None:
    """Check that no output is a report or another output. Raises OutputError."""
    taken = {report.resolve() for report in reports}
    for path in outputs:
        if path is None or is_stdout(path):
            continue
        if path.resolve() in taken:
            raise OutputError(f"{path.name}: the reports and the outputs must be different files")
        taken.add(path.resolve())


def check_file(path: Path) -> None:
    """Check that a file can be written, before its content is computed. Raises OutputError."""
    if path.is_dir():
        raise OutputError(f"{path.name or path}: is a folder; name a file in it")
    _check_parent(path)


def check_folder(path: Path, ours: Collection[str]) -> None:
    """Check that a folder can be written: its path is new, or a folder with no files but `ours`. Raises OutputError."""
    if path.exists() and not path.is_dir():
        raise OutputError(f"{path.name}: is a file, but this format writes a folder of tables; name another path")
    if path.is_dir():
        others = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
        if others:
            raise OutputError(f"{path.name or path}: contains other files ({others[0]}); name a new folder")
    _check_parent(path.resolve())


def _check_parent(path: Path) -> None:
    if not path.parent.is_dir():
        raise OutputError(f"{path.name}: its folder does not exist; create it, or name another")
    if not _is_special(path) and not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"{path.name}: no write permission for its folder; name another folder")


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8 (see `write_pieces`)."""
    parts = (text[first : first + MAX_ENCODED] for first in range(0, len(text), MAX_ENCODED))
    write_pieces(path, (part.encode("utf-8", "replace") for part in parts))


def write_pieces(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file piece by piece.

    A symbolic link stays, and its target is replaced. A device or pipe is written in place. Raises OutputError; the
    old file then stays unchanged, and no part of the new one is left.
    """
    if _is_special(path):
        with _output_errors(path), path.open("wb") as file:
            file.writelines(pieces)
    else:
        with new_file(path) as part, part.open("wb") as file:
            file.writelines(pieces)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path` that replaces it at the end, or is removed after an error.

    Raises OutputError.
    """
    with _output_errors(path):
        target = path.resolve()
        handle, name = tempfile.mkstemp(prefix=".traceview-", suffix=".part", dir=target.parent)
        os.close(handle)
        part = Path(name)
        try:
            yield part
            part.chmod(_permissions(target, 0o666))
            part.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that replaces it at the end, or is removed after an error.

    Raises OutputError.
    """
    with _output_errors(path):
        target = path.resolve()
        part = Path(tempfile.mkdtemp(prefix=".traceview-", suffix=".part", dir=target.parent))
        try:
            yield part
            part.chmod(_permissions(target, 0o777))
            _replace_folder(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _replace_folder(part: Path, target: Path) -> None:
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


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


@contextmanager
def _output_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"{path.name}: cannot be written ({reason}); name another path") from None


def _permissions(target: Path, default: int) -> int:
    """Return the permission bits of an existing target, else `default` without those that the umask clears."""
    if target.exists():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return default & ~mask
