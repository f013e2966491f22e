"""The command line: all commands, and how the program ends; cli_output.py prints.

Click alone is imported at the top, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from traceview import __version__
from traceview.cli_analyze import Asked, analysis_of, analyze
from traceview.cli_cache import cache
from traceview.cli_compare import compare
from traceview.cli_export import export
from traceview.cli_fleet import fleet
from traceview.cli_options import FILE, NSYS, serve_options
from traceview.cli_output import complain, print_out, progress
from traceview.cli_redact import redact
from traceview.cli_whatif import whatif
from traceview.errors import TraceviewError

CANNOT_SAY, INTERRUPTED, TERMINATED = 2, 130, 143
M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -8, -3, -1  # malloc.h
LARGE = 16 << 20
ENOUGH = 4  # threads of polars
_asked: list[int] = []  # the exit code of a signal that was handled
SHELLS = ("bash", "zsh", "fish")


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


@cli.command(short_help="Show a capture's page with every event at any zoom.")
@serve_options
def serve(
    report: Path,
    port: int,
    opened: bool,
    quiet: bool,
    **asked: Any,
) -> None:
    """Analyze REPORT and serve its page to this machine alone, with exact detail at any zoom, until Ctrl-C.

    The address holds a random token; nothing is written.
    """
    from traceview.serve import Server

    with progress(quiet) as step:
        analysis = analysis_of(report, step, Asked(**asked))
        step("make the page", 0.95)
        server = Server(analysis, port)
    gc.enable()  # this one runs for days
    with server:
        print_out(
            f"{server.address}\n" if quiet else f"Serving to this machine alone, until Ctrl-C:\n{server.address}\n"
        )
        if opened:
            click.launch(server.address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


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


cli.add_command(analyze)
cli.add_command(cache)
cli.add_command(compare)
cli.add_command(export)
cli.add_command(fleet)
cli.add_command(redact)
cli.add_command(whatif)


def main() -> None:
    """Run the command line; whatever goes wrong is one line and an exit code."""
    signal.signal(signal.SIGTERM, _terminated)
    _use_little()
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
        _end("traceview: interrupted", _asked[-1] if _asked else INTERRUPTED)
    except MemoryError:
        _end("traceview: error: not enough memory for this capture", CANNOT_SAY)
    except BaseException as error:  # also a panic inside polars, which is no Exception
        if os.environ.get("TRACEVIEW_DEBUG"):
            raise
        full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
        said = f"standard output cannot be written ({os.strerror(errno.ENOSPC)})" if full else _mistake(error)
        _end(f"traceview: error: {said}", CANNOT_SAY)


def run() -> NoReturn:
    """Be the program: `main`, and out without taking apart what the process held, which takes a tenth of a second."""
    code: object = 0
    try:
        main()
    except SystemExit as left:
        code = left.code or 0
    # Other processes and threads have ends of their own to come to.
    if not isinstance(code, int) or "multiprocessing" in sys.modules or threading.active_count() > 1:
        sys.exit(code)  # type: ignore[arg-type]
    with suppress(OSError):  # what was printed was flushed, or is an error already
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _use_little() -> None:
    """Let threads share one heap, and give large arrays back when they are freed: a quarter less memory at once.

    What polars frees goes back at once too (jemalloc's option: what another allocator makes of it is nothing). One
    command makes no garbage that counting references leaves, and multiplies no matrices: the search for the
    one and a thread a core for the other are time alone.
    """
    import ctypes

    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if (os.cpu_count() or 1) > ENOUGH:  # with 32 threads the same work takes half as much processor time again
        os.environ.setdefault("POLARS_MAX_THREADS", str(ENOUGH))
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    with suppress(AttributeError, OSError):  # another C library has no such options
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, LARGE // 2)


def _terminated(_signal: int, _frame: FrameType | None) -> NoReturn:
    # An exception, so that a half-written file is removed on the way out; it may come back as an interruption.
    _asked.append(TERMINATED)
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
