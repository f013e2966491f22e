"""Measures the stages in turns: each round runs every stage once, so a machine whose speed drifts slows all alike."""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from instrument.diagnose.ahead import gpu_ms
from instrument.diagnose.power import Readings
from instrument.diagnose.records import Row
from instrument.diagnose.running import Running, Setting
from instrument.diagnose.stages import Stage
from instrument.errors import InstrumentError
from instrument.logging import LogFunction
from instrument.monitor.nvml import Meter, NoMeter
from instrument.ranges import annotate
from instrument.trainer.recover import is_out_of_memory

ROUNDS = 5
NO_GPU = "the run uses no GPU"
NOT_PART = "it is no part of this stage"
FIGURES = ("ms", "samples_per_s", "power_w", "utilisation_percent", "gpu_ms", "data_load_ms", "copy_ms")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of each stage is run.

    Attributes:
        iterations: timed in each round.
        warm_up: iterations before them in each round, which are not timed.
    """

    iterations: int = 10
    warm_up: int = 5


def measure(stages: Sequence[Stage], setting: Setting, plan: Plan, meter: Meter, tell: LogFunction) -> list[Row]:
    """Run all stages in each of ROUNDS rounds and return their rows; a stage that cannot run has the reason in its row.

    A stage is opened for its turn and closed after it: no other stage's memory, threads or workers are there then.

    Args:
        stages: some of STAGES.
        setting: what all stages share.
        plan: how much of each stage is run.
        meter: of the GPU's power and utilisation; read in the last round.
        tell: receives one line before each round.
    """
    results = [_Result(stage) for stage in stages]
    unread = NoMeter("power is read in the last round")
    for number in range(1, ROUNDS + 1):
        tell(f"round {number} of {ROUNDS}: {', '.join(result.stage.name for result in results)}")
        for result in results:
            _take_turn(result, setting, plan, meter if number == ROUNDS else unread)
    return [_row(result, setting) for result in results]


@dataclass(slots=True)
class _Result:
    """What the turns of one stage measured so far, or why it cannot run."""

    stage: Stage
    rounds_ms: list[float] = field(default_factory=list)
    figures: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    power: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failure: str | None = None


def _take_turn(result: _Result, setting: Setting, plan: Plan, meter: Meter) -> None:
    if result.failure is not None:
        return
    try:
        with annotate(f"stage {result.stage.name}"):
            _measure_round(result, setting, plan, meter)
    except InstrumentError as error:
        result.failure = str(error)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        result.failure = "it does not fit the memory: use a smaller batch, or --checkpointing"
    _release(setting.device)  # after the except clauses: an error holds on to the stage's tensors


def _measure_round(result: _Result, setting: Setting, plan: Plan, meter: Meter) -> None:
    with closing(result.stage.open(setting)) as running, Readings(meter) as readings:
        # Batches that workers loaded ahead cost the timed iterations nothing: use them up first.
        for _ in range(plan.warm_up + setting.steps_ahead):
            running.iterate()
        running.begin()
        result.rounds_ms.append(_round_ms(running, plan.iterations, setting.device))
        for name, value in {"gpu_ms": _gpu_ms(running, setting.device), **running.figures()}.items():
            if value is not None:
                result.figures[name].append(value)
        while not readings.enough():
            _round_ms(running, 1, setting.device)
    result.power, result.missing = readings.means()


def _row(result: _Result, setting: Setting) -> Row:
    name, title = result.stage.name, result.stage.title(setting.config)
    if result.failure is not None:
        return Row(name, title, not_measured=dict.fromkeys(FIGURES, result.failure))
    found: dict[str, Any] = {key: median(values) for key, values in result.figures.items()}
    missing = {key: NOT_PART for key in ("gpu_ms", "data_load_ms", "copy_ms") if key not in found}
    if setting.device.type != "cuda":
        missing |= {key: NO_GPU for key in ("gpu_ms", "copy_ms") if key in missing}
    ms = median(result.rounds_ms)
    samples = setting.config.data.batch * setting.config.training.accumulation
    found["samples_per_s"] = samples * 1000 / ms if ms else None
    return Row(
        name, title, ms, tuple(result.rounds_ms), **found, **result.power, not_measured=missing | result.missing
    )  # fmt: skip


def _round_ms(running: Running, iterations: int, device: torch.device) -> float:
    """Return the ms of one iteration in a round; the host waits for the GPU at both ends only."""
    _synchronize(device)
    begun = time.perf_counter()
    for _ in range(iterations):
        running.iterate()
    _synchronize(device)
    return (time.perf_counter() - begun) * 1000 / iterations


def _gpu_ms(running: Running, device: torch.device) -> float | None:
    return gpu_ms(running.iterate, device) if running.launches_only and device.type == "cuda" else None


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
