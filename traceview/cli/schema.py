"""The `schema` command: the JSON Schema of what a command writes with --json."""

from __future__ import annotations

import click

from traceview.cli import examples
from traceview.cli.outputs import print_out

DOCUMENTS = (
    *("analyze", "baseline", "calibrate", "compare", "doctor", "export", "fleet", "info", "optimize", "record"),
    *("redact", "rules", "whatif"),
)


@click.command()
@click.argument("command", metavar="COMMAND", type=click.Choice(DOCUMENTS))
@examples("traceview schema analyze", "traceview schema whatif > whatif.schema.json")
def schema(command: str) -> None:
    """Print the JSON Schema of what COMMAND writes with --json."""
    from traceview.cli.schemas import SCHEMAS
    from traceview.report.json import indented_text

    print_out(indented_text(SCHEMAS[command]()))
