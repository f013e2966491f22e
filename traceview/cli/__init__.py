"""The command line: every subcommand by name. `__main__.py` runs it.

A subcommand's module is imported when the subcommand runs, so that `traceview --help` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click

from traceview import __version__
from traceview.errors import ReportError, is_out_of_memory

CAPTURES = "traceview.captures"  # key of a click context's `meta`: the captures on the command line

# Name -> the module that holds a click command of this name, and its short help.
COMMANDS = {
    "analyze": ("traceview.cli.analyze", "Measure one capture; write a page, print a summary."),
    "compare": ("traceview.cli.compare", "Show what changed between captures."),
    "doctor": ("traceview.cli.record", "Check whether this machine can record."),
    "export": ("traceview.cli.export", "Convert a capture to Perfetto or Parquet."),
    "fleet": ("traceview.cli.fleet", "Compare the ranks of a run and find stragglers."),
    "info": ("traceview.cli.info", "List what a capture contains and what is missing."),
    "mcp": ("traceview.cli.mcp", "Serve tools on captures to agents (MCP)."),
    "record": ("traceview.cli.record", "Run a program under nsys and analyze it."),
    "redact": ("traceview.cli.info", "Write a copy of a capture that is safe to share."),
    "whatif": ("traceview.cli.whatif", "Predict the effect of changes from one capture."),
}
# Options by what they are about, as --help lists them. Those below "/" are only in --help-all.
GROUPS = {
    "Input": "changes / others nsys unprofiled_ns max_decoded",
    "What is measured": "traced python gpu_metrics delay seconds iterations start end iteration skip device "
    "faster ranks gradients all_ranks / whole range_name flops_per_iteration min_change margin",
    "Output": "form output names lists html html_path markdown json_path no_html opened replaces "
    "skill plugin conditions fail_on_regression verbose quiet help help_all / junit top detail",
    "Limits": "workers",
}
EVERYTHING = "traceview.help_all"  # key of a click context's `meta`: whether help shows every option


def _show_everything(context: click.Context, _option: click.Parameter, given: bool) -> None:
    if given:
        context.meta[EVERYTHING] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


HELP_ALL = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_everything,
    help="Show this message with the options that few need.",
)


class Command(click.Command):
    """A command whose help has its options in groups; those that few need are in --help-all alone."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a section for each group."""
        rows = {
            "help" if "--help" in param.opts else param.name: row  # click's own option has various names
            for param in self.get_params(context)
            if (row := param.get_help_record(context))
        }
        for group, names in GROUPS.items():
            common, _, rare = names.partition("/")
            shown = [*common.split(), *(rare.split() if context.meta.get(EVERYTHING) else ())]
            if group_rows := [rows[name] for name in shown if name in rows]:
                with formatter.section(group):
                    formatter.write_dl(group_rows)


def command(*examples: str, **settings: Any) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator that makes a function a command of its name, with examples in its help."""

    def make(function: Callable[..., None]) -> Command:
        # Click keeps the line ends of a paragraph that begins with a backspace character.
        shown = "".join(f"\n  {line}" for line in examples)
        text = f"{cleandoc(function.__doc__ or '')}\n\n\b\nExamples:{shown}"
        made = click.command(cls=Command, help=text, **settings)(function)
        made.params.append(HELP_ALL)
        return made

    return make


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
        """Suggest a command for a file or a name like it."""
        if args[0] not in COMMANDS:
            self._suggest(ctx, args[0])
        return super().resolve_command(ctx, args)

    def _suggest(self, ctx: click.Context, name: str) -> None:
        from difflib import get_close_matches

        if name.endswith((".sqlite", ".nsys-rep")) or Path(name).is_file():
            ctx.fail(f"{name} is not a command; did you mean: traceview analyze {name}")
        if near := get_close_matches(name, COMMANDS, 1):
            ctx.fail(f"{name} is not a command; did you mean: traceview {near[0]}")

    def invoke(self, ctx: click.Context) -> object:
        """Name the captures in an out-of-memory error."""
        try:
            return super().invoke(ctx)
        except BaseException as error:
            if not is_out_of_memory(error):
                raise
            names = ", ".join(path.name for path in ctx.meta.get(CAPTURES, ())) or "these captures"
            raise ReportError(
                f"{names}: not enough memory; use a machine with more memory, or a shorter capture"
            ) from None


@click.group(
    cls=_LazyCommands,
    epilog="`traceview COMMAND --help` has examples and the options that most need, `--help-all` every option.",
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="traceview")
@click.pass_context
def cli(context: click.Context) -> None:
    """Find where GPU time goes in an Nsight Systems capture, what each loss costs and what to change."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    else:
        Path.cwd()  # FileNotFoundError where the folder was deleted: imports would fail without naming that
