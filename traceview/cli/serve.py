"""The `serve` and `mcp` commands: a capture's page on a local HTTP server, and tools for agents."""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from traceview.cli import examples
from traceview.cli.analyze import measure_report
from traceview.cli.options import FILE, OPEN, QUIET, REPORT, analysis_options, reading_options
from traceview.cli.outputs import print_error, print_out, progress
from traceview.errors import RequestError


@click.command()
@REPORT
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="Port.  [default: any free port]")
@OPEN
@analysis_options
@QUIET
@examples(
    "traceview serve report.sqlite --open",
    "traceview serve report.sqlite --port 8000",
)
def serve(report: Path, port: int, opened: bool, quiet: bool, **options: Any) -> None:
    """Analyze REPORT and serve its page to this machine until Ctrl-C.

    The page loads every event at any zoom from the server. The address contains a random token. No file stays behind.
    """
    from traceview.engine.page import page_inputs
    from traceview.serve.page import Server

    with progress(quiet) as step:
        capture = measure_report(report, step, page=True, **options)
        step("make the page", 0.95)
        server = Server(page_inputs(capture), port)
    gc.enable()  # a server runs for days, unlike other commands
    with server:
        print_out(
            f"{server.address}\n" if quiet else f"Serving to this machine only, until Ctrl-C:\n{server.address}\n"
        )
        if opened:
            click.launch(server.address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


@click.command()
@click.argument("captures", nargs=-1, type=FILE)
@click.option("--skill", is_flag=True, help="Print SKILL.md, which teaches an agent how to use the tools, and exit.")
@reading_options
@examples(
    "traceview mcp",
    "traceview mcp /data/runs /data/base.sqlite",
    "traceview mcp --skill > .claude/skills/traceview/SKILL.md",
)
def mcp(captures: tuple[Path, ...], skill: bool) -> None:
    """Serve tools for agents on standard input and output (Model Context Protocol).

    The tools write nothing. They read captures under the working folder, and CAPTURES: files or folders.
    """
    if skill:
        print_out((Path(__file__).parents[1] / "serve" / "SKILL.md").read_text(encoding="utf-8"))
        return
    missing = next((path for path in captures if not path.exists()), None)
    if missing is not None:
        raise RequestError(f"{missing}: no such file or folder")
    try:
        from traceview.serve.agents import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        raise RequestError("`traceview mcp` needs the package mcp: pip install 'traceview[mcp]'") from None
    if sys.stdin.isatty():
        print_error("traceview: waiting for an agent on standard input (Model Context Protocol)")
    gc.enable()  # a server runs for days, unlike other commands
    serve(captures)
