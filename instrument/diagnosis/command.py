"""The command `python -m instrument.diagnose`: measure the stages, print the table, write the JSON file."""

from __future__ import annotations

from pathlib import Path

import click
import torch

from instrument.config.flags import ConfigCommand, config_options, print_message, run_command
from instrument.config.schema import Config
from instrument.diagnosis.measure import ROUNDS, Plan
from instrument.diagnosis.output import check_writable, json_document, write_json
from instrument.diagnosis.own import report_stages
from instrument.diagnosis.stages import STAGES, StageContext, select_stages


@click.command(cls=ConfigCommand)
@click.option(
    "--iterations",
    metavar="N",
    type=click.IntRange(min=1),
    help="Number of timed iterations in each of 5 rounds [10; without a GPU as many as 15 s allow]",
)
@click.option(
    "--warm-up", metavar="N", type=click.IntRange(min=0), help="Number of untimed iterations before each round [5]"
)
@click.option(
    "--stages", metavar="A,B,...", help=f"Measure only these stages: {', '.join(stage.name for stage in STAGES)} [all]"
)
@click.option(
    "--json", "json_path", metavar="PATH", type=click.Path(path_type=Path), help="Write all values to this JSON file."
)
@config_options
def command(
    config: Config, iterations: int | None, warm_up: int | None, stages: str | None, json_path: Path | None
) -> None:
    """Measure the parts of a training run, and report where time is lost and what to capture next."""
    selected = select_stages(stages)
    if json_path is not None:
        check_writable(json_path)
    context = StageContext.from_config(config)
    plan = Plan.of_device(context.device, iterations, warm_up)
    report = report_stages(context, selected, plan, print_message)
    click.echo(report, nl=False)
    if json_path is not None:
        environment = _environment(context.device, plan)
        write_json(json_path, json_document(report.stages, report.diagnosis, context.config, environment))


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
