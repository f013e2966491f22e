"""The answer as JSON, written whole or not at all.

program        "instrument.diagnose"
format         1; it changes when a key changes its meaning or goes
device         "cpu", "cuda:0"
gpu            the GPU's model; null without one
torch          its version
iterations     timed in each round
warm_up        iterations before each round, not timed
rounds         how many
config         the whole configuration, section -> setting -> value
stages         a list of the attributes of `records.Row`; times in ms per iteration, null is not measured
verdict        the attributes of `records.Verdict`; its remedy is {"flags", "why"}
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from instrument.config.schema import Config, to_dict
from instrument.diagnose.records import Row, Verdict
from instrument.errors import InstrumentError

FORMAT = 1


def contents(rows: Sequence[Row], verdict: Verdict, config: Config, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is written; `about` are the keys from "device" to "rounds"."""
    return {
        "program": "instrument.diagnose",
        "format": FORMAT,
        **about,
        "config": to_dict(config),
        "stages": [asdict(row) for row in rows],
        "verdict": asdict(verdict),
    }


def check_writable(path: Path) -> None:
    """Raise InstrumentError where nothing can be written to `path`: said before anything is measured."""
    if path.is_dir():
        raise InstrumentError(f"--json {path}: it is a folder: give the name of a file")
    if not path.parent.is_dir():
        raise InstrumentError(f"--json {path}: there is no folder {path.parent}: make it first")
    if not os.access(path.parent, os.W_OK):
        raise InstrumentError(f"--json {path}: the folder {path.parent} cannot be written to: use another")


def write(path: Path, found: Mapping[str, Any]) -> None:
    """Write what was found; what stood at `path` stays until the new file is whole.

    Raises:
        InstrumentError: it cannot be written.
    """
    text = json.dumps(found, indent=1, allow_nan=False) + "\n"
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, prefix=f".{path.name}.", delete=False, encoding="utf-8"
        ) as file:
            temporary = Path(file.name)
            file.write(text)
        temporary.chmod(0o666 & ~_mask())
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        raise InstrumentError(f"--json {path}: cannot be written: {error.strerror}: use another place") from None


def _mask() -> int:
    """Return which permissions new files do not get; it can only be read by being set."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
