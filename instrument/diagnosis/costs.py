"""What a diagnosis measures, and how an iteration of the pipeline splits into costs. This module does not import torch.

    pipeline  =  GPU work          gpu_ms of the training stage in the precision of the run
              +  launching         ms of that stage - its gpu_ms
              +  feeding           ms of the pipeline - ms of that stage

Feeding consists of loading, copying and, as the rest, waiting. A part that overlaps with the compute costs only the
time by which it is longer than the compute. A part that does not overlap costs its complete time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from instrument.config.schema import Config
from instrument.config.strategies import STRATEGIES, Capabilities

Bound = Literal["loader", "copy", "synchronisation", "launch", "precision", "compute", "unknown"]


@dataclass(frozen=True, slots=True)
class StageResult:
    """The measurements of one stage, in ms per iteration (the batches of one optimizer step). None: not measured.

    Attributes:
        stage: name in `--stages`.
        title: title for the reader.
        ms: host time of an iteration, median of the rounds.
        rounds_ms: host time of an iteration in each round.
        samples_per_s: samples per second, computed from `ms`.
        gpu_ms: GPU time if the complete iteration is launched ahead; in the rest of `ms` the GPU is idle.
        data_load_ms: time the host waited for the loader, mean of the iterations.
        copy_ms: time of the copies to the GPU on their stream, hidden or not, mean of the iterations.
        not_measured: attribute -> why it is None.
    """

    stage: str
    title: str = ""
    ms: float | None = None
    rounds_ms: tuple[float, ...] = ()
    samples_per_s: float | None = None
    gpu_ms: float | None = None
    data_load_ms: float | None = None
    copy_ms: float | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one part adds to an iteration.

    Attributes:
        bound: the part.
        stage: the stage that shows it.
        ms: cost per iteration.
        because: the measured values behind it, as text.
        noise_ms: how far the rounds differ in it.
    """

    bound: Bound
    stage: str
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
        bound: the part with the largest cost; "compute" if no cost is large enough, "unknown" if too few stages were
            measured or the rounds differ too much.
        stage: the stage that shows it; None if unknown.
        total_ms: time of an iteration of the pipeline; None if unknown.
        lost_ms: time per iteration that could be saved; None if unknown.
        lost_percent: `lost_ms` as a percentage of `total_ms`.
        because: the measured values behind it, as text.
        remedy: what to change.
        notes: further observations, one sentence each.
        capture: commands that record and analyze the next capture, in order.
        bare_ms: time of an iteration of the model alone, on batches that are on the device; None if unknown.
        overhead_percent: how much longer an iteration of the pipeline takes than that; None if unknown.
    """

    bound: Bound
    stage: str | None
    total_ms: float | None
    lost_ms: float | None
    lost_percent: float | None
    because: str
    remedy: Remedy
    notes: tuple[str, ...] = ()
    capture: tuple[str, ...] = ()
    bare_ms: float | None = None
    overhead_percent: float | None = None


MIN_COST_FRACTION = 0.05  # share of an iteration; smaller costs are not worth a change


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The measured results that a diagnosis is based on.

    Attributes:
        config: the configuration of the run.
        pipeline: the pipeline stage.
        compute: the training stage in the precision of the run.
        training: the training stage in fp32; None if not measured.
        loader: the loader stage; None if not measured.
        plain: the plain stage; None if not measured.
    """

    config: Config
    pipeline: StageResult
    compute: StageResult
    training: StageResult | None = None
    loader: StageResult | None = None
    plain: StageResult | None = None

    @classmethod
    def from_results(cls, results: Iterable[StageResult], config: Config) -> StageTimes | None:
        """Return the times of a diagnosis; None if the pipeline or its compute was not measured."""
        measured = {result.stage: result for result in results if result.ms is not None}
        compute = measured.get("training" if config.training.precision == "fp32" else "mixed")
        pipeline = measured.get("pipeline")
        if compute is None or pipeline is None:
            return None
        others: Mapping[str, StageResult | None] = {
            name: measured.get(name) for name in ("training", "loader", "plain")
        }
        return cls(config, pipeline, compute, **others)

    @property
    def total_ms(self) -> float:
        """Time of an iteration of the pipeline."""
        return measured_ms(self.pipeline)

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
        compute = measured_ms(self.compute)
        return compute if self.compute.gpu_ms is None else min(self.compute.gpu_ms, compute)

    @property
    def launching_ms(self) -> float:
        """Time in which the GPU waits for the host to launch kernels."""
        return measured_ms(self.compute) - self.gpu_ms

    @property
    def computing_ms(self) -> float:
        """Time of the pipeline if feeding cost nothing."""
        return self.gpu_ms if self.replays else measured_ms(self.compute)

    @property
    def feeding_ms(self) -> float:
        """Time of the pipeline beyond `computing_ms`."""
        return max(self.total_ms - self.computing_ms, 0.0)

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
        return MIN_COST_FRACTION * self.total_ms


