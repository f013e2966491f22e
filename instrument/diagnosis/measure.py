"""Measures the stages in rounds. Each round runs every stage once, so a change in machine speed affects all alike."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from instrument.devices import free_memory, synchronize
from instrument.diagnosis.costs import StageResult
from instrument.diagnosis.stages import Stage, StageContext, StageRun
from instrument.errors import InstrumentError, LogFunction
from instrument.own import error_line
from instrument.ranges import annotate
from instrument.streams import Event
from instrument.trainer.loop import count_samples
from instrument.trainer.recover import is_out_of_memory

ROUNDS = 5
ITERATIONS, WARM_UP = 10, 5
CPU_SECONDS = 15.0  # for all rounds of a diagnosis without a GPU, whose iterations take a hundred times as long
NO_GPU = "the run uses no GPU"
NOT_IN_STAGE = "this stage does not include it"
FIGURES = ("ms", "samples_per_s", "gpu_ms", "data_load_ms", "copy_ms")
MAX_SLEEP_MS = 500.0
SLEEP_CYCLES_PER_MS = 2_000_000  # at the clock rate of the fastest GPUs; slower GPUs sleep longer


@dataclass(frozen=True, slots=True)
class Plan:
    """How many iterations of each stage are run.

    Attributes:
        iterations: timed iterations in each round.
        warm_up: untimed iterations before them in each round.
        seconds: time after which the timed and the untimed iterations of all rounds end, except the first one of each
            round; None for no limit.
    """

    iterations: int = ITERATIONS
    warm_up: int = WARM_UP
    seconds: float | None = None

    @classmethod
    def of_device(cls, device: torch.device, iterations: int | None, warm_up: int | None) -> Plan:
        """Return the plan with these numbers; on a CPU, numbers that are not given have a limit of time."""
        seconds = CPU_SECONDS if device.type != "cuda" and iterations is None else None
        return cls(iterations or ITERATIONS, WARM_UP if warm_up is None else warm_up, seconds)


def measure(stages: Sequence[Stage], context: StageContext, plan: Plan, log: LogFunction) -> list[StageResult]:
    """Run all stages in each of ROUNDS rounds and return their results. A failed stage has the reason in its result.

    A stage is opened for each round and closed after it, so no other stage holds memory, threads or workers meanwhile.

    Args:
        stages: some of STAGES.
        context: what all stages share.
        plan: number of iterations.
        log: receives one line before each round.
    """
    measurements = [_Measurement(stage) for stage in stages]
    # Half of the time of a round is for iterations that are not timed.
    limit = math.inf if plan.seconds is None else plan.seconds / (2 * ROUNDS * len(stages))
    for number in range(1, ROUNDS + 1):
        log(f"round {number} of {ROUNDS}: {', '.join(measurement.stage.name for measurement in measurements)}")
        for measurement in measurements:
            _run_stage(measurement, context, plan, limit)
    return [_stage_result(measurement, context) for measurement in measurements]


@dataclass(slots=True)
class _Measurement:
    """The measurements of one stage so far, or why it cannot run."""

    stage: Stage
    rounds_ms: list[float] = field(default_factory=list)
    figures: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failure: str | None = None


def _run_stage(measurement: _Measurement, context: StageContext, plan: Plan, limit: float) -> None:
    if measurement.failure is not None:
        return
    try:
        with annotate(f"stage {measurement.stage.name}"):
            _measure_round(measurement, context, plan, limit)
    except InstrumentError as error:
        measurement.failure = str(error)
    except RuntimeError as error:
        out_of_memory = "out of memory; use a smaller --batch or --checkpointing"
        measurement.failure = out_of_memory if is_out_of_memory(error) else error_line(error)
    free_memory()  # after the except clauses, because an error keeps the stage's tensors alive


def _measure_round(measurement: _Measurement, context: StageContext, plan: Plan, limit: float) -> None:
    with closing(measurement.stage.open(context)) as run:
        # Use up the batches that workers loaded ahead: they would make the timed iterations faster.
        _iterate(run, plan.warm_up + context.steps_ahead, limit)
        run.begin()
        measurement.rounds_ms.append(_round_ms(run, plan.iterations, context.device, limit))
        on_gpu = run.launches_only and context.device.type == "cuda"
        gpu_ms = launched_ahead_ms(run.iterate, context.device) if on_gpu else None
        for name, value in {"gpu_ms": gpu_ms, **run.figures()}.items():
            if value is not None:
                measurement.figures[name].append(value)


def _stage_result(measurement: _Measurement, context: StageContext) -> StageResult:
    name, title = measurement.stage.name, measurement.stage.title(context.config)
    if measurement.failure is not None:
        return StageResult(name, title, not_measured=dict.fromkeys(FIGURES, measurement.failure))
    values: dict[str, Any] = {key: median(numbers) for key, numbers in measurement.figures.items()}
    missing = {key: NOT_IN_STAGE for key in ("gpu_ms", "data_load_ms", "copy_ms") if key not in values}
    if context.device.type != "cuda":
        missing |= {key: NO_GPU for key in ("gpu_ms", "copy_ms") if key in missing}
    ms = median(measurement.rounds_ms)
    samples, _tokens = count_samples(context.resident)
    values["samples_per_s"] = samples * 1000 / ms if ms else None
    return StageResult(name, title, ms, tuple(measurement.rounds_ms), **values, not_measured=missing)


def _iterate(run: StageRun, iterations: int, limit: float) -> int:
    """Run iterations until there are enough, or `limit` seconds have passed; return their number."""
    end = time.perf_counter() + limit
    for number in range(iterations):
        run.iterate()
        if time.perf_counter() >= end:
            return number + 1
    return iterations


def _round_ms(run: StageRun, iterations: int, device: torch.device, limit: float = math.inf) -> float:
    """Return the time of one iteration in ms; the host waits for the GPU only before and after the round."""
    synchronize(device)
    start = time.perf_counter()
    done = _iterate(run, iterations, limit)
    synchronize(device)
    return (time.perf_counter() - start) * 1000 / done


def launched_ahead_ms(iterate: Callable[[], None], device: torch.device) -> float:
    """Return the GPU time in ms of one iteration that the host launches while the GPU is busy: without idle gaps.

    A GPU queues about one thousand launches. An iteration with more launches has gaps after them, so its time is too
    long, never too short.

    Args:
        iterate: launches one iteration without waiting.
        device: a CUDA device.
    """
    torch.cuda.synchronize(device)
    begun = time.perf_counter()
    iterate()
    launch_ms = (time.perf_counter() - begun) * 1000
    torch.cuda.synchronize(device)
    start, end = (Event(device, timing=True) for _ in range(2))
    torch.cuda._sleep(int(min(2 * launch_ms, MAX_SLEEP_MS) * SLEEP_CYCLES_PER_MS))  # type: ignore[no-untyped-call]
    start.record()
    iterate()
    end.record()
    torch.cuda.synchronize(device)
    return end.milliseconds_since(start)
