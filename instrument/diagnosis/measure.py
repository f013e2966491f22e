"""Measures the stages in rounds. Each round runs both once, so a change in machine speed affects both alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median

import torch

from instrument.devices import free_memory, synchronize
from instrument.diagnosis.costs import StageResult
from instrument.diagnosis.stages import Compute, Pipeline, Stage, StageContext
from instrument.errors import InstrumentError, LogFunction
from instrument.own import error_line
from instrument.ranges import annotate
from instrument.streams import Event
from instrument.trainer.loop import count_samples
from instrument.trainer.recover import is_out_of_memory

ROUNDS = 5
ITERATIONS, WARM_UP = 10, 5
CPU_SECONDS = 15.0  # for all rounds of a diagnosis without a GPU, whose iterations take a hundred times as long
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


def measure(
    context: StageContext, plan: Plan, log: LogFunction, stages: Sequence[type[Stage]] = (Compute, Pipeline)
) -> list[StageResult]:
    """Run the stages in each of ROUNDS rounds and return their results.

    A stage is opened for each round and closed after it, so the other one holds no memory, threads or workers
    meanwhile.

    Args:
        context: what the stages share.
        plan: number of iterations.
        log: receives one line before each round.
        stages: what is measured.

    Raises:
        InstrumentError: a stage fails.
    """
    # Half of the time of a round is for iterations that are not timed.
    limit = math.inf if plan.seconds is None else plan.seconds / (2 * ROUNDS * len(stages))
    rounds: dict[type[Stage], list[tuple[str, Mapping[str, float | None]]]] = {stage: [] for stage in stages}
    for number in range(1, ROUNDS + 1):
        log(f"round {number} of {ROUNDS}")
        for stage, measured in rounds.items():
            measured.append(_measure_round(stage, context, plan, limit))
            free_memory()
    return [_stage_result(stage.name, measured, context) for stage, measured in rounds.items()]


def _measure_round(
    stage: type[Stage], context: StageContext, plan: Plan, limit: float
) -> tuple[str, Mapping[str, float | None]]:
    """Return the title and the figures of a stage in one round."""
    try:
        with annotate(f"stage {stage.name}"), closing(stage(context)) as run:
            # Use up the batches that workers loaded ahead: they would make the timed iterations faster.
            _iterate(run, plan.warm_up + context.steps_ahead, limit)
            run.begin()
            ms = _round_ms(run, plan.iterations, context.device, limit)
            on_gpu = run.launches_only and context.device.type == "cuda"
            gpu_ms = launched_ahead_ms(run.iterate, context.device) if on_gpu else None
            return run.title, {"ms": ms, "gpu_ms": gpu_ms, **run.figures()}
    except RuntimeError as error:
        reason = error_line(error)
        if is_out_of_memory(error):
            reason = "out of memory; use a smaller --batch or --checkpointing"
        raise InstrumentError(f"stage {stage.name}: {reason}") from error


def _stage_result(
    name: str, rounds: Sequence[tuple[str, Mapping[str, float | None]]], context: StageContext
) -> StageResult:
    values: dict[str, float] = {}
    for key in rounds[0][1]:
        if numbers := [value for _title, figures in rounds if (value := figures[key]) is not None]:
            values[key] = median(numbers)
    samples, _tokens = count_samples(context.resident)
    rounds_ms = tuple(figures["ms"] or 0.0 for _title, figures in rounds)
    return StageResult(name, rounds[0][0], samples * 1000 / values["ms"] if values["ms"] else None, rounds_ms, **values)


def _iterate(run: Stage, iterations: int, limit: float) -> int:
    """Run iterations until there are enough, or `limit` seconds have passed; return their number."""
    end = time.perf_counter() + limit
    for number in range(iterations):
        run.iterate()
        if time.perf_counter() >= end:
            return number + 1
    return iterations


def _round_ms(run: Stage, iterations: int, device: torch.device, limit: float = math.inf) -> float:
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
