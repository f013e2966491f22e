"""Files are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from traceview.errors import OutputError


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name beside it, then rename it into place.

    Raises OutputError, with the old file as it was and nothing left behind.
    """
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    except OSError as error:
        raise _failed(path, error) from None
    part = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError):
            raise _failed(path, error) from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _failed(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path.name}: cannot be written ({error.strerror}); name another place for it")
