"""What an iteration of the pipeline consists of, by what one stage takes more than another. No torch.

    pipeline  =  work of the GPU          gpu_ms of the training stage in the run's precision
              +  launching it             that stage's ms without its gpu_ms
              +  feeding it               the pipeline's ms without that stage's ms

Feeding is the loader, the copies, and what is left of it: waiting. What runs beside the compute costs what it takes
more than the compute; what runs in turn with it costs all that it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from instrument.config.schema import Config
from instrument.diagnose.records import Cost, Row
from instrument.strategies import strategy_class
from instrument.strategies.base import Strategy

SMALL = 0.05  # of an iteration: less is not worth a change


@dataclass(frozen=True, slots=True)
class Times:
    """The rows that a verdict rests on, all of them measured.

    Attributes:
        config: the run's.
        pipeline: its own way.
        compute: the training stage in its precision.
        training: the one in fp32; None where it was not measured.
        loader: the loader alone; None where it was not measured.
        plain: the naive way; None where it was not measured.
    """

    config: Config
    pipeline: Row
    compute: Row
    training: Row | None = None
    loader: Row | None = None
    plain: Row | None = None

    @classmethod
    def of(cls, rows: Iterable[Row], config: Config) -> Times | None:
        """Return the times of a diagnosis; None where the pipeline or its compute was not measured."""
        measured = {row.stage: row for row in rows if row.ms is not None}
        compute = measured.get("training" if config.training.precision == "fp32" else "mixed")
        pipeline = measured.get("pipeline")
        if compute is None or pipeline is None:
            return None
        others: Mapping[str, Row | None] = {name: measured.get(name) for name in ("training", "loader", "plain")}
        return cls(config, pipeline, compute, **others)

    @property
    def total_ms(self) -> float:
        """An iteration of the pipeline."""
        return ms(self.pipeline)

    @property
    def strategy(self) -> type[Strategy]:
        """The class of the run's strategy, for its capabilities."""
        return strategy_class(self.config.training.strategy)

    @property
    def on_gpu(self) -> bool:
        """Whether there is something to copy to, and to launch on."""
        return self.config.training.device != "cpu"

    @property
    def replays(self) -> bool:
        """Whether the pipeline launches a step as one graph, so that launching is none of its costs."""
        return self.on_gpu and self.strategy.captures_step

    @property
    def gpu_ms(self) -> float:
        """What the GPU needs for an iteration; all of the compute's time where that is not known."""
        return ms(self.compute) if self.compute.gpu_ms is None else min(self.compute.gpu_ms, ms(self.compute))

    @property
    def launching_ms(self) -> float:
        """What the compute alone takes more than that: the GPU waits for the host to launch."""
        return ms(self.compute) - self.gpu_ms

    @property
    def computing_ms(self) -> float:
        """What the pipeline would take if it were fed for nothing."""
        return self.gpu_ms if self.replays else ms(self.compute)

    @property
    def feeding_ms(self) -> float:
        """What the pipeline takes more than that."""
        return max(self.total_ms - self.computing_ms, 0.0)

    @property
    def waits_each_step(self) -> bool:
        """Whether the host waits for the GPU after every step."""
        sync = self.config.training.sync
        return sync in ("every", "1") or (sync == "auto" and self.strategy.sync_interval == 1)

    @property
    def copies_ahead(self) -> bool:
        """Whether the next batch is loaded and copied while one computes."""
        return self.on_gpu and self.strategy.copies_ahead

    @property
    def feeding_noise_ms(self) -> float:
        """How far the rounds disagree about `feeding_ms`."""
        return apart(self.pipeline) if self.replays else apart(self.pipeline, self.compute)

    @property
    def least_ms(self) -> float:
        """The smallest cost that is worth naming."""
        return SMALL * self.total_ms


