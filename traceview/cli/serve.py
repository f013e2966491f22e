"""The `serve` command: a capture's page on a local HTTP server."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from traceview.cli import examples
from traceview.cli.analyze import measure_report
from traceview.cli.options import OPEN, QUIET, REPORT, analysis_options
from traceview.cli.outputs import print_out, progress


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
