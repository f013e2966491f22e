"""Everything but the capture that an answer depends on, as a digest."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from traceview.errors import TraceviewError
from traceview.version import __version__

PACKAGE = Path(__file__).resolve().parent.parent
# The page holds plotly.js; figures come from the other two.
LIBRARIES = ("numpy", "plotly", "polars")
SQLITE = b"SQLite format 3\x00"


def digest(report: Path, options: Sequence[str | int | None], own_source: str) -> str:
    """Return what is asked of a capture of this name, given `source()`. Raises OSError."""
    asked = [report.name, *options, own_source, *_versions(), _nsys(report)]
    return hashlib.blake2b(json.dumps(asked).encode(), digest_size=20).hexdigest()


def _versions() -> Iterator[str]:
    yield __version__
    yield sys.version
    for name in LIBRARIES:
        found = find_spec(name)
        about = Path(found.origin).stat() if found is not None and found.origin is not None else None
        yield f"{name} {about and (about.st_mtime_ns, about.st_size)}"


def source() -> str:
    """Return a digest of the package's own files, every byte, so that a tree that is worked on is never stale."""
    whole = hashlib.blake2b(digest_size=20)
    for path in sorted(PACKAGE.rglob("*")):
        if path.parent.name != "__pycache__" and path.is_file():
            data = path.read_bytes()
            whole.update(b"%b\x00%d\x00" % (str(path.relative_to(PACKAGE)).encode(), len(data)) + data)
    return whole.hexdigest()


def _nsys(report: Path) -> str:
    """Return which nsys would export the report; of an SQLite export or a folder of tables none."""
    if report.is_dir():
        return ""
    with report.open("rb") as file:
        if file.read(len(SQLITE)) == SQLITE:
            return ""
    from traceview.read.nsys_rep import find_nsys, version_of_nsys

    try:
        found = find_nsys(report.name)
    except TraceviewError:
        # What is packed may need none; where one is needed, nothing is answered and so nothing kept.
        return "none"
    about = Path(found).resolve().stat()
    return f"{version_of_nsys(found)} {about.st_dev} {about.st_ino} {about.st_size} {about.st_mtime_ns}"