def costs(times: Times) -> tuple[Cost, ...]:
    """Return what loading, copying, waiting, launching and mixed precision add to an iteration, the largest first.

    A cost is never more than an iteration of the pipeline.
    """
    loading, copying = _loading(times), _copying(times)
    waiting = times.feeding_ms - (max(loading, copying) if times.copies_ahead else loading + copying)
    pipeline = f"the pipeline takes {times.total_ms:.2f} ms, its compute alone {ms(times.compute):.2f}"
    noise = times.feeding_noise_ms
    found = (
        Cost("loader", "loader", loading, f"the loader alone takes {_known(times.loader, 'ms')}; {pipeline}", noise),
        Cost("copy", _copying_stage(times), copying, f"copies take {_copy_in_words(times)}; {pipeline}", noise),
        Cost("synchronisation", "pipeline", waiting, f"{pipeline}, and neither loader nor copies explain it", noise),
        _launch(times),
        _precision(times),
    )
    capped = (replace(cost, ms=min(cost.ms, times.total_ms)) for cost in found)
    return tuple(sorted(capped, key=lambda cost: -cost.ms))


def ms(row: Row) -> float:
    """Return the time of a row that was measured."""
    assert row.ms is not None
    return row.ms


def apart(row: Row, other: Row | None = None) -> float:
    """Return the ms between a row's fastest and slowest round.

    With another row, the ms between the smallest and the largest difference of the two rows in a round: what slows a
    whole round slows both.
    """
    rounds = list(row.rounds_ms)
    if other is not None:
        rounds = [mine - its for mine, its in zip(row.rounds_ms, other.rounds_ms, strict=False)]
    return max(rounds, default=0.0) - min(rounds, default=0.0)


def _loading(times: Times) -> float:
    alone = 0.0 if times.loader is None else ms(times.loader)
    in_turn = times.config.data.workers == 0 and not _loads_beside(times)
    return min(alone if in_turn else max(alone - times.computing_ms, 0.0), times.feeding_ms)


def _loads_beside(times: Times) -> bool:
    """Whether the training process itself loads while the GPU computes, and is not slower for it.

    A thread that loads takes the interpreter from the one that launches, unless that one waits for the GPU anyway. A
    host that copies without being held loads while the GPU works, where it is not the GPU that waits for launches.
    """
    if times.copies_ahead:
        return times.waits_each_step
    return _issues_copies(times) and times.launching_ms <= SMALL * ms(times.compute)


def _copying(times: Times) -> float:
    copy = times.pipeline.copy_ms or 0.0
    if times.copies_ahead:
        return min(max(copy - times.computing_ms, 0.0), times.feeding_ms)
    if _issues_copies(times):
        copy = max(copy - times.launching_ms, 0.0)  # it runs while the GPU would wait for launches
    return min(copy, times.feeding_ms - _loading(times)) if times.on_gpu else 0.0


def _issues_copies(times: Times) -> bool:
    """Whether the host goes on while a copy runs, though on the stream of the compute."""
    return times.on_gpu and times.strategy.pins != "none" and not times.waits_each_step


def _copying_stage(times: Times) -> str:
    return "pipeline" if times.copies_ahead or times.plain is None else "plain"


def _copy_in_words(times: Times) -> str:
    where = "beside the compute" if times.copies_ahead else "in turn with the compute"
    return f"{_known(times.pipeline, 'copy_ms')} {where}"


def _launch(times: Times) -> Cost:
    lost = 0.0 if times.replays else times.launching_ms
    because = (
        f"a step takes {ms(times.compute):.2f} ms, and the GPU needs {times.gpu_ms:.2f} of them where it was all "
        "launched ahead: for the rest it waits for the host to launch its next kernel"
    )
    return Cost("launch", times.compute.stage, lost, because, apart(times.compute))


def _precision(times: Times) -> Cost:
    precision = times.config.training.precision
    if times.training is None or precision == "fp32":
        return Cost("precision", times.compute.stage, 0.0, "")
    alone, mixed = ms(times.training), ms(times.compute)
    because = f"a step takes {mixed:.2f} ms in {precision} and {alone:.2f} in fp32"
    noise = apart(times.compute, times.training)
    return Cost("precision", times.compute.stage, max(mixed - alone, 0.0), because, noise)


def _known(row: Row | None, name: str) -> str:
    value = None if row is None else getattr(row, name)
    return "an unknown time" if value is None else f"{value:.2f} ms"
