"""The command line: every subcommand by name. `process.py` runs it.

A subcommand's module is imported when the subcommand runs, so that `traceview --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import TypeVar

import click

from traceview import __version__
from traceview.cli.settings import CAPTURES, default_map, said_defaults
from traceview.errors import ReportError, is_out_of_memory

Decorated = TypeVar("Decorated", bound=Callable[..., object])

SHELLS = ("bash", "zsh", "fish")
ARGUMENTS = "traceview.arguments"  # key of a click context's `meta`: the arguments of the command

# Name -> the module that holds a click command of this name, and its short help.
COMMANDS = {
    "analyze": ("traceview.cli.analyze", "Measure one capture; write a page and a summary."),
    "baseline": ("traceview.cli.baseline", "Store captures to compare later ones with."),
    "calibrate": ("traceview.cli.record", "Measure what nsys adds to CUDA calls here."),
    "compare": ("traceview.cli.compare", "Show what changed between captures."),
    "completion": ("traceview.cli", "Print a shell completion script."),
    "doctor": ("traceview.cli.record", "Check whether this machine can record."),
    "export": ("traceview.cli.export", "Convert a capture to Perfetto, Chrome, CSV or Parquet."),
    "fleet": ("traceview.cli.fleet", "Compare the ranks of a run and find stragglers."),
    "info": ("traceview.cli.info", "List what a capture contains and what is missing."),
    "mcp": ("traceview.cli.serve", "Serve tools on captures to agents (MCP)."),
    "optimize": ("traceview.cli.optimize", "Record, predict, change, record, compare; keep a ledger."),
    "record": ("traceview.cli.record", "Run a program under nsys and analyze it."),
    "redact": ("traceview.cli.baseline", "Write a copy of a capture that is safe to share."),
    "rules": ("traceview.cli.info", "List and explain the rules that find lost time."),
    "schema": ("traceview.cli.info", "Print the JSON Schema of a command's output."),
    "serve": ("traceview.cli.serve", "Serve a capture's page with every event at any zoom."),
    "whatif": ("traceview.cli.whatif", "Predict the effect of changes from one capture."),
}


class _LazyCommands(click.Group):
    """A group that imports a subcommand when it runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, short_help) for name, (_, short_help) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest `traceview analyze FILE` if the command is the name of a file."""
        name = args[0]
        if name not in COMMANDS and (name.endswith((".sqlite", ".nsys-rep")) or Path(name).is_file()):
            ctx.fail(f"{name} is not a command; did you mean: traceview analyze {name}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Keep the arguments of the command, and name the captures in an out-of-memory error."""
        ctx.meta[ARGUMENTS] = tuple(ctx.args)
        try:
            return super().invoke(ctx)
        except BaseException as error:
            if not is_out_of_memory(error):
                raise
            names = ", ".join(path.name for path in ctx.meta.get(CAPTURES, ())) or "these captures"
            raise ReportError(
                f"{names}: not enough memory; use a machine with more memory, or a shorter capture"
            ) from None


@click.group(cls=_LazyCommands, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="traceview")
@click.pass_context
def cli(context: click.Context) -> None:
    """Find where GPU time goes in an Nsight Systems capture, what each loss costs and what to change."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    else:
        context.default_map = default_map(folder := Path.cwd())
        arguments = context.meta[ARGUMENTS]
        if context.default_map and not {"-q", "--quiet", "-h", "--help"}.intersection(arguments):
            from traceview.cli.outputs import print_error

            if line := said_defaults(folder, context.default_map, context.invoked_subcommand, *arguments):
                print_error(line)


def examples(*lines: str) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds examples to the help text of a command."""

    def add(command: Decorated) -> Decorated:
        # Click keeps the line ends of a paragraph that begins with a backspace character.
        shown = "".join(f"\n  {line}" for line in lines)
        command.__doc__ = f"{cleandoc(command.__doc__ or '')}\n\n\b\nExamples:{shown}"
        return command

    return add


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@examples(
    'eval "$(traceview completion bash)"     # in ~/.bashrc',
    'eval "$(traceview completion zsh)"      # in ~/.zshrc',
    "traceview completion fish > ~/.config/fish/completions/traceview.fish",
)
def completion(shell: str) -> None:
    """Print the completion script for SHELL."""
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None, "click supports every shell in SHELLS"
    click.echo(completer(cli, {}, "traceview", "_TRACEVIEW_COMPLETE").source())
