"""Which reports are meant: files, folders and quoted patterns, each report once, in an order that people expect."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from traceview.errors import NotFoundError
from traceview.read.parquet import directory

SQLITE = (".sqlite", ".sqlite.gz", ".sqlite.xz", ".sqlite.zst")
REPORT = ".nsys-rep"
NUMBER = re.compile(r"(\d+)")


def sources(given: Sequence[str]) -> tuple[Path, ...]:
    """Return the reports, rank2 before rank10. Raises NotFoundError where something given holds none.

    In a folder and in what a pattern finds, a .nsys-rep whose .sqlite lies beside it is the same report and left out.
    """
    found: dict[str, Path] = {}
    for one in given:
        paths = _found(one)
        if not paths:
            raise NotFoundError(f"{_shown(one)}: no report is there; name .sqlite files, a folder, or a quoted pattern")
        for path in paths:
            # Not resolved: two links to one report are two reports.
            found.setdefault(str(path.absolute()), path)
    return tuple(sorted(found.values(), key=_natural))


def _found(given: str) -> list[Path]:
    path = Path(given)
    if path.is_dir() and directory.table_suffix(path) is None:
        return _once(one for one in path.rglob("*") if _is_report(one))
    if path.exists() or not glob.has_magic(given):
        # What does not exist is named with the other reports that cannot be read.
        return [path]
    matches = [Path(one) for one in glob.glob(given, recursive=True)]  # noqa: PTH207 - absolute ones too
    # Other formats (traces of torch.profiler, say) have no ending of their own: a pattern for them finds nothing else.
    return _once([one for one in matches if _is_report(one)] or [one for one in matches if one.is_file()])


def _is_report(path: Path) -> bool:
    if path.is_dir():
        return directory.table_suffix(path) is not None
    return path.name.endswith((*SQLITE, REPORT))


def _once(paths: Iterable[Path]) -> list[Path]:
    every = list(paths)
    exported = {_stem(path) for path in every if not path.name.endswith(REPORT)}
    return [path for path in every if not path.name.endswith(REPORT) or _stem(path) not in exported]


def _stem(path: Path) -> Path:
    for suffix in (*SQLITE, REPORT):
        if path.name.endswith(suffix):
            return path.with_name(path.name.removesuffix(suffix))
    return path


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = NUMBER.split(str(path.absolute()))
    return [(int(part), part) if part.isdigit() and len(part) < 19 else (-1, part) for part in parts]


def names(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return what to call each report: its file's name, with folders below the common one where names repeat."""
    bare = [path.name for path in paths]
    if len(set(bare)) == len(bare):
        return tuple(bare)
    full = [path.absolute() for path in paths]
    common = os.path.commonpath([one.parent for one in full])
    return tuple(str(one.relative_to(common)) for one in full)


def _shown(given: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in given)
