"""Reports in object stores and on other hosts: URLs that fsspec opens, where it is installed.

fsspec's own configuration has the credentials. A report is copied to a temporary folder while it is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from traceview.errors import NotFoundError, ReportError, RequestError

SEPARATOR = "://"


def is_url(argument: str) -> bool:
    """Return whether an argument is a URL, such as s3://bucket/rank0.sqlite, and not a path."""
    return SEPARATOR in argument


def path_of(url: str) -> PurePosixPath:
    """Return the path in a URL, with its host or bucket."""
    return PurePosixPath("/", url.partition(SEPARATOR)[2])


def find_remote(url: str, suffixes: tuple[str, ...]) -> list[str]:
    """Return the URLs of the files that a URL names: a file, a pattern, or those with these suffixes in a folder.

    Raises RequestError if fsspec or the package for this store is missing, and NotFoundError if there is none.
    """
    files, path = _file_system(url)
    try:
        matches = files.find(path) if files.isdir(path) else files.glob(path)
    except Exception as error:  # the type depends on the store
        raise RequestError(f"{path_of(url).name}: the store does not answer ({type(error).__name__})") from None
    named = [match for match in matches if match.endswith(suffixes)]
    if not named:
        raise NotFoundError(f"{path_of(url).name}: no report in the store; name .sqlite files, a folder or a pattern")
    return [files.unstrip_protocol(match) for match in named]


@contextmanager
def local_copy(path: str) -> Iterator[Path]:
    """Yield a path, or that of a copy of the file at a URL, which the end of the block removes. Raises ReportError."""
    if not is_url(path):
        yield Path(path)
        return
    with TemporaryDirectory(prefix="traceview-") as folder:
        copy = Path(folder, path_of(path).name)
        files, remote = _file_system(path)
        try:
            files.get_file(remote, str(copy))
        except Exception as error:  # the type depends on the store
            raise ReportError(f"{copy.name}: it cannot be fetched ({type(error).__name__})") from None
        yield copy


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it. Raises RequestError."""
    name = url.partition(SEPARATOR)[0][:20]
    try:
        files, path = import_module("fsspec.core").url_to_fs(url)
    except (ImportError, ValueError):
        package = {"s3": " s3fs", "gs": " gcsfs", "gcs": " gcsfs", "az": " adlfs", "abfs": " adlfs"}.get(name, "")
        raise RequestError(f"{name}{SEPARATOR} needs a package that is missing: pip install fsspec{package}") from None
    return files, path
