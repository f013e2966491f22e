"""The record of a step, and the perf/* metrics of one or several steps. This module does not import torch.

    perf/forward_ms, backward_ms, optimizer_ms, data_load_ms, copy_ms, sync_ms, step_ms   median over the steps
    perf/samples_per_s, tokens_per_s, flops_per_s      sum over the steps / time of the steps
    perf/mfu                                           flops_per_s / peak FLOP/s of the GPU
    perf/forward_fraction ... sync_fraction            time of the phase / time of the steps; their sum exceeds 1 if
                                                       phases overlap
    perf/loader_batches_per_s                          batches that the loader's workers can make
    perf/loader_empty_fraction                         share of requests while no batch was ready
    perf/memory_allocated_bytes, memory_reserved_bytes, pinned_bytes, host_rss_bytes      last value
    perf/memory_peak_bytes                             largest value

A value that was not measured is None, never 0. Medians and sums exclude it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import median
from typing import Protocol

Number = float | int
Figures = dict[str, float | int | None]

LOSS = "loss"
PHASES = ("forward", "backward", "optimizer", "data_load", "copy", "sync")
LAST_VALUES = ("memory_allocated_bytes", "memory_reserved_bytes", "pinned_bytes", "host_rss_bytes")


@dataclass(frozen=True, slots=True)
class LoaderCounts:
    """What a DataLoader did.

    Attributes:
        workers: its processes; 0 for the training process alone.
        requests: how often the training requested a batch.
        empty: requests while no batch was ready.
        made: batches that were made.
        busy_ns: time of all workers in making them.
    """

    workers: int = 0
    requests: int = 0
    empty: int = 0
    made: int = 0
    busy_ns: int = 0

    def plus(self, other: LoaderCounts, sign: int = 1) -> LoaderCounts:
        """Return the sum of both; with sign -1 what was counted after `other`."""
        names = ("requests", "empty", "made", "busy_ns")
        sums = (getattr(self, name) + sign * getattr(other, name) for name in names)
        return LoaderCounts(max(self.workers, other.workers), *sums)

    @property
    def batches_per_s(self) -> float | None:
        """The capacity: the batches a second that the workers make if none of them waits; None if it is not known."""
        return max(self.workers, 1) * self.made / (self.busy_ns / 1e9) if self.busy_ns else None

    @property
    def empty_fraction(self) -> float | None:
        """The share of requests while no batch was ready; None without requests."""
        return self.empty / self.requests if self.requests else None


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One optimizer step of one GPU with all its micro-batches. None means not measured.

    Attributes:
        step: number of the step, counted from 0.
        loss: mean over the micro-batches.
        forward_ms: GPU time of the forward passes.
        backward_ms: GPU time of the backward passes.
        optimizer_ms: GPU time of the optimizer.
        data_load_ms: time the host waited for the loader.
        copy_ms: time of the copies to the GPU on their stream, whether hidden behind compute or not.
        sync_ms: time the host waited for the GPU under the sync policy, in ranges named "sync".
        step_ms: time from the start of this step to the start of the next one.
        samples: number of samples.
        tokens: number of positions, if samples are sequences.
        flops: floating-point operations.
        memory_allocated_bytes: memory allocated by tensors at the end of the step.
        memory_peak_bytes: maximum memory allocated since the start of the run.
        memory_reserved_bytes: GPU memory that torch's allocator holds, including what no tensor uses.
        pinned_bytes: pinned host memory that torch's allocator holds.
        host_rss_bytes: physical memory of this process on the host.
        metrics: figures of the user's loss function.
        loader: what the loader did during the step.
    """

    step: int
    loss: float | None = None
    forward_ms: float | None = None
    backward_ms: float | None = None
    optimizer_ms: float | None = None
    data_load_ms: float | None = None
    copy_ms: float | None = None
    sync_ms: float | None = None
    step_ms: float | None = None
    samples: int | None = None
    tokens: int | None = None
    flops: Number | None = None
    memory_allocated_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    pinned_bytes: int | None = None
    host_rss_bytes: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    loader: LoaderCounts = LoaderCounts()


class Sink(Protocol):
    """A destination for metrics: a file, a server, the terminal."""

    def write(self, step: int, figures: Figures) -> None:
        """Write one record: name -> value, None if not measured.

        Args:
            step: last optimizer step of the record, counted from 0.
            figures: the result of `figures`.
        """

    def close(self) -> None:
        """Write buffered records and release all resources."""


def loader_text(rate: Number | None, empty: Number | None) -> str:
    """Return the figures of a loader in words; "" if one is not known."""
    if rate is None or empty is None:
        return ""
    return f"can make {rate:.3g} batches/s; none was ready at {empty:.0%} of the requests"


def figures(steps: Sequence[StepFigures], *, peak: float | None = None) -> Figures:
    """Return the loss and the perf/* metrics of one or several steps.

    Args:
        steps: the records, in order.
        peak: peak FLOP/s of the GPU (`traceview.model.peaks.peak_flops`); None if unknown.

    Returns:
        Name -> value, with every name present. The loss and metrics are means over the steps.
    """
    own: Figures = {LOSS: _mean(_measured(steps, "loss"))}
    for name in dict.fromkeys(name for step in steps for name in step.metrics):
        own[name] = _mean(step.metrics[name] for step in steps if name in step.metrics)
    return own | {f"perf/{name}": value for name, value in _perf(steps, peak).items()}


def _perf(steps: Sequence[StepFigures], peak: float | None) -> Figures:
    times = {f"{name}_ms": [*_measured(steps, f"{name}_ms")] for name in (*PHASES, "step")}
    values: Figures = {name: median(each) if each else None for name, each in times.items()}
    for name in ("samples", "tokens", "flops"):
        values[f"{name}_per_s"] = _ratio(steps, name, per=1000)
    rate = values["flops_per_s"]
    values["mfu"] = None if rate is None or peak is None else rate / peak
    values |= {f"{name}_fraction": _ratio(steps, f"{name}_ms") for name in PHASES}
    loader = reduce(LoaderCounts.plus, (step.loader for step in steps), LoaderCounts())
    values |= {"loader_batches_per_s": loader.batches_per_s, "loader_empty_fraction": loader.empty_fraction}
    values |= {name: next(iter(_measured(reversed(steps), name)), None) for name in LAST_VALUES}
    return values | {"memory_peak_bytes": max(_measured(steps, "memory_peak_bytes"), default=None)}


def _measured(steps: Iterable[StepFigures], name: str) -> Iterable[Number]:
    return (value for step in steps if (value := getattr(step, name)) is not None)


def _mean(values: Iterable[Number]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None


def _ratio(steps: Sequence[StepFigures], name: str, per: Number = 1) -> float | None:
    """Return the sum of an attribute divided by the sum of step_ms, over the steps that have both."""
    both = [step for step in steps if getattr(step, name) is not None and step.step_ms is not None]
    elapsed = sum(_measured(both, "step_ms"))
    return per * sum(_measured(both, name)) / elapsed if elapsed else None
