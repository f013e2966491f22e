"""The command line: all commands; program.py runs them, cli_output.py prints.

Click alone is imported at the top, so that `--help` answers at once.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from traceview import __version__
from traceview.cli.analyze import Asked, analysis_of, analyze
from traceview.cli.compare import compare
from traceview.cli.export import export
from traceview.cli.fleet import fleet
from traceview.cli.options import CAPTURE, CAPTURES, reading_options, serve_options
from traceview.cli.outputs import print_out, progress
from traceview.cli.redact import redact
from traceview.cli.whatif import whatif
from traceview.errors import ReportError, is_out_of_memory

SHELLS = ("bash", "zsh", "fish")


class _Commands(click.Group):
    """The commands; a capture where a command should stand gets a hint, one too large for the memory its name."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BaseException as error:
            if not is_out_of_memory(error):
                raise
            names = ", ".join(path.name for path in ctx.meta.get(CAPTURES, ())) or "these captures"
            raise ReportError(f"{names}: not enough memory; take a machine with more, or a shorter capture") from None

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
@click.argument("report", type=CAPTURE)
@reading_options
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
cli.add_command(compare)
cli.add_command(export)
cli.add_command(fleet)
cli.add_command(redact)
cli.add_command(whatif)
