"""The command line: the only file that prints, exits and names output files.

Click alone is imported at the top, so that `--help` answers at once.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from traceview import __version__
from traceview.errors import OutputError, RequestError, TraceviewError

if TYPE_CHECKING:
    from traceview.model import Analysis, Trace, Window

TIME = re.compile(r"(@?)(-?\d+(?:\.\d+)?)(ns|us|ms|s)?")
UNITS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
CHECK_FAILED = 1
CANNOT_SAY = 2
SHELLS = ("bash", "zsh", "fish")

Decorated = TypeVar("Decorated", bound=Callable[..., object])


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="traceview")
def cli() -> None:
    """Say where the GPU's time went in an Nsight Systems capture, what each loss cost and what to change."""


REPORT = click.argument("report", type=click.Path(path_type=Path))


def _options(command: Decorated) -> Decorated:
    """Attach the options that narrow an analysis."""
    for option in reversed(
        (
            click.option("--from", "start", metavar="TIME", help="Begin here: 120ms after the first GPU work, or @NS on the capture's clock."),
            click.option("--to", "end", metavar="TIME", help="End here, written like --from."),
            click.option("--range", "range_name", metavar="NVTX", help="Narrow to the NVTX ranges of this name, first start to last end."),
            click.option("--device", metavar="GPU", help="Only this device: its id ('GPU 0') or its ordinal."),
            click.option("--iteration", metavar="REGEX", help="NVTX ranges whose name matches are the iterations."),
            click.option("--skip", type=click.IntRange(min=0), metavar="N", help="Set the first N iterations aside as warm-up."),
            click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="Longest lists in the summary, the page and the JSON."),
        )
    ):
        command = option(command)
    return command


