"""The result of a diagnosis as a table for a terminal of 80 columns, and as a JSON file.

The JSON document:

program        "instrument.diagnose"
format         2; incremented when a key changes its meaning or is removed
device         "cpu" or "cuda:0"
gpu            model of the GPU; null without a GPU
torch          version of torch
iterations     timed iterations in each round
warm_up        untimed iterations before each round
rounds         number of rounds
config         the complete configuration, section -> setting -> value
stages         list of `costs.StageResult`; times in ms per iteration, null means that the stage has no such figure
verdict        `costs.Diagnosis`; its remedy is {"flags", "why"}
"""

from __future__ import annotations

import json
import os
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from instrument.checkpoint.file import io_errors, replacing
from instrument.config.schema import Config, to_dict
from instrument.diagnosis.costs import Diagnosis, StageResult
from instrument.errors import InstrumentError

JSON_FORMAT = 2
WIDTH = 80
CONTINUED = " \\\n" + " " * 13
BOUND_TITLES = {
    "loader": "data loading",
    "copy": "copies to the GPU",
    "synchronisation": "waiting for the GPU",
    "launch": "launching kernels",
}
HEADER = f"{'stage':<10}{'what runs':<30}{'ms/iter':>9}{'samples/s':>12}{'GPU ms':>10}"


def diagnosis_table(results: Sequence[StageResult], diagnosis: Diagnosis) -> str:
    """Return the stages and the diagnosis, as text."""
    return "\n".join([HEADER, *map(_stage_line, results), "", *_diagnosis_lines(diagnosis), ""])


def json_document(
    results: Sequence[StageResult], diagnosis: Diagnosis, config: Config, environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the JSON document; `environment` has the keys from "device" to "rounds"."""
    return {
        "program": "instrument.diagnose",
        "format": JSON_FORMAT,
        **environment,
        "config": to_dict(config),
        "stages": [asdict(result) for result in results],
        "verdict": asdict(diagnosis),
    }


def check_writable(path: Path) -> None:
    """Raise InstrumentError if `path` cannot be written, before anything is measured."""
    if path.is_dir():
        raise InstrumentError(f"--json {path}: this is a folder; give a file name")
    if not path.parent.is_dir():
        raise InstrumentError(f"--json {path}: the folder {path.parent} does not exist; create it first")
    if not os.access(path.parent, os.W_OK):
        raise InstrumentError(f"--json {path}: the folder {path.parent} is not writable; use another folder")


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document to a file. An existing file is replaced only after the new one is complete.

    Raises:
        InstrumentError: the file cannot be written.
    """
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    with io_errors(f"--json {path} cannot be written"), replacing(path) as file:
        file.write(text.encode())


def _stage_line(result: StageResult) -> str:
    columns = (_number(result.ms, 9, 2), _number(result.samples_per_s, 12, 1), _number(result.gpu_ms, 10, 2))
    return f"{result.stage.split()[0]:<10}{result.title:<30.29}{''.join(columns)}"


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'-' if value is None else f'{value:.{digits}f}':>{width}}"


def _diagnosis_lines(diagnosis: Diagnosis) -> Iterator[str]:
    if diagnosis.bound == "unknown":
        yield from _wrap(f"unknown: {diagnosis.because}")
    elif diagnosis.bound == "compute":
        yield "No time is lost beside the compute"
    else:
        yield f"Time is lost in {BOUND_TITLES[diagnosis.bound]}"
    if diagnosis.lost_ms:
        lost = f"{diagnosis.lost_ms:.2f} of {diagnosis.total_ms:.2f} ms per iteration"
        yield f"  costs    {lost} ({diagnosis.lost_percent:.0f}%)"
    if diagnosis.bound != "unknown":
        yield from _field("because", diagnosis.because)
    remedy = diagnosis.remedy
    yield from _field("change", f"{remedy.flags}: {remedy.why}" if remedy.flags else remedy.why)
    for note in diagnosis.notes:
        yield from _field("note", note)
    for command in diagnosis.capture:
        yield from _command_lines(command)


def _field(name: str, text: str) -> list[str]:
    return _wrap(f"  {name:<8} {text}", indent=" " * 11)


def _command_lines(command: str) -> list[str]:
    """Break a command with backslashes between its words; a word longer than a line is not broken."""
    words = " ".join(word.replace(" ", "\0") for word in map(shlex.quote, shlex.split(command)))
    lines = textwrap.wrap(words, WIDTH - 15, break_long_words=False, break_on_hyphens=False)
    return f"  next     {CONTINUED.join(lines)}".replace("\0", " ").splitlines()


def _wrap(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
