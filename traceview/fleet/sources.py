"""Finds the reports that the command names: files, folders and quoted patterns."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from traceview.errors import NotFoundError
from traceview.read import parquet

SQLITE = (".sqlite", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst")
REPORT = ".nsys-rep"
NUMBER = re.compile(r"(\d+)")


def find_reports(arguments: Sequence[str]) -> tuple[Path, ...]:
    """Return each report once, rank2 before rank10. Raises NotFoundError if an argument has no report.

    In a folder or a pattern's matches, a .nsys-rep with an exported .sqlite beside it is left out.
    """
    reports: dict[str, Path] = {}
    for argument in arguments:
        paths = _reports_of(argument)
        if not paths:
            raise NotFoundError(f"{_printable(argument)}: no report found; name .sqlite files, a folder or a pattern")
        for path in paths:
            # Links are not resolved: two links to one report are two reports.
            reports.setdefault(str(path.absolute()), path)
    return tuple(sorted(reports.values(), key=_natural_order))


def _reports_of(argument: str) -> list[Path]:
    path = Path(argument)
    if _is_folder(path) and parquet.table_suffix(path) is None:
        # What cannot be searched is left out. Links to folders are not followed.
        entries = (Path(parent, name) for parent, folders, files in os.walk(path) for name in (*folders, *files))
        return _without_exported(entry for entry in entries if _is_report(entry))
    if os.path.lexists(path) or not glob.has_magic(argument):
        # A missing file is reported later, with the other unreadable reports.
        return [path]
    matches = [Path(match) for match in glob.glob(argument, recursive=True)]  # noqa: PTH207 - absolute ones too
    # Other formats, such as traces of torch.profiler, have no suffix of their own.
    return _without_exported(
        [path for path in matches if _is_report(path)] or [path for path in matches if not _is_folder(path)]
    )


def _is_folder(path: Path) -> bool:
    """Return whether a path is a folder; False for a path that cannot be read, such as a link to itself."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _is_report(path: Path) -> bool:
    if _is_folder(path):
        return parquet.table_suffix(path) is not None
    return path.name.endswith((*SQLITE, REPORT))


def _without_exported(paths: Iterable[Path]) -> list[Path]:
    """Return the paths without each .nsys-rep that has an export among them."""
    candidates = list(paths)
    exported = {_without_suffix(path) for path in candidates if not path.name.endswith(REPORT)}
    return [path for path in candidates if not path.name.endswith(REPORT) or _without_suffix(path) not in exported]


def _without_suffix(path: Path) -> Path:
    for suffix in (*SQLITE, REPORT):
        if path.name.endswith(suffix):
            return path.with_name(path.name.removesuffix(suffix))
    return path


def _natural_order(path: Path) -> list[tuple[int, str]]:
    parts = NUMBER.split(str(path.absolute()))
    return [(int(part), part) if part.isdigit() and len(part) < 19 else (-1, part) for part in parts]


def report_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return each report's file name, or its path below the common folder if file names repeat."""
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return tuple(names)
    absolute = [path.absolute() for path in paths]
    common = os.path.commonpath([path.parent for path in absolute])
    return tuple(str(path.relative_to(common)) for path in absolute)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
