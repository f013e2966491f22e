"""One CSV file a table, safe to open in a spreadsheet.

A text that a spreadsheet would take for a formula (it begins with = + - @, a tab or a return), or that begins
with an apostrophe, gets an apostrophe in front: taking one away gives every text back. NUL, which some readers
refuse, becomes U+FFFD.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traceview.export.contents import Contents
from traceview.export.tables import TABLES, tables

FORMULA = r"^[=+\-@\t\r']"
FILES = tuple(f"{table.name}.csv" for table in TABLES)


def write(of: Contents, folder: Path) -> None:
    """Write every table into a folder."""
    for name, frame in tables(of):
        safe(frame).write_csv(folder / f"{name}.csv")


def safe(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with texts that no spreadsheet computes."""
    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String or isinstance(dtype, pl.Enum)]
    plain = {name: pl.col(name).cast(pl.String).str.replace_all("\0", "\ufffd", literal=True) for name in texts}
    return frame.with_columns(
        pl.when(text.str.contains(FORMULA)).then(pl.lit("'") + text).otherwise(text).alias(name)
        for name, text in plain.items()
    )
