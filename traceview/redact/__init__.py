"""A copy of a capture that can be shared: it keeps every figure and drops private data.

keep.py           the tables, columns and rows that are kept; everything else is dropped
shapes.py         the patterns of secrets
secrets.py        finds and replaces secrets in texts; keeps or hashes names
copier.py         copies what is kept
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from traceview.errors import OutputError
from traceview.files import check_outputs, new_file, refused_as_present
from traceview.read.formats import as_sqlite
from traceview.read.source import DecodedSize, display_name
from traceview.read.sqlite.database import Export, open_export
from traceview.redact.copier import CaptureCopier, Redacted, Step
from traceview.units import quantity

__all__ = ["Redacted", "redact", "summary_lines"]


def redact(report: str | Path, out: str | Path, *, hash_names: bool = False, progress: Step | None = None) -> Redacted:
    """Write a copy of a capture that is safe to share, as SQLite. A failure leaves no file.

    With `hash_names`, the names of ranges, kernels, threads and programs are hashed. Raises ReportError when the
    capture cannot be read. Raises OutputError when `out` exists or cannot be written, or when the copy still matches
    the pattern of a secret.
    """
    report, out = Path(report), Path(out)
    step = progress or (lambda _step, _done: None)
    with as_sqlite(report) as database:
        if os.path.lexists(out):
            raise refused_as_present(out)
        check_outputs((report,), (out,))
        with (
            new_file(out, replaces=False) as part,
            open_with_copy(part, database, display_name(report)) as export,
        ):
            copier = CaptureCopier(export, hash_names)
            redacted = copier.copy(step)
            step("check the copy", 0.9)
            if (problem := copier.problem()) is not None:
                raise OutputError(f"{out.name}: not written, because {problem}; use --names hash, and report this")
            return redacted


@contextmanager
def open_with_copy(part: Path, database: Path, name: str) -> Iterator[Export]:
    """Open the capture `name` with the new file `part` attached as `copy`, and commit what is written there.

    The copy cannot become larger than the capture by more than --max-decoded: rows may share pages.
    """
    size = DecodedSize(name)
    with open_export(database, name) as export:
        execute = export.connection.execute
        execute("ATTACH ? AS copy", (f"file:{quote(bytes(part.resolve()))}?mode=rw",))
        execute("PRAGMA copy.journal_mode=OFF")
        page_bytes = execute("PRAGMA copy.page_size").fetchone()[0]
        most = (database.stat().st_size + size.limit) // page_bytes + 1
        execute(f"PRAGMA copy.max_page_count={most}")
        try:
            with export.connection:
                yield export
        except sqlite3.Error as error:
            if "full" not in str(error) and "disk I/O" not in str(error):
                raise
            if part.stat().st_size >= (most - 1) * page_bytes:
                size.check(size.limit + 1)
            raise OutputError("the copy cannot be written (no space left, or a disk error)") from None


def summary_lines(redacted: Redacted) -> list[str]:
    """Return the lines that describe what was removed, and what to check before sharing."""
    rows = [f"  {rows.table}: {quantity(rows.count, 'row')}, {rows.content}" for rows in redacted.rows]
    columns = (
        [f"  {quantity(redacted.columns, 'column')} of kept tables, not needed for any figure"]
        if redacted.columns
        else []
    )
    serials = [f"  serial numbers of GPUs: {redacted.serial_numbers}"] if redacted.serial_numbers else []
    secrets = [f"  {kind}: {count} different" for kind, count in sorted(redacted.secrets.items())]
    removed = [*rows, *columns, *serials]
    return [
        *(["Removed:", *removed] if removed else ["Removed: nothing; the capture contains only what a copy keeps."]),
        *(["Matched a secret pattern and replaced by marks:", *secrets] if secrets else []),
        *(["No known secret pattern matched a kept name."] if not secrets else []),
        *redacted.not_promised,
        "Names are hashed: a guessed name can still be verified, and numbers of up to six digits stay."
        if redacted.hashed
        else "Names of kernels, NVTX ranges, threads and programs are kept: check them, or use --names hash.",
        *redacted.notes,
        "Every figure is the same as in the capture."
        + (" The copy does not note what is left out, and marks nothing as unsure for it." if redacted.notes else ""),
    ]
