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
SIDE_FILES = ("", "-wal", "-shm", "-journal")  # a database and the files that SQLite writes beside it


def is_stdout(path: Path | None) -> bool:
    """Return whether an output path means standard output."""
    return path is not None and str(path) == STDOUT


def named_output(path: Path) -> Path:
    """Return the file that an output which the user names stands for: the target of a link to a file or a folder.

    What is written to a path never follows a link that is there by then.
    """
    with contextlib.suppress(OSError):  # check_file gives the reason
        if path.is_symlink() and (not path.exists() or path.is_file() or path.is_dir()):
            return Path(os.path.realpath(path))
    return path


def refuse_link(path: Path, option: str) -> None:
    """Refuse a default name that is a symbolic link: the user did not name its target. Raises OutputError."""
    with _output_errors(path):
        if path.is_symlink():
            raise OutputError(
                f"{path.name}: is a symbolic link, which a default name does not follow; remove it, or use {option}"
            )


def check_different(inputs: Iterable[Path], outputs: Iterable[Path | None]) -> None:
    """Check that no output is an input, a part of one, a folder that holds one, or another output.

    Parts of an input are the files in its folder, their targets, and what SQLite keeps beside a database.
    Raises OutputError.
    """
    files, folders = set(), set()
    for path in inputs:
        real = os.path.realpath(path)
        files |= {f"{name}{suffix}" for name in (real, _without_following(path)) for suffix in SIDE_FILES}
        with contextlib.suppress(OSError):
            if Path(real).is_dir():
                folders.add(real)
                files.update(os.path.realpath(entry.path) for entry in os.scandir(real))
    holders = {holder for path in (*files, *folders) for holder in map(str, Path(path).parents)}
    for output in outputs:
        if output is None or is_stdout(output):
            continue
        real = os.path.realpath(output)
        if real in files or not folders.isdisjoint((real, *map(str, Path(real).parents))):
            raise OutputError(f"{output.name}: the inputs and the outputs must be different files; name another path")
        if real in holders:
            raise OutputError(f"{output.name or output}: is a folder that holds an input; name a new one")
        files.add(real)


def check_file(path: Path) -> None:
    """Check that a file can be written, before its content is computed. Raises OutputError."""
    with _output_errors(path):
        if path.is_dir():
            raise OutputError(f"{path.name or path}: is a folder; name a file in it")
        _check_parent(path)


def check_folder(path: Path, ours: Collection[str]) -> None:
    """Check that a folder can be written: its path is new, or a folder with no files but `ours`. Raises OutputError."""
    with _output_errors(path):
        if path.exists() and not path.is_dir():
            raise OutputError(f"{path.name}: is a file, but this format writes a folder of tables; name another path")
        if path.is_dir():
            others = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
            if others:
                raise OutputError(f"{path.name or path}: contains other files ({others[0]}); name a new folder")
        _check_parent(_without_following(path))


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

    A symbolic link is replaced. A device or pipe is written in place. Raises OutputError; the old file then stays
    unchanged, and no part of the new one is left.
    """
    if _is_special(path):
        with _output_errors(path), path.open("wb") as file:
            file.writelines(pieces)
    else:
        with new_file(path) as part, part.open("wb") as file:
            file.writelines(pieces)


@contextmanager
def new_file(path: Path, *, replaces: bool = True) -> Iterator[Path]:
    """Yield a temporary file beside `path` that replaces it at the end, or is removed after an error.

    Without `replaces`, the path must still be new at the end. Raises OutputError.
    """
    with _output_errors(path):
        target = _without_following(path)
        handle, name = tempfile.mkstemp(prefix=".traceview-", suffix=".part", dir=target.parent)
        os.close(handle)
        part = Path(name)
        try:
            yield part
            part.chmod(_permissions(target, 0o666))
            if replaces:
                part.replace(target)
            else:
                _place(part, target)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise


def _place(part: Path, target: Path) -> None:
    """Rename a file to a new name. Two processes cannot both create it."""
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        raise refused_as_present(target) from None
    try:
        part.replace(target)
    except BaseException:
        if part.exists():
            target.unlink()
        raise


def refused_as_present(path: Path) -> OutputError:
    """Return the error for an output that must be new."""
    return OutputError(f"{path.name}: file exists; name a new file")


def _without_following(path: Path) -> Path:
    """Return the path in its folder's own place; a link at its end is not followed."""
    return Path(os.path.realpath(path.parent), path.name)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path` that replaces it at the end, or is removed after an error.

    Raises OutputError.
    """
    with _output_errors(path):
        target = _without_following(path)
        part = Path(tempfile.mkdtemp(prefix=".traceview-", suffix=".part", dir=target.parent))
        try:
            yield part
            part.chmod(_permissions(target, 0o777))
            _replace_folder(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _replace_folder(part: Path, target: Path) -> None:
    if not os.path.lexists(target):
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
    if target.exists() and not target.is_symlink():
        return target.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return default & ~mask
