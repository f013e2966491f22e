"""Writes a redacted copy of a capture: opens both databases, copies, checks, and describes what was removed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from traceview.errors import OutputError
from traceview.files import check_file, new_file
from traceview.read.formats import as_sqlite
from traceview.read.source import display_name
from traceview.read.sqlite.database import Guard, damaged_error
from traceview.redact.copier import CaptureCopier, Redacted, Step
from traceview.units import quantity


def redact(report: str | Path, out: str | Path, *, hash_names: bool = False, progress: Step | None = None) -> Redacted:
    """Write a copy of a capture that is safe to share, as SQLite. A failure leaves no file.

    With `hash_names`, the names of ranges, kernels, threads and programs are hashed. Raises ReportError when the
    capture cannot be read. Raises OutputError when `out` exists or cannot be written, or when the copy still matches
    the pattern of a secret.
    """
    report, out = Path(report), Path(out)
    step = progress or (lambda _step, _done: None)
    with as_sqlite(report) as export:
        if out.exists() or out.is_symlink():
            raise OutputError(f"{out.name}: file exists; name a new file")
        check_file(out)
        encoding = encoding_of(export)
        with new_file(out) as part, open_attached(part, export, report, encoding) as (connection, guard):
            copier = CaptureCopier(connection, guard, display_name(report), hash_names, encoding)
            redacted = copier.copy(step)
            step("check the copy", 0.9)
            if (problem := copier.problem()) is not None:
                raise OutputError(f"{out.name}: not written, because {problem}; use --names hash, and report this")
            return redacted


def encoding_of(export: Path) -> str:
    """Return the text encoding of a database; SQLite attaches only databases of the same encoding."""
    with export.open("rb") as file:
        return {2: "utf-16-le", 3: "utf-16-be"}.get(int.from_bytes(file.read(60)[56:60], "big"), "utf-8")


@contextmanager
def open_attached(part: Path, export: Path, report: Path, encoding: str) -> Iterator[tuple[sqlite3.Connection, Guard]]:
    """Open the copy with the capture attached as `source`, read-only. Triggers and views of the capture never run."""
    try:
        with closing(sqlite3.connect(f"file:{quote(bytes(part.resolve()))}", uri=True)) as connection:
            connection.text_factory = lambda text: text.decode("utf-8", "replace")
            connection.execute("PRAGMA journal_mode=OFF")
            connection.execute(f"PRAGMA encoding='{encoding[:6]}{encoding[7:]}'")
            address = f"file:{quote(bytes(export.resolve()))}?mode=ro&immutable=1"
            connection.execute("ATTACH ? AS source", (address,))
            guard = Guard(connection, export.stat().st_size)
            try:
                with connection:
                    yield connection, guard
            except sqlite3.Error as error:
                guard.reraise(error)
                raise
            guard.reraise()
    except sqlite3.Error as error:
        if "full" in str(error) or "disk I/O" in str(error):
            raise OutputError("the copy cannot be written (no space left, or a disk error)") from None
        raise damaged_error(display_name(report), error) from None
    except (OverflowError, MemoryError, UnicodeError) as error:  # a table's name may be invalid text
        raise damaged_error(display_name(report), error) from None


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
        "Secrets without a known pattern are not recognised (docs/redact.md lists the patterns).",
        "Names are hashed: a guessed name can still be verified, and numbers of up to six digits stay."
        if redacted.hashed
        else "Names of kernels, NVTX ranges, threads and programs are kept: check them, or use --names hash.",
        "Every figure is the same as in the capture.",
    ]
