"""The `mcp` command: tools for agents."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import click

from traceview.cli import command
from traceview.cli.options import FILE, reading_options
from traceview.cli.outputs import print_error, print_out
from traceview.errors import RequestError


@command(
    "traceview mcp",
    "traceview mcp /data/runs /data/base.sqlite",
    "traceview mcp --skill > .claude/skills/traceview/SKILL.md",
    'gemini extensions install "$(traceview mcp --plugin)"',
)
@click.argument("captures", nargs=-1, type=FILE)
@click.option("--skill", is_flag=True, help="Print SKILL.md, which teaches an agent the tools, and exit.")
@click.option("--plugin", is_flag=True, help="Print the folder of the plugin for agents, and exit.")
@reading_options
def mcp(captures: tuple[Path, ...], skill: bool, plugin: bool) -> None:
    """Serve tools for agents on standard input and output (Model Context Protocol).

    The tools write nothing. They read captures under the working folder, and CAPTURES: files or folders.
    """
    folder = Path(__file__).parents[1] / "mcp" / "plugin"
    if skill or plugin:
        text = (folder / "skills" / "traceview" / "SKILL.md").read_text(encoding="utf-8") if skill else f"{folder}\n"
        print_out(text)
        return
    missing = next((path for path in captures if not path.exists()), None)
    if missing is not None:
        raise RequestError(f"{missing}: no such file or folder")
    try:
        from traceview.mcp.agents import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise RequestError("`traceview mcp` needs the package mcp: pip install 'traceview[mcp]'") from None
    if sys.stdin.isatty():
        print_error("traceview: waiting for an agent on standard input (Model Context Protocol)")
    gc.enable()  # a server runs for days, unlike other commands
    serve(captures)
