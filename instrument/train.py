"""The command `python -m instrument.train`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

try:
    from instrument.config.flags import ConfigParser, print_message, run_command
    from instrument.trainer.messages import end_lines
    from instrument.trainer.training_run import train
except ImportError as failure:
    # Another distribution also has a package `instrument`; its files may lie among these or replace them.
    package = sys.modules["instrument"]
    if "NVTX annotations for PyTorch" in (package.__doc__ or ""):
        text = f"{failure}; `instrument` is traceview's: pip install 'traceview[train]'"
    else:
        remedy = "pip uninstall instrument; pip install --force-reinstall traceview"
        text = f"{failure}; `instrument` is another package, {package.__file__}: {remedy}"
    if __name__ != "__main__":
        raise ImportError(f"instrument.train: {text}", name=failure.name) from failure
    sys.stderr.write(f"error: {text}\n")
    sys.exit(2)


ABOUT = "Train a small model, or a model of your own, with an NVTX range for every phase, to be run under nsys profile."


def command(words: Sequence[str]) -> None:
    """Train as the words of a command line say."""
    config, _given = ConfigParser("python -m instrument.train", ABOUT).parsed(words)
    outcome = train(config, print_message)
    if outcome.rank == 0:
        if outcome.failure is not None:
            print_message(f"error: {outcome.failure}")
        for line in end_lines(outcome):
            print_message(line)
    sys.exit(outcome.exit_code)


def main() -> None:
    """Run the command. An error that the user can fix prints one line and exits with code 2."""
    run_command(command)


if __name__ == "__main__":
    main()