@cli.command()
@REPORT
@click.option("--html", type=click.Path(path_type=Path), help="Where the page goes.  [default: REPORT.overlap.html beside the report]")
@click.option("--no-html", is_flag=True, help="Write no page.")
@click.option("--json", "json_path", metavar="PATH", help="Write every figure as JSON; - is standard output.")
@_options
@click.option("--fail-if", "conditions", multiple=True, metavar="EXPR", help="Exit with 1 when this holds, as 'exposed_h2d > 5%' or 'idle.launch >= 2ms'. May be repeated.")
@click.option("--quiet", "-q", is_flag=True, help="Print no summary and no progress.")
def analyze(
    report: Path,
    html: Path | None,
    no_html: bool,
    json_path: str | None,
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

    Writes one offline HTML page and prints a summary. Exit code 0: done; 1: a --fail-if held; 2: nothing
    can be said, and why.
    """
    from traceview import fail_if
    from traceview.analyze import analyze as run
    from traceview.report.to_json import to_json
    from traceview.report.write import write_whole

    checks = tuple(fail_if.parse(condition) for condition in conditions)
    page = None if no_html else (html or report.with_name(f"{report.stem}.overlap.html"))
    outputs = [path for path in (page, None if json_path in (None, "-") else Path(str(json_path))) if path]
    _refuse_collisions(report, outputs)
    with _progress(quiet) as step:
        trace = _opened(report, step)
        analysis = run(
            trace,
            window=_window(trace, start, end, range_name),
            range_name=range_name,
            device=device,
            iteration=iteration,
            skip=skip,
            top=top,
            progress=step,
        )
        if json_path is not None and json_path != "-":
            write_whole(Path(json_path), to_json(analysis))
        if page is not None:
            step("draw the page", 0.95)
            _write_page(page, analysis)
    if json_path == "-":
        click.echo(to_json(analysis), nl=False)
    elif not quiet:
        _summary(analysis, page, top)
    _exit_by(tuple(fail_if.failures(checks, analysis)))


def _write_page(page: Path, analysis: Analysis) -> None:
    from traceview.report.html import render
    from traceview.report.write import write_whole

    write_whole(page, render(analysis))


def _opened(report: Path, step: Callable[[str, float], None]) -> Trace:
    from traceview.trace import open_trace

    step("read", 0.0)
    return open_trace(report)


def _refuse_collisions(report: Path, outputs: list[Path]) -> None:
    places = [path.resolve() for path in (report, *outputs)]
    if len(set(places)) < len(places):
        raise OutputError(f"{report.name}: the report and the files to write must all have different names")


def _window(trace: Trace, start: str | None, end: str | None, range_name: str | None) -> Window | None:
    from traceview.model import Window

    if start is None and end is None:
        return None
    if range_name is not None:
        raise RequestError("--range and --from/--to narrow the same window; give one of them")
    if trace.operations.is_empty():
        return None
    first = int(trace.operations["start"].to_numpy()[0])
    last = int(trace.operations["end"].to_numpy().max())
    window = Window(
        first if start is None else _moment("--from", start, first), last if end is None else _moment("--to", end, first)
    )
    if window.length <= 0:
        raise RequestError(f"--from {start} --to {end}: the window is empty; --to must lie after --from")
    return window


def _moment(option: str, text: str, first: int) -> int:
    """Return a time on the capture's clock, in ns."""
    found = TIME.fullmatch(text.strip())
    if not found:
        raise RequestError(f"{option} {text!r} is not a time; write 120ms, 1.5s, 300us, 900ns or @NS")
    absolute, number, unit = found.groups()
    whole, _, part = number.partition(".")
    scale = UNITS[unit or "ns"]
    digits = part[: len(str(scale)) - 1]
    sign = -1 if number.startswith("-") else 1
    ns = int(whole) * scale + sign * (int(digits) * scale // 10 ** len(digits) if digits else 0)
    return ns if absolute else first + ns


def _summary(analysis: Analysis, page: Path | None, top: int) -> None:
    from traceview.report.terminal import render

    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    try:
        "█▒░·…".encode(encoding)
        unicode = True
    except (UnicodeEncodeError, LookupError):
        unicode = False
    click.echo(render(analysis, top=top, unicode=unicode).encode(encoding, "replace").decode(encoding), nl=False)
    if page is not None:
        click.echo(f"\nThe page: {page}")


def _exit_by(failed: tuple[str, ...]) -> None:
    for line in failed:
        click.echo(f"traceview: --fail-if {line}", err=True)
    if failed:
        sys.exit(CHECK_FAILED)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Show the step under way on one line of a terminal; elsewhere nothing."""
    shown = sys.stderr.isatty() and not quiet

    def step(name: str, done: float) -> None:
        if shown:
            click.echo(f"\r\033[K{100 * done:3.0f}% {name}", err=True, nl=False)

    try:
        yield step
    finally:
        if shown:
            click.echo("\r\033[K", err=True, nl=False)


@cli.command()
@REPORT
def info(report: Path) -> None:
    """Say what REPORT holds and lacks, without measuring it."""
    from traceview.info import describe, lines

    for line in lines(describe(report)):
        click.echo(line)


@cli.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL; bash: eval "$(traceview completion bash)"."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise RequestError(f"no completion for {shell}; known are {', '.join(SHELLS)}")
    click.echo(found(cli, {}, "traceview", "_TRACEVIEW_COMPLETE").source())


def main() -> None:
    """Run the command line; a TraceviewError becomes one line and exit code 2."""
    try:
        cli(prog_name="traceview", standalone_mode=False)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(CANNOT_SAY)
    except (click.Abort, KeyboardInterrupt):
        click.echo("traceview: interrupted; no file was changed", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except TraceviewError as error:
        click.echo(f"traceview: error: {error}", err=True)
        sys.exit(error.exit_code)
    except Exception as error:
        if os.environ.get("TRACEVIEW_DEBUG"):
            raise
        click.echo(
            f"traceview: a mistake of traceview's own ({type(error).__name__}: {error}); "
            "run again with TRACEVIEW_DEBUG=1 and report what it prints",
            err=True,
        )
        sys.exit(CANNOT_SAY)
