"""Measures a stage: a warm-up, then rounds by the host's clock, synchronized at both ends alone, and their median."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from instrument.diagnose.ahead import gpu_ms
from instrument.diagnose.power import Readings
from instrument.diagnose.records import Row
from instrument.diagnose.running import Running, Setting
from instrument.diagnose.stages import Stage
from instrument.errors import InstrumentError
from instrument.monitor.nvml import Meter
from instrument.ranges import annotate
from instrument.recover import is_out_of_memory

ROUNDS = 3
NO_GPU = "the run uses no GPU"
NOT_PART = "it is no part of this stage"
FIGURES = ("ms", "samples_per_s", "power_w", "utilisation_percent", "gpu_ms", "data_load_ms", "copy_ms")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of each stage is run.

    Attributes:
        iterations: in each of the rounds.
        warm_up: iterations before the first round, which are not timed.
    """

    iterations: int = 30
    warm_up: int = 5


def measure(stage: Stage, setting: Setting, plan: Plan, meter: Meter) -> Row:
    """Run one stage; where it cannot run, its row holds the reason and no figure.

    Args:
        stage: one of STAGES.
        setting: what all stages share.
        plan: how much of it is run.
        meter: of the GPU's power and utilisation.
    """
    title = stage.title(setting.config)
    try:
        with annotate(f"stage {stage.name}"):
            return Row(stage.name, title, **_figures(stage, setting, plan, meter))
    except InstrumentError as error:
        reason = str(error)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        reason = "it does not fit the memory: use a smaller batch, or --checkpointing"
    finally:
        _release(setting.device)
    _release(setting.device)  # once more: until here the error held on to the stage's tensors
    return Row(stage.name, title, not_measured=dict.fromkeys(FIGURES, reason))


def _figures(stage: Stage, setting: Setting, plan: Plan, meter: Meter) -> dict[str, Any]:
    """Return the attributes of the stage's row."""
    with closing(stage.open(setting)) as running, Readings(meter) as readings:
        for _ in range(plan.warm_up):
            running.iterate()
        running.begin()
        rounds = tuple(_round(running, plan.iterations, setting.device) for _ in range(ROUNDS))
        found: dict[str, float | None] = {"gpu_ms": _gpu_ms(running, setting.device), **running.figures()}
        while not readings.enough():
            _round(running, 1, setting.device)
    means, missing = readings.means()
    reasons = _reasons({name: found.get(name) for name in ("gpu_ms", "data_load_ms", "copy_ms")}, setting.device)
    samples = setting.config.data.batch * setting.config.training.accumulation
    ms = median(rounds)
    per_second = samples * 1000 / ms if ms else None
    return {
        "ms": ms, "rounds_ms": rounds, "samples_per_s": per_second, **found, **means, "not_measured": reasons | missing,
    }  # fmt: skip


def _round(running: Running, iterations: int, device: torch.device) -> float:
    """Return the ms of one iteration in a round."""
    _synchronize(device)
    begun = time.perf_counter()
    for _ in range(iterations):
        running.iterate()
    _synchronize(device)
    return (time.perf_counter() - begun) * 1000 / iterations


def _gpu_ms(running: Running, device: torch.device) -> float | None:
    return gpu_ms(running.iterate, device) if running.launches_only and device.type == "cuda" else None


def _reasons(found: Mapping[str, float | None], device: torch.device) -> dict[str, str]:
    reasons = {name: NOT_PART for name, value in found.items() if value is None}
    if device.type != "cuda":
        reasons |= {name: NO_GPU for name in ("gpu_ms", "copy_ms") if name in reasons}
    return reasons


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
