"""The `redact` command: copies of captures to share."""

from __future__ import annotations

from pathlib import Path

import click

from traceview.cli import command
from traceview.cli.options import FILE, JSON, REPORT, SILENT, reading_options
from traceview.cli.outputs import check_outputs, print_out, progress, write_document


@command(
    "traceview redact report.sqlite shared.sqlite",
    "traceview redact report.nsys-rep shared.sqlite --names hash",
)
@REPORT
@click.argument("out", type=FILE)
@click.option(
    "--names",
    type=click.Choice(("keep", "hash")),
    default="keep",
    show_default=True,
    help="Keep or hash the names of kernels, NVTX ranges, threads and programs.",
)
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
