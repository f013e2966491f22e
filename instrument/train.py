"""`python -m instrument.train`: parse, run, say how it ended."""

from __future__ import annotations

import sys

import click

from instrument.config.flags import ConfiguredCommand, configured
from instrument.config.schema import Config
from instrument.monitor.metrics import LOSS
from instrument.monitor.progress import describe
from instrument.trainer.command_line import run, say
from instrument.trainer.run import Outcome, train


@click.command(cls=ConfiguredCommand)
@configured
def command(config: Config) -> None:
    """Train a small model with every phase named, for `nsys profile python -m instrument.train`."""
    outcome = train(config, say)
    if outcome.rank == 0:
        if outcome.failure is not None:
            say(f"error: {outcome.failure}")
        elif outcome.losses:
            say(summary(outcome))
    sys.exit(outcome.exit_code)


def summary(outcome: Outcome) -> str:
    """Return one line about a run that ended."""
    how = "done" if outcome.exit_code == 0 else "stopped"
    first, last = outcome.losses[0], outcome.losses[-1]
    text = f"{how} at step {outcome.done}: loss {first:.4f} at step {outcome.first}, {last:.4f} at the last"
    speed = describe({name: value for name, value in outcome.figures.items() if name != LOSS})
    return f"{text}  {speed}" if speed else text


def main() -> None:
    """Run the command; a mistake of the user's is one line and exit code 2."""
    run(command)


if __name__ == "__main__":
    main()
