"""The command `python -m instrument.train`."""

from __future__ import annotations

import sys

import click

from instrument.config.flags import ConfigCommand, config_options, print_message, run_command
from instrument.config.schema import Config
from instrument.monitor.metrics import LOSS
from instrument.monitor.progress import figures_text
from instrument.trainer.training_run import Outcome, train


@click.command(cls=ConfigCommand)
@config_options
def command(config: Config) -> None:
    """Train a small model with an NVTX range for every phase, to be run under nsys profile."""
    outcome = train(config, print_message)
    if outcome.rank == 0:
        if outcome.failure is not None:
            print_message(f"error: {outcome.failure}")
        elif outcome.losses:
            print_message(summary(outcome))
    sys.exit(outcome.exit_code)


def summary(outcome: Outcome) -> str:
    """Return a one-line summary of a run."""
    status = "done" if outcome.exit_code == 0 else "stopped"
    first, last = outcome.losses[0], outcome.losses[-1]
    text = f"{status} at step {outcome.done}: loss {first:.4f} at step {outcome.first}, {last:.4f} at the last"
    speed = figures_text({name: value for name, value in outcome.figures.items() if name != LOSS})
    return f"{text}  {speed}" if speed else text


def main() -> None:
    """Run the command. An error that the user can fix prints one line and exits with code 2."""
    run_command(command)


if __name__ == "__main__":
    main()
