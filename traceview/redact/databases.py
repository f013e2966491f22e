"""The two databases of a redaction: the capture, read-only, and a new file that replaces nothing until it is whole."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from traceview.errors import OutputError
from traceview.read.sqlite.database import damaged, shown
from traceview.read.sqlite.guard import Guard


def encoding_of(export: Path) -> str:
    """Return the encoding of a database's texts; SQLite attaches only databases of the same one."""
    with export.open("rb") as file:
        return {2: "utf-16-le", 3: "utf-16-be"}.get(int.from_bytes(file.read(60)[56:60], "big"), "utf-8")


@contextmanager
def attached(
    part: Path, export: Path, report: Path, encoding: str
) -> Iterator[tuple[sqlite3.Connection, Guard]]:
    """Open the copy with the capture attached as `source`, read-only; nothing in the capture can run."""
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
            raise OutputError("the copy cannot be written (no space is left, or the disk fails)") from None
        raise damaged(shown(report), error) from None
    except (OverflowError, MemoryError, UnicodeError) as error:  # a name of a table may be no text
        raise damaged(shown(report), error) from None