def compute_costs(times: StageTimes) -> tuple[Cost, ...]:
    """Return the costs of loading, copying, waiting, launching and mixed precision, the largest first.

    A cost is at most the time of an iteration of the pipeline.
    """
    loading, copying = _loading_ms(times), _copying_ms(times)
    waiting = times.feeding_ms - (max(loading, copying) if times.copies_ahead else loading + copying)
    waiting = waiting if times.on_gpu else 0.0
    pipeline = pipeline_text(times)
    loader = f"the loader alone takes {_ms_text(times.loader, 'ms')}; {pipeline}"
    copies = f"copies take {_copy_text(times)}; {pipeline}"
    rest = f"{pipeline}, and neither loading nor copying explains the difference"
    noise = times.feeding_noise_ms
    copy_stage = "pipeline" if times.copies_ahead or times.plain is None else "plain"
    costs = (
        Cost("loader", "loader", loading, loader, noise),
        Cost("copy", copy_stage, copying, copies, noise),
        Cost("synchronisation", "pipeline", waiting, rest, noise),
        _launch_cost(times),
        _precision_cost(times),
    )
    capped = (replace(cost, ms=min(cost.ms, times.total_ms)) for cost in costs)
    return tuple(sorted(capped, key=lambda cost: -cost.ms))


def pipeline_text(times: StageTimes) -> str:
    """Return the times of the pipeline and of its compute as text."""
    return f"the pipeline takes {times.total_ms:.2f} ms, its compute alone {measured_ms(times.compute):.2f} ms"


def measured_ms(result: StageResult) -> float:
    """Return the time of a stage that was measured."""
    assert result.ms is not None
    return result.ms


def round_spread_ms(result: StageResult, other: StageResult | None = None) -> float:
    """Return the difference in ms between the slowest and the fastest round of a stage.

    With another stage, return the spread of their difference in each round, because a slow round affects both stages.
    """
    rounds = list(result.rounds_ms)
    if other is not None:
        rounds = [mine - its for mine, its in zip(result.rounds_ms, other.rounds_ms, strict=False)]
    return max(rounds, default=0.0) - min(rounds, default=0.0)


def _loading_ms(times: StageTimes) -> float:
    loader = 0.0 if times.loader is None else measured_ms(times.loader)
    in_turn = times.config.data.workers == 0 and not _loads_during_compute(times)
    return min(loader if in_turn else max(loader - times.computing_ms, 0.0), times.feeding_ms)


def _loads_during_compute(times: StageTimes) -> bool:
    """Return whether the training process loads during the GPU's compute without slowing it down.

    A loading thread takes the interpreter lock from the launching thread, unless that one waits for the GPU anyway.
    With asynchronous copies the main thread loads while the GPU works, if the GPU does not wait for launches.
    """
    if times.copies_ahead:
        return times.waits_each_step
    return _copies_asynchronously(times) and times.launching_ms <= MIN_COST_FRACTION * measured_ms(times.compute)


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


def _copy_text(times: StageTimes) -> str:
    where = "during the compute" if times.copies_ahead else "before the compute"
    return f"{_ms_text(times.pipeline, 'copy_ms')} {where}"


def _launch_cost(times: StageTimes) -> Cost:
    lost = 0.0 if times.replays else max(min(times.launching_ms, times.total_ms - times.gpu_ms), 0.0)
    because = (
        f"a step takes {measured_ms(times.compute):.2f} ms, of which the GPU works {times.gpu_ms:.2f} ms; "
        "in the rest it waits for the host to launch kernels"
    )
    return Cost("launch", times.compute.stage, lost, because, round_spread_ms(times.compute))


def _precision_cost(times: StageTimes) -> Cost:
    precision = times.config.training.precision
    if times.training is None or precision == "fp32":
        return Cost("precision", times.compute.stage, 0.0, "")
    full, mixed = measured_ms(times.training), measured_ms(times.compute)
    because = f"a step takes {mixed:.2f} ms in {precision} and {full:.2f} ms in fp32"
    noise = round_spread_ms(times.compute, times.training)
    return Cost("precision", times.compute.stage, max(mixed - full, 0.0), because, noise)


def _ms_text(result: StageResult | None, name: str) -> str:
    value = None if result is None else getattr(result, name)
    return "an unknown time" if value is None else f"{value:.2f} ms"
