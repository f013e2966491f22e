"""The `redact` command, and baselines of `compare`: copies of captures to share, and to compare later ones with."""

from __future__ import annotations

import json
import re
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceview.cli import command
from traceview.cli.options import BASELINES, FILE, JSON, REPORT, SILENT, baseline_path, reading_options
from traceview.cli.outputs import check_outputs, print_out, progress, write_document
from traceview.errors import OutputError, ReportError, RequestError
from traceview.report.files import check_different, check_file, refuse_link

if TYPE_CHECKING:
    from traceview.model.comparison import StoredBaseline


NAMES = click.option(
    "--names",
    type=click.Choice(("keep", "hash")),
    default="keep",
    show_default=True,
    help="In a copy, keep or hash the names of kernels, NVTX ranges, threads and programs.",
)


@command(
    "traceview redact report.sqlite shared.sqlite",
    "traceview redact report.nsys-rep shared.sqlite --names hash",
)
@REPORT
@click.argument("out", type=FILE)
@NAMES
@JSON
@reading_options
@SILENT
def redact(report: Path, out: Path, names: str, json_path: Path | None, quiet: bool) -> None:
    """Write OUT, a copy of REPORT without environment, paths, host, user, command line and program output.

    Every figure of an analysis stays the same. In names, tokens, keys, e-mail addresses and paths are replaced.
    The command prints what it removed and leaves REPORT as it is.
    """
    from traceview.captures.redact import redact as write_copy
    from traceview.captures.redact import summary_lines

    check_outputs((report,), (out, json_path))
    with progress(quiet) as step:
        redacted = write_copy(report, out, hash_names=names == "hash", progress=step)
    if not write_document(json_path, redacted) and not quiet:
        print_out("".join(f"{line}\n" for line in summary_lines(redacted)))


BLOCK = 1 << 20  # bytes that are compressed at once
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


def save_baseline(name: str, report: Path, names: str, json_path: Path | None, quiet: bool, **options: Any) -> None:
    """Store a redacted copy of a report as a baseline, with the figures of its analysis. Raises TraceviewError."""
    if not NAME.fullmatch(name):
        raise RequestError(f"{name[:40]!r}: a baseline's name has letters, digits, '.', '_' and '-', at most 80")
    stored = baseline_path(name)
    for path in (*reversed(stored.parents[:2]), stored, stored.with_name(f"{name}.json")):
        refuse_link(path, "another folder")
    try:
        stored.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{stored.parent}: cannot be made ({error.strerror}); run in another folder") from None
    check_file(stored)
    check_different((report,), (stored,))
    check_outputs((report, stored, stored.with_name(f"{name}.json")), (json_path,))
    with progress(quiet) as step:
        from traceview.captures.redact import redact
        from traceview.exporters import write_trace
        from traceview.model.comparison import Baselines, StoredBaseline
        from traceview.pipeline import analyze

        step("analyze", 0.0)
        analysis = analyze(report, **options)
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / f"{name}.sqlite"
            redact(report, copy, hash_names=names == "hash", progress=step)
            with copy.open("rb") as data:
                write_trace(stored, iter(partial(data.read, BLOCK), b""))
    figures = StoredBaseline(
        name=name,
        gpus=tuple(device.name for device in analysis.devices),
        iterations=getattr(analysis.iterations, "count", None),
        time_ns=getattr(analysis.iterations, "time_ns", None),
        bytes=stored.stat().st_size,
    )
    write_document(stored.with_name(f"{name}.json"), figures)
    if not write_document(json_path, Baselines((figures,))) and not quiet:
        print_out(f"{stored}\n")


def list_baselines(json_path: Path | None) -> None:
    """List the stored baselines by name."""
    check_outputs((), (json_path,))
    from traceview.model.comparison import Baselines

    stored = tuple(_stored_baseline(path) for path in sorted(BASELINES.glob("*.json")))
    if not write_document(json_path, Baselines(stored)):
        print_out("".join(f"{_line(row)}\n" for row in stored) or f"no baseline in {BASELINES}\n")


def _stored_baseline(path: Path) -> StoredBaseline:
    from traceview.model.comparison import StoredBaseline

    try:
        row = json.loads(path.read_bytes())
        return StoredBaseline(
            name=path.stem,
            gpus=tuple(str(gpu) for gpu in row["gpus"]),
            iterations=None if row["iterations"] is None else int(row["iterations"]),
            time_ns=None if row["time_ns"] is None else int(row["time_ns"]),
            bytes=int(row["bytes"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        raise ReportError(f"{path}: is damaged; save the baseline again") from None


def _line(row: StoredBaseline) -> str:
    from traceview.model.units import duration, plain, size

    time = "no iterations" if row.time_ns is None else f"{duration(row.time_ns)} per iteration"
    return f"{row.name}  {time}, {plain(', '.join(row.gpus))}, {size(row.bytes)}"
