"""Files are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from traceview.errors import OutputError


def check_place(path: Path) -> None:
    """Refuse a place that cannot be written before time is spent on what should go there.

    Raises OutputError.
    """
    if path.is_dir():
        raise OutputError(f"{path.name or path}: is a directory; name a file in it")
    if not path.parent.is_dir():
        raise OutputError(
            f"{path.name}: the folder it should go into does not exist; make it, or name another"
        )
    if not _is_special(path) and not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(
            f"{path.name}: its folder cannot be written; name another place with --html or --json"
        )


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name beside it, then rename it into place.

    A link keeps pointing where it did, and a device or pipe is written as it is. Raises OutputError, with
    the old file as it was and nothing left behind.
    """
    try:
        if _is_special(path):
            path.write_text(text, encoding="utf-8", errors="replace", newline="\n")
        else:
            _replace(path.resolve(), text)
    except OSError as error:
        raise OutputError(
            f"{path.name}: cannot be written ({error.strerror}); name another place for it"
        ) from None


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(prefix=".traceview-", suffix=".part", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
        part.chmod(_mode(path))
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def _mode(path: Path) -> int:
    """Return the access that the file has, or that a new one would get."""
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
