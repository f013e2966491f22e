"""The answer on a terminal of 80 columns. It computes nothing that is a figure."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator, Sequence

from instrument.diagnose.records import Row, Verdict

WIDTH = 80
NAMES = {
    "loader": "the loader",
    "copy": "copies to the GPU",
    "synchronisation": "waiting for the GPU",
    "launch": "launching kernels",
    "precision": "mixed precision",
}
HEAD = f"{'stage':<10}{'what runs':<30}{'ms/iter':>9}{'samples/s':>12}{'power W':>9}{'GPU %':>7}"


def table(rows: Sequence[Row], verdict: Verdict) -> str:
    """Return the rows, why some figures are not there, and the verdict."""
    return "\n".join([HEAD, *map(_row, rows), "", *_missing(rows), *_verdict(verdict), ""])


def _row(row: Row) -> str:
    figures = (
        _number(row.ms, 9, 2), _number(row.samples_per_s, 12, 1), _number(row.power_w, 9, 0),
        _number(row.utilisation_percent, 7, 0),
    )  # fmt: skip
    return f"{row.stage:<10}{row.title:<30.29}{''.join(figures)}"


def _number(value: float | None, width: int, digits: int) -> str:
    return f"{'-' if value is None else f'{value:.{digits}f}':>{width}}"


def _missing(rows: Sequence[Row]) -> Iterator[str]:
    """Say why a figure of the table is a dash, once for all rows that have the same reason."""
    names = {"ms": "ms/iter", "power_w": "power", "utilisation_percent": "GPU %"}
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for name, reason in row.not_measured.items():
            if name in names:
                found.setdefault(reason, {}).setdefault(row.stage, []).append(names[name])
    for reason, stages in found.items():
        what = dict.fromkeys(name for figures in stages.values() for name in figures)
        where = "" if len(stages) == len(rows) else f" of {', '.join(stages)}"
        yield from _wrapped(f"not measured: {', '.join(what)}{where}: {reason}")
    if found:
        yield ""


def _verdict(found: Verdict) -> Iterator[str]:
    if found.bound == "unknown":
        yield from _wrapped(f"unknown: {found.because}")
    elif found.bound == "compute":
        yield f"No time is lost beside the compute (stage {found.stage})"
    else:
        yield f"Time is lost in {NAMES[found.bound]} (stage {found.stage})"
    if found.lost_ms:
        yield f"  costs    {found.lost_ms:.2f} of {found.total_ms:.2f} ms an iteration ({found.lost_percent:.0f}%)"
    if found.bound != "unknown":
        yield from _field("because", found.because)
    yield from _field("change", f"{found.remedy.flags}: {found.remedy.why}" if found.remedy.flags else found.remedy.why)
    for note in found.notes:
        yield from _field("note", note)
    for command in found.capture:
        yield from _command(command)


def _field(name: str, text: str) -> list[str]:
    return _wrapped(f"  {name:<8} {text}", indent=" " * 11)


def _command(command: str) -> Iterator[str]:
    """Break a command where a shell lets it be broken; a word longer than a line stays whole."""
    line, lead = "", "  next     "
    for part in _parts(command):
        if line and len(lead) + len(line) + len(part) + 3 > WIDTH:
            yield f"{lead}{line} \\"
            line, lead = part, " " * 13
        else:
            line = f"{line} {part}" if line else part
    yield f"{lead}{line}"


def _parts(command: str) -> list[str]:
    """Return the words of a command, an option together with its value."""
    parts: list[str] = []
    for word in shlex.split(command):
        if parts and parts[-1].startswith("-") and " " not in parts[-1] and not word.startswith("-"):
            parts[-1] += f" {shlex.quote(word)}"
        else:
            parts.append(shlex.quote(word))
    return parts


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )
