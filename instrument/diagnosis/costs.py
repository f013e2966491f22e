"""What a diagnosis measures, and how an iteration of the pipeline splits into costs. This module does not import torch.

    pipeline  =  GPU work          gpu_ms of the model alone
              +  launching         ms of the model alone - its gpu_ms
              +  feeding           ms of the pipeline - ms of the model alone

Feeding consists of loading, copying and, as the rest, waiting. A part that overlaps with the compute costs only the
time by which it is longer than the compute. A part that does not overlap costs its complete time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from instrument.config.schema import Config
from instrument.config.strategies import STRATEGIES, Capabilities

Bound = Literal["loader", "copy", "synchronisation", "launch", "compute", "unknown"]


@dataclass(frozen=True, slots=True)
class StageResult:
    """The measurements of one stage, in ms per iteration (the batches of one optimizer step), medians of the rounds.

    A figure is None if the stage or the device does not have it.

    Attributes:
        stage: "compute", the model alone, or "pipeline".
        title: title for the reader.
        samples_per_s: samples per second, computed from `ms`.
        rounds_ms: host time of an iteration in each round.
        ms: host time of an iteration.
        gpu_ms: GPU time if the complete iteration is launched ahead; in the rest of `ms` the GPU is idle.
        loader_ms: time in which the loader makes the batches of an iteration, with its workers, if none of them waits.
        data_load_ms: time the host waited for the loader, mean of the iterations.
        copy_ms: time of the copies to the GPU on their stream, hidden or not, mean of the iterations.
    """

    stage: str
    title: str = ""
    samples_per_s: float | None = None
    rounds_ms: tuple[float, ...] = ()
    ms: float = 0.0
    gpu_ms: float | None = None
    loader_ms: float | None = None
    data_load_ms: float | None = None
    copy_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """What one part adds to an iteration.

    Attributes:
        bound: the part.
        ms: cost per iteration.
        because: the measured values behind it, as text.
        noise_ms: how far the rounds differ in it.
    """

    bound: Bound
    ms: float
    because: str
    noise_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to change.

    Attributes:
        flags: flags to add to `instrument.train`; "" if no flag helps.
        why: one sentence.
    """

    flags: str
    why: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Where a run loses time.

    Attributes:
        bound: the part with the largest cost; "compute" if no cost is large enough, "unknown" if the rounds differ too
            much.
        total_ms: time of an iteration of the pipeline; None if unknown.
        lost_ms: time per iteration that could be saved; None if unknown.
        lost_percent: `lost_ms` as a percentage of `total_ms`.
        because: the measured values behind it, as text.
        remedy: what to change.
        notes: further observations, one sentence each.
        capture: commands that record and analyze the next capture, in order.
    """

    bound: Bound
    total_ms: float | None
    lost_ms: float | None
    lost_percent: float | None
    because: str
    remedy: Remedy
    notes: tuple[str, ...] = ()
    capture: tuple[str, ...] = ()


MIN_COST_FRACTION = 0.05  # share of an iteration; smaller costs are not worth a change


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The results that a diagnosis is based on.

    Attributes:
        config: the configuration of the run.
        compute: the model alone.
        pipeline: the pipeline.
    """

    config: Config
    compute: StageResult
    pipeline: StageResult

    @property
    def strategy(self) -> Capabilities:
        """The capabilities of the run's strategy."""
        return STRATEGIES[self.config.training.strategy]

    @property
    def on_gpu(self) -> bool:
        """Whether the run uses a GPU."""
        return self.config.training.device != "cpu"

    @property
    def replays(self) -> bool:
        """Whether a step is one CUDA graph, so that launching costs nothing."""
        return self.on_gpu and self.strategy.captures_step

    @property
    def gpu_ms(self) -> float:
        """GPU time of an iteration; the complete compute time if it was not measured."""
        return self.compute.ms if self.compute.gpu_ms is None else min(self.compute.gpu_ms, self.compute.ms)

    @property
    def launching_ms(self) -> float:
        """Time in which the GPU waits for the host to launch kernels."""
        return self.compute.ms - self.gpu_ms

    @property
    def computing_ms(self) -> float:
        """Time of the pipeline if feeding cost nothing."""
        return self.gpu_ms if self.replays else self.compute.ms

    @property
    def feeding_ms(self) -> float:
        """Time of the pipeline beyond `computing_ms`."""
        return max(self.pipeline.ms - self.computing_ms, 0.0)

    @property
    def loader_ms(self) -> float:
        """Time of the loader for an iteration; of a loader that is no DataLoader, what the host waits for it."""
        known = (self.pipeline.loader_ms, 0.0 if self.config.data.kept else self.pipeline.data_load_ms)
        return next((ms for ms in known if ms is not None), 0.0)

    @property
    def waits_each_step(self) -> bool:
        """Whether the host waits for the GPU after every step."""
        sync = self.config.training.sync
        return sync in ("every", "1") or (sync == "auto" and self.strategy.sync_interval == 1)

    @property
    def copies_ahead(self) -> bool:
        """Whether the next batch is loaded and copied during the compute."""
        return self.on_gpu and self.strategy.copies_ahead

    @property
    def feeding_noise_ms(self) -> float:
        """How far the rounds differ in `feeding_ms`."""
        return round_spread_ms(self.pipeline) if self.replays else round_spread_ms(self.pipeline, self.compute)

    @property
    def min_cost_ms(self) -> float:
        """The smallest cost to report."""
        return MIN_COST_FRACTION * self.pipeline.ms


def compute_costs(times: StageTimes) -> tuple[Cost, ...]:
    """Return the costs of loading, copying, waiting and launching, the largest first.

    A cost is at most the time of an iteration of the pipeline.
    """
    loading, copying, noise = _loading_ms(times), _copying_ms(times), times.feeding_noise_ms
    waiting = times.feeding_ms - (max(loading, copying) if times.copies_ahead else loading + copying)
    pipeline, when = pipeline_text(times), "during" if times.copies_ahead else "before"
    copies = f"copies take {times.pipeline.copy_ms or 0.0:.2f} ms {when} the compute; {pipeline}"
    launches = (
        f"a step takes {times.compute.ms:.2f} ms, of which the GPU works {times.gpu_ms:.2f} ms; "
        "in the rest it waits for the host to launch kernels"
    )
    launching = 0.0 if times.replays else max(min(times.launching_ms, times.pipeline.ms - times.gpu_ms), 0.0)
    rest = f"{pipeline}, and neither loading nor copying explains the difference"
    costs = (
        Cost("loader", loading, f"the loader takes {times.loader_ms:.2f} ms; {pipeline}", noise),
        Cost("copy", copying, copies, noise),
        Cost("synchronisation", waiting if times.on_gpu else 0.0, rest, noise),
        Cost("launch", launching, launches, round_spread_ms(times.compute)),
    )
    capped = (replace(cost, ms=min(cost.ms, times.pipeline.ms)) for cost in costs)
    return tuple(sorted(capped, key=lambda cost: -cost.ms))


def pipeline_text(times: StageTimes) -> str:
    """Return the times of the pipeline and of its compute as text."""
    return f"the pipeline takes {times.pipeline.ms:.2f} ms, its compute alone {times.compute.ms:.2f} ms"


def round_spread_ms(result: StageResult, other: StageResult | None = None) -> float:
    """Return how far the rounds of a stage differ in ms, without the slowest and the fastest of five or more.

    With another stage, return the spread of their difference in each round, because a slow round affects both stages.
    """
    rounds = list(result.rounds_ms)
    if other is not None:
        rounds = [mine - its for mine, its in zip(result.rounds_ms, other.rounds_ms, strict=False)]
    rounds = sorted(rounds)[1:-1] if len(rounds) >= MIN_ROUNDS_WITHOUT_EXTREMES else rounds
    return max(rounds, default=0.0) - min(rounds, default=0.0)


MIN_ROUNDS_WITHOUT_EXTREMES = 5  # one disturbance of the machine does not decide


def _loading_ms(times: StageTimes) -> float:
    in_turn = times.config.data.workers == 0 and not _loads_during_compute(times)
    return min(times.loader_ms if in_turn else max(times.loader_ms - times.computing_ms, 0.0), times.feeding_ms)


def _loads_during_compute(times: StageTimes) -> bool:
    """Return whether the training process loads during the GPU's compute without slowing it down.

    A loading thread takes the interpreter lock from the launching thread, unless that one waits for the GPU anyway.
    With asynchronous copies the main thread loads while the GPU works, if the GPU does not wait for launches.
    """
    if times.copies_ahead:
        return times.waits_each_step
    return _copies_asynchronously(times) and times.launching_ms <= MIN_COST_FRACTION * times.compute.ms


def _copying_ms(times: StageTimes) -> float:
    copy = times.pipeline.copy_ms or 0.0
    if times.copies_ahead:
        return min(max(copy - times.computing_ms, 0.0), times.feeding_ms)
    if _copies_asynchronously(times):
        copy = max(copy - times.launching_ms, 0.0)  # it runs while the GPU would wait for launches
    return min(copy, times.feeding_ms - _loading_ms(times)) if times.on_gpu else 0.0


def _copies_asynchronously(times: StageTimes) -> bool:
    """Return whether the host continues during a copy on the stream of the compute."""
    return times.on_gpu and times.strategy.pins != "none" and not times.waits_each_step
