"""The command line: the only file that exits and names output files; cli_output.py prints.

Click alone is imported at the top, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import click

from traceview import __version__
from traceview.cli_compare import compare
from traceview.cli_export import export
from traceview.cli_fleet import fleet
from traceview.cli_options import EXPLAINED, FILE, NSYS, all_options, serve_options
from traceview.cli_output import complain, draws, print_out, progress
from traceview.cli_redact import redact
from traceview.cli_whatif import whatif
from traceview.errors import OutputError, RequestError, TraceviewError

if TYPE_CHECKING:
    from traceview.model import Analysis, Trace

CHECK_FAILED, CANNOT_SAY, INTERRUPTED, TERMINATED = 1, 2, 130, 143
SHELLS = ("bash", "zsh", "fish")
STDOUT = "-"


class _Commands(click.Group):
    """The commands; a capture where a command should stand gets a hint."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands and (name.endswith((".sqlite", ".nsys-rep")) or Path(name).is_file()):
            ctx.fail(f"{name} is no command; did you mean: traceview analyze {name}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="traceview")
@click.pass_context
def cli(context: click.Context) -> None:
    """Say where the GPU's time went in an Nsight Systems capture, what each loss cost and what to change."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command(epilog=EXPLAINED, short_help="Measure a capture, price its losses, write the page.")
@all_options
def analyze(
    report: Path,
    html: Path | None,
    no_html: bool,
    detail: int | None,
    opened: bool,
    json_path: Path | None,
    start: str | None,
    end: str | None,
    range_name: str | None,
    device: str | None,
    iteration: str | None,
    skip: int | None,
    top: int,
    conditions: tuple[str, ...],
    quiet: bool,
) -> None:
    """Analyze REPORT, an .sqlite file from `nsys export --type sqlite`.

    Writes one offline HTML page and prints a summary.
    """
    page = _page(report, html, no_html)
    if page is None and (opened or detail is not None):
        raise RequestError("--open and --detail are about the page; they do not go with --no-html")
    from traceview import fail_if

    checks = tuple(fail_if.parse(condition) for condition in conditions)
    _check_places(report, page, json_path)
    with progress(quiet) as step:
        analysis = _analysis(report, step, (start, end), range_name, device, iteration, skip, top)
        failed = tuple(fail_if.failures(checks, analysis))
        step("write", 0.95)
        document = _write(analysis, page, json_path, detail)
    if opened and page is not None:
        click.launch(page.resolve().as_uri())
    if _is_stdout(json_path):
        print_out(document)
    elif not quiet:
        _summary(analysis, page, top)
    for line in failed:
        complain(f"traceview: --fail-if {line}")
    if failed:
        sys.exit(CHECK_FAILED)


def _analysis(
    report: Path,
    step: Callable[[str, float], None],
    times: tuple[str | None, str | None],
    range_name: str | None,
    device: str | None,
    iteration: str | None,
    skip: int | None,
    top: int,
) -> Analysis:
    if range_name is not None and times != (None, None):
        raise RequestError("--range and --from/--to narrow the same window; give one of them")
    from traceview.analyze import analyze as run
    from traceview.moment import window_of_times

    trace = _opened(report, step)
    return run(
        trace,
        window=window_of_times(trace, *times),
        range_name=range_name,
        device=device,
        iteration=iteration,
        skip=skip,
        top=top,
        progress=step,
    )


@cli.command(short_help="Show a capture's page with every event at any zoom.")
@serve_options
def serve(
    report: Path,
    port: int,
    opened: bool,
    start: str | None,
    end: str | None,
    range_name: str | None,
    device: str | None,
    iteration: str | None,
    skip: int | None,
    top: int,
    quiet: bool,
) -> None:
    """Analyze REPORT and serve its page to this machine alone, with exact detail at any zoom, until Ctrl-C.

    The address holds a random token; nothing is written.
    """
    from traceview.serve import Server

    with progress(quiet) as step:
        analysis = _analysis(report, step, (start, end), range_name, device, iteration, skip, top)
        step("make the page", 0.95)
        server = Server(analysis, port)
    with server:
        print_out(
            f"{server.address}\n" if quiet else f"Serving to this machine alone, until Ctrl-C:\n{server.address}\n"
        )
        if opened:
            click.launch(server.address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _page(report: Path, html: Path | None, no_html: bool) -> Path | None:
    if html is not None and (no_html or _is_stdout(html)):
        raise RequestError("--html names the file for the page; it goes neither with --no-html nor with -")
    return None if no_html else html or report.with_name(f"{report.stem}.overlap.html")


def _is_stdout(path: Path | None) -> bool:
    return path is not None and str(path) == STDOUT


def _check_places(report: Path, page: Path | None, json_path: Path | None) -> None:
    """Refuse outputs that would overwrite the report or each other, or that cannot be written."""
    from traceview.read.formats import check_capture
    from traceview.report.write import check_place

    check_capture(report)
    outputs = [path for path in (page, json_path) if path is not None and not _is_stdout(path)]
    places = [path.resolve() for path in (report, *outputs)]
    if len(set(places)) < len(places):
        raise OutputError(f"{report.name}: the report, the page and the JSON must be three different files")
    for path in outputs:
        check_place(path)


def _opened(report: Path, step: Callable[[str, float], None]) -> Trace:
    from traceview.trace import open_trace

    step("read", 0.0)
    return open_trace(report)


def _write(analysis: Analysis, page: Path | None, json_path: Path | None, detail: int | None) -> str:
    """Write the page and the JSON, and return the JSON; nothing is written before all of it is made."""
    from traceview.report.to_json import to_json
    from traceview.report.write import write_whole

    document = "" if json_path is None else to_json(analysis)
    if page is not None:
        from traceview.report.html import DETAIL, render

        write_whole(page, render(analysis, detail or DETAIL))
    if json_path is not None and not _is_stdout(json_path):
        write_whole(json_path, document)
    return document


def _summary(analysis: Analysis, page: Path | None, top: int) -> None:
    from traceview.report.terminal import render
    from traceview.report.words import plain

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    text = render(analysis, top=top, unicode=draws("█▓▒░·…µ"), colour=colour)
    print_out(text if page is None else f"{text}\nThe page: {plain(str(page), 4000)}\n")


@cli.command(short_help="Say what a capture holds and lacks.")
@click.argument("report", type=FILE)
@NSYS
def info(report: Path) -> None:
    """Say what REPORT holds and lacks, without measuring it."""
    from traceview.info import describe, lines

    print_out("".join(f"{line}\n" for line in lines(describe(report))))


@cli.command(short_help="Print a shell's completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL; bash: eval "$(traceview completion bash)"."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None, "click completes every shell of SHELLS"
    print_out(found(cli, {}, "traceview", "_TRACEVIEW_COMPLETE").source())


cli.add_command(compare)
cli.add_command(export)
cli.add_command(fleet)
cli.add_command(redact)
cli.add_command(whatif)


def main() -> None:
    """Run the command line; whatever goes wrong is one line and an exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    try:
        cli(prog_name="traceview", standalone_mode=False)
    except (SystemExit, click.exceptions.Exit):
        raise
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "traceview"
        _end(f"traceview: error: {error.format_message()} (see {command} --help)", CANNOT_SAY)
    except TraceviewError as error:
        _end(f"traceview: error: {error}", error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _end("traceview: interrupted", INTERRUPTED)
    except MemoryError:
        _end("traceview: error: not enough memory for this capture", CANNOT_SAY)
    except BaseException as error:  # also a panic inside polars, which is no Exception
        if os.environ.get("TRACEVIEW_DEBUG"):
            raise
        _end(f"traceview: error: {_mistake(error)}", CANNOT_SAY)


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    # An exception, so that a half-written file is removed on the way out.
    sys.exit(TERMINATED)


def _mistake(error: BaseException) -> str:
    """Name a bug by type and place; its own text may hold names or values from the capture."""
    from traceback import extract_tb

    frames = [frame for frame in extract_tb(error.__traceback__) if "traceview" in Path(frame.filename).parts]
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return (
        f"a mistake of traceview's own ({type(error).__name__}{where}); "
        "please report it, with what TRACEVIEW_DEBUG=1 prints"
    )


def _end(line: str, code: int) -> NoReturn:
    complain(line)
    sys.exit(code)
