"""The `info` and `redact` commands: what a capture holds, and a copy of it to share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from traceview.cli import command, options
from traceview.cli.outputs import check_outputs, print_out, progress, screen, write_document
from traceview.model.units import plain, quantity

if TYPE_CHECKING:
    from traceview.captures.redact import Redacted

MORE = "every stream, table, range and check of the capture's health"


@command("traceview info report.sqlite", "traceview info report.nsys-rep -v")
@options.REPORT
@options.JSON
@options.reading_options
@options.VERBOSE
def info(report: Path, json_path: Path | None, verbose: bool) -> None:
    """List what REPORT contains and what is missing. Measures nothing."""
    from traceview.captures.info import describe, lines

    check_outputs((report,), (json_path,))
    contents = describe(report)
    if write_document(json_path, contents):
        return
    page = screen()
    parts = [list(lines(contents, page.columns, verbose=verbose))]
    print_out(page.text(parts) if verbose else page.brief(parts, MORE))


@command(
    "traceview redact report.sqlite shared.sqlite --list", "traceview redact report.nsys-rep shared.sqlite --names hash"
)
@options.REPORT
@click.argument("out", type=options.FILE)
@click.option(
    "--names",
    type=click.Choice(("keep", "hash", "drop")),
    default="keep",
    show_default=True,
    help="Names of ranges and kernels.",
)
@click.option("--list", "lists", is_flag=True, help="Print each distinct text that OUT has.")
@options.JSON
@options.reading_options
@options.SILENT
def redact(
    report: Path, out: Path, names: Literal["keep", "hash", "drop"], lists: bool, json_path: Path | None, quiet: bool
) -> None:
    """Write OUT, a copy of REPORT with only what traceview reads: times, sizes, ids and names.

    Environment, command lines, paths, hosts, users, diagnostics and output of the program are gone. Names of ranges,
    threads and kernels stay unless --names says otherwise: read them with --list before you share OUT.
    """
    from traceview.captures.redact import redact as write_copy

    check_outputs((report,), (out, json_path))
    with progress(quiet) as step:
        redacted = write_copy(report, out, names=names, progress=step)
    if not write_document(json_path, redacted) and not quiet:
        print_out("".join(f"{line}\n" for line in summary_lines(redacted, lists)))


def summary_lines(redacted: Redacted, lists: bool) -> Iterator[str]:
    """Yield what a copy has, at the end the number of its distinct texts; each of them if `lists`."""
    for each in redacted.texts if lists else ():
        yield f"{each.kind}: {plain(each.text, len(each.text) + 1)}"
    for note in redacted.notes:
        yield f"note: {note}; the copy does not say so"
    yield (
        f"The copy has {quantity(redacted.rows, 'row')} in {quantity(redacted.tables, 'table')}. Environment, command "
        "lines, paths, hosts, users, diagnostics and output of the program are gone."
    )
    kinds = Counter(each.kind for each in redacted.texts)
    counts = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
    where = "" if lists else "; --list prints them"
    total = quantity(len(redacted.texts), "distinct text")
    yield f"{total} ({counts}) stay. Read them before you share the copy{where}."
