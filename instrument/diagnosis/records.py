"""The results of the stages and the diagnosis. This module does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Bound = Literal["loader", "copy", "synchronisation", "launch", "precision", "module", "compute", "unknown"]


@dataclass(frozen=True, slots=True)
class StageResult:
    """The measurements of one stage, in ms per iteration (the batches of one optimizer step). None: not measured.

    Attributes:
        stage: name in `--stages`.
        title: title for the reader.
        ms: host time of an iteration, median of the rounds.
        rounds_ms: host time of an iteration in each round.
        samples_per_s: samples per second, computed from `ms`.
        power_w: mean power draw, without the first second, because NVML averages over one second.
        utilisation_percent: percentage of time in which any kernel ran, from NVML; mean as for `power_w`.
        gpu_ms: GPU time if the complete iteration is launched ahead; in the rest of `ms` the GPU is idle.
        data_load_ms: time the host waited for the loader, mean of the iterations.
        copy_ms: time of the copies to the GPU on their stream, hidden or not, mean of the iterations.
        loop: for a stage that leaves out a part of the model: the loop in that part, as text; "" for none.
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
    loop: str = ""
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
