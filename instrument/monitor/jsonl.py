"""Figures as JSON lines: one record a line, whole or not there, on disk as soon as it is written.

    {"step": 9, "time": 1760000000.0, "loss": 2.5, "perf/step_ms": 9.8, "perf/power_w": null}

null is not measured. JSON has no infinity and no NaN: such a figure is null too, and named under "not_finite".
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from instrument.config.schema import Config
from instrument.errors import ConfigError
from instrument.monitor.sink import Figures


def open_sink(config: Config, resumed_at: int | None) -> JsonLines | None:
    """Open the file that `monitor.jsonl` names, if it does."""
    path = config.monitor.jsonl
    return None if path is None else JsonLines(path, resumed_at=resumed_at)


class JsonLines:
    """A file of records.

    Args:
        path: the file. A new run keeps an earlier one's beside it, as NAME.1.jsonl, NAME.2.jsonl, ...
        resumed_at: the first step of a run that goes on: the file is continued there.

    Raises:
        ConfigError: it cannot be written to.
    """

    def __init__(self, path: Path, *, resumed_at: int | None = None) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file():
                _keep(path) if resumed_at is None else _cut(path, resumed_at)
            self._file = path.open("ab", buffering=0)
        except OSError as failure:
            raise ConfigError(f"monitor.jsonl: {path} cannot be written to: {failure.strerror}") from None

    def write(self, step: int, figures: Figures) -> None:
        """Append one record.

        Raises:
            OSError: it could not be written; nothing of it is in the file.
        """
        line = _line(step, figures)
        try:
            written = self._file.write(line)
            if written != len(line):
                raise OSError(f"{written} of {len(line)} bytes were written")
        except OSError:
            self._take_back(line)
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _take_back(self, line: bytes) -> None:
        """Leave no half line: whatever stands after the last line break goes."""
        if not self._file.seekable():
            return
        size = os.fstat(self._file.fileno()).st_size
        with self._path.open("rb") as content:
            content.seek(max(0, size - len(line)))
            tail = content.read()
        if not tail.endswith(b"\n"):
            self._file.truncate(size - len(tail) + tail.rfind(b"\n") + 1)


def _line(step: int, figures: Figures) -> bytes:
    record: dict[str, Any] = {"step": step, "time": round(time.time(), 3)}
    odd = {name: str(value) for name, value in figures.items() if value is not None and not math.isfinite(value)}
    record |= {name: None if name in odd else value for name, value in figures.items()}
    if odd:
        record["not_finite"] = odd
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _keep(path: Path) -> None:
    """Move an earlier run's file aside, to the first number that is free."""
    number = 1
    while (beside := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(beside)


def _cut(path: Path, step: int) -> None:
    """End the file before the first record of this step or a later one, and before a half line."""
    end = 0
    with path.open("rb+") as file:
        for line in file:
            if not line.endswith(b"\n") or _step(line) >= step:
                break
            end += len(line)
        file.truncate(end)


def _step(line: bytes) -> float:
    """Return a record's step; a line that is none stays, wherever it came from."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return -math.inf
