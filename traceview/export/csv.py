"""One CSV file a table, safe to open in a spreadsheet.

A text gets an apostrophe in front if a spreadsheet may read it as a formula: it begins with = + - @ or their
full-width forms, white space before them included, or with a tab, return or line feed. So does a text that begins
with an apostrophe: removing one apostrophe restores every text. Numbers stay numbers. NUL, which some readers
refuse, becomes U+FFFD.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traceview.export.contents import Contents
from traceview.export.tables import TABLES, tables

# The same rule as in the page's export.js. Spreadsheets strip white space and control characters in front.
FORMULA = r"^(?:['\t\r\n]|[\s\x00-\x1f\x{200b}\x{feff}]*[=+\-@\x{ff0b}\x{ff0d}\x{ff1d}\x{ff20}])"
FILES = tuple(f"{table.name}.csv" for table in TABLES)


def write(contents: Contents, folder: Path) -> None:
    """Write every table into a folder."""
    for name, frame in tables(contents):
        safe(frame).write_csv(folder / f"{name}.csv")


def safe(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with texts that no spreadsheet computes."""
    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String or isinstance(dtype, pl.Enum)]
    plain = {name: pl.col(name).cast(pl.String).str.replace_all("\0", "\ufffd", literal=True) for name in texts}
    return frame.with_columns(
        pl.when(text.str.contains(FORMULA)).then(pl.lit("'") + text).otherwise(text).alias(name)
        for name, text in plain.items()
    )
