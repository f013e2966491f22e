"""The command: parse, measure stage after stage, print the table, write the JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import torch

from instrument.config.flags import ConfiguredCommand, configured
from instrument.config.schema import Config
from instrument.diagnose.measure import ROUNDS, Plan, measure
from instrument.diagnose.records import Row
from instrument.diagnose.running import Setting
from instrument.diagnose.stages import STAGES, Stage, chosen
from instrument.diagnose.table import table
from instrument.diagnose.verdict import verdict
from instrument.diagnose.written import check_writable, contents, write
from instrument.logging import LogFunction
from instrument.monitor.nvml import device_uuid, open_meter
from instrument.trainer.command_line import run, say


@click.command(cls=ConfiguredCommand)
@click.option(
    "--iterations", default=10, metavar="N", type=click.IntRange(min=1), help="Timed in each of 5 rounds [10]"
)
@click.option("--warm-up", default=5, metavar="N", type=click.IntRange(min=0), help="Untimed, before each round [5]")
@click.option("--stages", metavar="A,B,...", help=f"Of {', '.join(stage.name for stage in STAGES)} [all]")
@click.option("--json", "json_path", metavar="PATH", type=click.Path(path_type=Path), help="Write all figures there.")
@configured
def command(config: Config, iterations: int, warm_up: int, stages: str | None, json_path: Path | None) -> None:
    """Run the parts of a training run in turns, and say where its time is lost and what to capture next."""
    wanted = chosen(stages)
    if json_path is not None:
        check_writable(json_path)
    plan = Plan(iterations, warm_up)
    setting = Setting.of(config, steps=max(config.training.steps, ROUNDS * iterations + warm_up))
    rows = diagnose(setting, wanted, plan, say)
    found = verdict(rows, setting.config)
    click.echo(table(rows, found), nl=False)
    if json_path is not None:
        write(json_path, contents(rows, found, setting.config, _about(setting.device, plan)))


def diagnose(setting: Setting, stages: Sequence[Stage], plan: Plan, tell: LogFunction) -> list[Row]:
    """Measure the stages in turns; `tell` receives a line before each round."""
    meter = open_meter(device_uuid(setting.device.index if setting.device.type == "cuda" else None))
    try:
        return measure(stages, setting, plan, meter, tell)
    finally:
        meter.close()


def main() -> None:
    """Run the command; a mistake of the user's is one line and exit code 2."""
    run(command)


def _about(device: torch.device, plan: Plan) -> dict[str, str | int | None]:
    return {
        "device": str(device),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__,
        "iterations": plan.iterations,
        "warm_up": plan.warm_up,
        "rounds": ROUNDS,
    }
