"""What every command of the package does alike: one line to the user, and how a mistake ends."""

from __future__ import annotations

import sys

import click

from instrument.errors import InstrumentError


def say(text: str) -> None:
    """Tell the user one line; standard output is left to those who ask for something."""
    click.echo(f"instrument: {text}", err=True)


def run(command: click.Command) -> None:
    """Run a command; a mistake of the user's is one line and exit code 2."""
    try:
        command(standalone_mode=False)
    except InstrumentError as error:
        say(f"error: {error}")
        sys.exit(2)
    except click.exceptions.Exit as end:  # --help
        sys.exit(end.exit_code)
    except click.Abort:
        sys.exit(130)
