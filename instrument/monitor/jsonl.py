"""Metrics as JSON Lines: one record per line, written without buffering and never in part.

    {"step": 9, "time": 1760000000.0, "loss": 2.5, "perf/step_ms": 9.8, "perf/copy_ms": null}

A null is a figure that was not measured. JSON has no infinity or NaN: such a value is null and is listed under
"not_finite".
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from instrument.errors import ConfigError
from instrument.monitor.metrics import Figures


class JsonLines:
    """A file of records.

    Args:
        path: the file. A new run renames an existing file to NAME.1.jsonl, NAME.2.jsonl, ...
        resumed_at: first step of a resumed run, at which the file is continued.

    Raises:
        ConfigError: the file cannot be written to.
    """

    def __init__(self, path: Path, *, resumed_at: int | None = None) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                _move_aside(path) if resumed_at is None else _truncate_at_step(path, resumed_at)
            self._file = path.open("ab", buffering=0)
        except OSError as failure:
            raise ConfigError(f"monitor.jsonl: cannot write to {path}: {failure.strerror}") from None

    def write(self, step: int, figures: Figures) -> None:
        """Append one record.

        Raises:
            OSError: the record could not be written; the file contains no part of it.
        """
        line, end = _encode_record(step, figures), os.fstat(self._file.fileno()).st_size
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"only {written} of {len(line)} bytes were written")
        except OSError:
            if self._file.seekable():
                self._file.truncate(end)
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _encode_record(step: int, figures: Figures) -> bytes:
    record: dict[str, Any] = {"step": step, "time": round(time.time(), 3)}
    not_finite = {name: str(value) for name, value in figures.items() if value is not None and not math.isfinite(value)}
    record |= {name: None if name in not_finite else value for name, value in figures.items()}
    if not_finite:
        record["not_finite"] = not_finite
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _move_aside(path: Path) -> None:
    """Rename the file of an earlier run, with the first free number."""
    number = 1
    while (beside := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(beside)


def _truncate_at_step(path: Path, step: int) -> None:
    """Truncate the file before the first record of this step or a later one, or before a partial line."""
    end = 0
    with path.open("rb+") as file:
        for line in file:
            if not line.endswith(b"\n") or _step_of_record(line) >= step:
                break
            end += len(line)
        file.truncate(end)


def _step_of_record(line: bytes) -> float:
    """Return the step of a record; -inf for a line that is not a record, so that it stays."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return -math.inf
