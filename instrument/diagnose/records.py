"""What the stages measured, and what follows from it; no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Bound = Literal["loader", "copy", "synchronisation", "launch", "precision", "compute", "unknown"]


@dataclass(frozen=True, slots=True)
class Row:
    """One stage; None is not measured. Times are ms per iteration, which is one optimizer step's batches.

    Attributes:
        stage: its name in `--stages`.
        title: what it is, for a reader.
        ms: host time of an iteration, the median of the rounds.
        rounds_ms: of each round.
        samples_per_s: that `ms` gives.
        power_w: mean over the stage, its first second left out, because NVML averages over one.
        utilisation_percent: share of time in which any kernel ran, as NVML says it; the same mean.
        gpu_ms: time that the GPU needs where all of an iteration was launched ahead; the rest of `ms` it waits.
        data_load_ms: time that the host waited for the loader, mean over the iterations.
        copy_ms: time of the copies to the GPU on their stream, hidden or not, mean over the iterations.
        not_measured: attribute -> why it is None.
    """

    stage: str
    title: str = ""
    ms: float | None = None
    rounds_ms: tuple[float, ...] = ()
    samples_per_s: float | None = None
    power_w: float | None = None
    utilisation_percent: float | None = None
    gpu_ms: float | None = None
    data_load_ms: float | None = None
    copy_ms: float | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one thing adds to an iteration.

    Attributes:
        bound: what.
        stage: the stage that shows it.
        ms: how much, per iteration.
        because: the measured figures that say so, in words.
        noise_ms: how far the rounds disagree about it.
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
        flags: of `instrument.train`, ready to be added; "" where no flag of it helps.
        why: one sentence.
    """

    flags: str
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where time is lost.

    Attributes:
        bound: what the run waits for most; "compute" where nothing worth naming is lost, "unknown" where too few
            stages were measured, or where the rounds disagree more than the difference.
        stage: the stage that shows it; None where unknown.
        total_ms: an iteration of the whole pipeline; None where unknown.
        lost_ms: what of it would be saved; 0 where nothing is lost, None where unknown.
        lost_percent: `lost_ms` of `total_ms`.
        because: the measured figures that say so.
        remedy: what to change.
        notes: what else a reader should know, a sentence each.
        capture: commands, in their order, that record and analyse what to look at next.
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
