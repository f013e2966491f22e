"""What a step took, as a record, and the perf/* figures that follow from one or from many; no torch.

    perf/forward_ms, backward_ms, optimizer_ms, data_load_ms, copy_ms, step_ms        median over the steps
    perf/samples_per_s, tokens_per_s, flops_per_s      what the steps did / what they took
    perf/mfu                                           flops_per_s / the GPU's peak
    perf/forward_fraction ... copy_fraction            what they took / what the steps took; overlapped, they exceed 1
    perf/memory_allocated_bytes, memory_peak_bytes     the last, and the largest
    perf/power_w, utilisation_percent                  median over the readings

A figure that was not measured is None, never 0, and is left out of every median and sum; `reasons` says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

Number = float | int
Figures = dict[str, float | int | None]

LOSS = "loss"
PHASES = ("forward", "backward", "optimizer", "data_load", "copy")
EPOCH = "epoch/"


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One optimizer step of one GPU, with all its micro-batches; None is not measured.

    Attributes:
        step: counted from 0.
        loss: mean over the step's micro-batches.
        forward_ms: GPU time of the forward passes; so for backward and optimizer.
        data_load_ms: time that the host waited for the loader.
        copy_ms: time of the copies to the GPU on their stream, whether hidden or not.
        step_ms: from this step's start to the next one's.
        samples: samples in the step.
        tokens: positions in the step, where samples are sequences.
        flops: floating-point operations of the step.
        memory_allocated_bytes: allocated by tensors at the step's end.
        memory_peak_bytes: the most ever allocated since the run's start.
        power_w: what the GPU draws.
        utilisation_percent: share of time in which any kernel ran, as NVML says it.
        not_measured: attribute -> why it is None.
    """

    step: int
    loss: float | None = None
    forward_ms: float | None = None
    backward_ms: float | None = None
    optimizer_ms: float | None = None
    data_load_ms: float | None = None
    copy_ms: float | None = None
    step_ms: float | None = None
    samples: int | None = None
    tokens: int | None = None
    flops: Number | None = None
    memory_allocated_bytes: int | None = None
    memory_peak_bytes: int | None = None
    power_w: float | None = None
    utilisation_percent: float | None = None
    not_measured: Mapping[str, str] = field(default_factory=dict)


def figures(steps: Sequence[StepFigures], *, peak: float | None = None, scope: str = "") -> Figures:
    """Return the loss and the perf/* figures of a step, of the last few, or of an epoch.

    Args:
        steps: the records, in their order; one of them gives that step's own figures.
        peak: the GPU's FLOP/s (`instrument.monitor.peaks.peak_flops`); None where unknown.
        scope: "" for steps, `EPOCH` for an epoch: "perf/epoch/step_ms".

    Returns:
        Name -> figure; each name is always there. The loss ("loss", "epoch/loss") is the mean over the steps.
    """
    losses = list(_measured(steps, "loss"))
    found: Figures = {f"{scope}{LOSS}": sum(losses) / len(losses) if losses else None}
    return found | {f"perf/{scope}{name}": value for name, value in _perf(steps, peak).items()}


def totals(steps: Sequence[StepFigures], *, scope: str = EPOCH) -> Figures:
    """Return the sums over an epoch: perf/epoch/steps, samples, tokens, flops and seconds.

    A sum over steps of which some were not measured is of those that were; None where none was.
    """
    sums: Figures = {name: _total(_measured(steps, name)) for name in ("samples", "tokens", "flops")}
    elapsed = _total(_measured(steps, "step_ms"))
    sums |= {"steps": len(steps), "seconds": None if elapsed is None else elapsed / 1000}
    return {f"perf/{scope}{name}": value for name, value in sums.items()}


def reasons(steps: Sequence[StepFigures], *, peak: float | None = None, scope: str = "") -> dict[str, str]:
    """Return why each figure that is None among `figures` of the same arguments was not measured."""
    given = {name: reason for step in reversed(steps) for name, reason in step.not_measured.items()}
    if peak is None:
        given.setdefault("peak", "the peak FLOP/s of this device is not known")
    missing = [name for name, value in _perf(steps, peak).items() if value is None]
    return {f"perf/{scope}{name}": _reason(given, _sources(name)) for name in missing}


def _perf(steps: Sequence[StepFigures], peak: float | None) -> Figures:
    found: Figures = {f"{name}_ms": _median(_measured(steps, f"{name}_ms")) for name in (*PHASES, "step")}
    for name in ("samples", "tokens", "flops"):
        found[f"{name}_per_s"] = _ratio(steps, name, per=1000)
    rate = found["flops_per_s"]
    found["mfu"] = None if rate is None or peak is None else rate / peak
    found |= {f"{name}_fraction": _ratio(steps, f"{name}_ms") for name in PHASES}
    found["memory_allocated_bytes"] = _last(_measured(steps, "memory_allocated_bytes"))
    found["memory_peak_bytes"] = max(_measured(steps, "memory_peak_bytes"), default=None)
    return found | {name: _median(_measured(steps, name)) for name in ("power_w", "utilisation_percent")}


def _measured(steps: Iterable[StepFigures], name: str) -> Iterable[Number]:
    return (value for step in steps if (value := getattr(step, name)) is not None)


def _median(values: Iterable[Number]) -> float | None:
    held = list(values)
    return median(held) if held else None


def _total(values: Iterable[Number]) -> Number | None:
    held = list(values)
    return sum(held) if held else None


def _last(values: Iterable[Number]) -> Number | None:
    return next(reversed(list(values)), None)


def _ratio(steps: Sequence[StepFigures], name: str, per: Number = 1) -> float | None:
    """Return the sum of a figure over the sum of step_ms, over the steps that have both."""
    both = [step for step in steps if getattr(step, name) is not None and step.step_ms is not None]
    elapsed = sum(_measured(both, "step_ms"))
    return per * sum(_measured(both, name)) / elapsed if elapsed else None


def _sources(name: str) -> tuple[str, ...]:
    """Return the attributes that a figure is made of."""
    if name == "mfu":
        return ("flops", "step_ms", "peak")
    if name.endswith("_per_s"):
        return (name.removesuffix("_per_s"), "step_ms")
    if name.endswith("_fraction"):
        return (name.replace("_fraction", "_ms"), "step_ms")
    return (name,)


def _reason(given: Mapping[str, str], sources: tuple[str, ...]) -> str:
    return next((given[source] for source in sources if source in given), "it was not measured")
