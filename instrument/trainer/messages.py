"""The first and the last lines of a run: what is in effect, and what came out of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from instrument.config.schema import Config
from instrument.config.strategies import STRATEGIES
from instrument.distributed.world import World
from instrument.memory import format_bytes
from instrument.monitor.metrics import LOSS, PHASES, Figures, loader_text
from instrument.monitor.progress import figures_text
from instrument.sync import SyncPolicy
from instrument.trainer.capture import missing_ranges_reason

MEMORY = (
    ("memory_peak_bytes", "{} at most in tensors on the GPU"),
    ("memory_reserved_bytes", "{} reserved there"),
    ("pinned_bytes", "{} pinned"),
    ("host_rss_bytes", "{} on the host"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a run.

    Attributes:
        first: first step of the run.
        done: number of steps done, including those before a resume.
        rank: rank of this process; 0 for a single process.
        losses: losses of the steps from `first` on.
        exit_code: 0; 1 after a non-finite loss; 128 plus the signal that stopped the run.
        figures: metrics of the last steps, at most 1,000 (`instrument.monitor.metrics.figures`).
        steps: number of steps that the configuration asks for.
        checkpoint: the newest checkpoint; None if there is none.
        failure: why the run stopped before its end, in one line; None if it did not fail.
    """

    first: int
    done: int
    rank: int
    losses: list[float]
    exit_code: int
    figures: Figures
    failure: str | None = None
    steps: int = 0
    checkpoint: Path | None = None


def start_lines(config: Config, world: World) -> list[str]:
    """Return a line with the device and strategy in effect, and one for each part that does less than it could.

    Args:
        config: the configuration of the run, with its device.
        world: the processes of the run.
    """
    training = config.training
    device = torch.device(training.device)
    name = f" ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else ""
    every = SyncPolicy.from_text(training.sync, STRATEGIES[training.strategy].sync_interval).every
    wait = "waits only when far ahead" if every is None else f"waits every {'step' if every == 1 else f'{every} steps'}"
    processes = f", {world.size} processes ({'FSDP2' if config.distributed.shard else 'DDP'})" if world.size > 1 else ""
    line = f"device {device}{name}, strategy {training.strategy}, {training.precision}, {wait}{processes}"
    return [line, *_degraded(config, device, world)]


def _degraded(config: Config, device: torch.device, world: World) -> Iterator[str]:
    strategy = STRATEGIES[config.training.strategy]
    if config.training.strategy == "staged":
        yield "strategy staged is experimental; use it where a capture shows that it gains"
    if device.type == "cpu":
        if config.training.strategy != "serial":
            yield f"without a GPU, strategy {config.training.strategy} copies nothing and overlaps nothing"
    elif world.size == 1 and not strategy.splits_batches and config.training.retries:
        yield f"strategy {config.training.strategy} cannot split a batch that does not fit into memory"
    if missing_ranges_reason() is not None:
        yield f"NVTX ranges: {missing_ranges_reason()}"


def end_lines(outcome: Outcome) -> list[str]:
    """Return the summary of a run: losses and speed, parts of a step, memory, the checkpoint and how to go on."""
    lines = [_result(outcome)] if outcome.losses else []
    figures = outcome.figures
    loader = loader_text(figures.get("perf/loader_batches_per_s"), figures.get("perf/loader_empty_fraction"))
    for name, text in (("parts of a step", _fractions(figures)), ("loader", loader), ("memory", _memory(figures))):
        if text:
            lines.append(f"{name}: {text}")
    if outcome.checkpoint is not None:
        lines.append(f"checkpoint: {outcome.checkpoint}")
        goal = "to continue" if outcome.done < outcome.steps else "to train longer, with more --steps or --epochs"
        lines.append(f"{goal}: the same command with --checkpoint-folder {outcome.checkpoint.parent} --resume")
    elif outcome.done < outcome.steps:
        lines.append("no checkpoint was written; with --checkpoint-folder DIR a stopped run can continue")
    return lines


def _result(outcome: Outcome) -> str:
    status = "done" if outcome.exit_code == 0 else "stopped"
    first, last = outcome.losses[0], outcome.losses[-1]
    text = f"{status} at step {outcome.done}: loss {first:.4f} at step {outcome.first}, {last:.4f} at the last"
    speed = figures_text({name: value for name, value in outcome.figures.items() if name != LOSS})
    return f"{text}  {speed}" if speed else text


def _fractions(figures: Figures) -> str:
    """Return the share of each phase in the time of the steps; phases that overlap sum to more than 100%."""
    shares = [(phase, figures.get(f"perf/{phase}_fraction")) for phase in PHASES]
    return ", ".join(f"{phase} {share:.1%}" for phase, share in shares if share is not None)


def _memory(figures: Figures) -> str:
    values = [(form, figures.get(f"perf/{name}")) for name, form in MEMORY]
    return ", ".join(form.format(format_bytes(int(value))) for form, value in values if value is not None)
