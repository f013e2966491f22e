"""The time of day at a capture's zero, where the export says so."""

from __future__ import annotations

from pathlib import Path

from traceview.read.source import display_name
from traceview.read.sqlite.database import columns_of, open_read_only, real_tables

SESSION, DETAILS = "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS"
EARLIEST, LATEST = 10**18, 4 * 10**18  # 2001 to 2096


def epoch_of(export: Path) -> int | None:
    """Return the ns since 1970 (UTC) at 0 of the export's clock; None where the export does not say.

    TARGET_INFO_SESSION_START_TIME.utcEpochNs is the time of day when the session began. From schema 3.25 on its
    systemClockNs says what the export's own clock showed then; before, the clock began at 0 with the session.
    """
    with open_read_only(export) as connection:
        present = real_tables(connection, display_name(export))
        if SESSION not in present or "utcEpochNs" not in (columns := columns_of(connection, SESSION)):
            return None
        clock = "systemClockNs" if "systemClockNs" in columns else "0"
        row = connection.execute(f"SELECT utcEpochNs, {clock} FROM {SESSION} LIMIT 1").fetchone()
    if row is None or not all(isinstance(value, int) for value in row) or not EARLIEST < row[0] < LATEST:
        return None
    return int(row[0]) - int(row[1])
