"""The command `python -m instrument.diagnose`: measure the stages, print the table, write the JSON file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from instrument.config.flags import ConfigParser, print_message, run_command, with_dashes
from instrument.diagnosis.measure import ROUNDS, Plan
from instrument.diagnosis.output import check_writable, json_document, write_json
from instrument.diagnosis.own import report_stages
from instrument.diagnosis.stages import StageContext

ABOUT = "Measure the model alone and the pipeline, and report where time is lost and what to capture next."


def command(words: Sequence[str]) -> None:
    """Diagnose the run that the words of a command line describe."""
    parser = ConfigParser("python -m instrument.diagnose", ABOUT)
    text = "Number of timed iterations in each of 5 rounds [10; without a GPU as many as 15 s allow]"
    parser.add_argument("--iterations", metavar="N", type=partial(_number, 1), help=text)
    text = "Number of untimed iterations before each round [5]"
    parser.add_argument("--warm-up", metavar="N", type=partial(_number, 0), help=text)
    parser.add_argument("--json", metavar="PATH", type=Path, help="Write all values to this JSON file.")
    config, given = parser.parsed(words)
    if given.json is not None:
        check_writable(given.json)
    context = StageContext.from_config(config)
    plan = Plan.of_device(context.device, given.iterations, given.warm_up)
    program = ["python", "-m", "instrument.train", *_train_flags(words)]
    report = report_stages(context, plan, print_message, program)
    sys.stdout.write(str(report))
    if given.json is not None:
        environment = _environment(context.device, plan)
        write_json(given.json, json_document(report.stages, report.diagnosis, context.config, environment))


def _number(low: int, text: str) -> int:
    if (number := int(text)) < low:
        raise argparse.ArgumentTypeError(f"{number} is less than {low}")
    return number


def _train_flags(given: Sequence[str]) -> Iterator[str]:
    """Yield the words of this command that the trainer takes too."""
    words = iter(given)
    for word in words:
        name, equals, _value = with_dashes(word).partition("=")
        if name not in ("--iterations", "--warm-up", "--json"):
            yield word
        elif not equals:
            next(words, None)


def main() -> None:
    """Run the command; a user error is one line with exit code 2."""
    run_command(command)


def _environment(device: torch.device, plan: Plan) -> dict[str, str | int | None]:
    return {
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__,
        "iterations": plan.iterations,
        "warm_up": plan.warm_up,
        "rounds": ROUNDS,
    }
