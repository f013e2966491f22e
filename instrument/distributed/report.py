"""The speed-up of several GPUs over one, and the settings that limit it, computed from measured times.

DDP reduces gradients in buckets while the backward pass still runs. The part of the reduction that does not overlap
with the backward pass is exposed: it extends the step. With n buckets the first reduction starts after 1/n of the
backward pass and the last one at its end. If the reduction takes r and the backward pass takes b, the exposed time is
max(r - b (n-1)/n, r/n).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

MIB = 1 << 20
REFERENCE_MB = 25.0  # torch's default, large enough to use the full bandwidth
MIN_COST_FRACTION = 0.02  # share of a step; smaller costs are not reported
GOOD_SCALING = 0.95  # share of the ideal speed-up; above it nothing is reported


@dataclass(frozen=True, slots=True)
class Reductions:
    """Time of an all-reduce of all gradients while nothing else runs, in ms.

    Attributes:
        gradient_bytes: size of all gradients of one rank.
        unsplit_ms: time in one piece.
        bucket_mb: bucket size of the run in MiB.
        bucketed_ms: time in buckets of that size.
        reference_ms: time in buckets of `REFERENCE_MB`.
    """

    gradient_bytes: int
    unsplit_ms: float
    bucket_mb: float
    bucketed_ms: float
    reference_ms: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Separate times of forward and backward for one micro-batch, without reduction, and of the reduction, in ms."""

    forward_ms: float
    backward_ms: float
    reductions: Reductions


@dataclass(frozen=True, slots=True)
class RankFigures:
    """Median times of a step on one rank, in ms.

    Attributes:
        rank: number of the rank.
        step_ms: time from the start of a step to the start of the next one.
        data_load_ms: time the host waited for data.
        copy_ms: time of copies that the computation waits for; 0 if they overlap with it.
        optimizer_ms: time of the optimizer.
        calibration: None for a sharded model, which one rank cannot run alone.
    """

    rank: int
    step_ms: float
    data_load_ms: float = 0.0
    copy_ms: float = 0.0
    optimizer_ms: float = 0.0
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class Scaling:
    """The measured times of a run on several GPUs.

    Attributes:
        ranks: the times of each rank.
        batch: samples per GPU and micro-batch.
        accumulation: micro-batches per step.
        no_sync: whether gradients are reduced once per step instead of once per micro-batch.
    """

    ranks: tuple[RankFigures, ...]
    batch: int
    accumulation: int = 1
    no_sync: bool = True

    @property
    def step_ms(self) -> float:
        """Step time of the slowest rank."""
        return max(rank.step_ms for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class SlowdownCause:
    """One cause of lost time.

    Attributes:
        cost_ms: upper bound of the lost time per step.
        text: description and remedy in one line.
    """

    cost_ms: float
    text: str


def report_lines(run: Scaling) -> list[str]:
    """Return the report: the speed-up, then each cause of lost time with its remedy, the most expensive first."""
    size, step = len(run.ranks), run.step_ms
    single = _single_gpu_ms(run)
    if single is None:
        summary = f"{size} GPUs, sharded: a step takes {step:.1f} ms; record a capture to see the communication"
        return [summary, *(cause.text for cause in slowdown_causes(run))]
    speedup = size * single / step
    samples = run.batch * run.accumulation
    verdict = f"{speedup:.2f} times as fast as" if speedup > 1 else f"slower ({speedup:.2f} times as fast) than"
    report = [
        f"{size} GPUs are {verdict} one GPU without waits: a step of {size} x {samples} samples takes {step:.1f} ms, "
        f"one GPU computes {samples} samples in {single:.1f} ms"
    ]
    if speedup >= GOOD_SCALING * size:
        return [*report, f"scaling is close to ideal: {speedup:.2f} of {size}"]
    causes = slowdown_causes(run)
    report += [f"{cause.text} (up to {cause.cost_ms:.1f} ms per step)" for cause in causes]
    rest = step - single - sum(cause.cost_ms for cause in causes)
    if rest > MIN_COST_FRACTION * step:
        report.append(f"{rest:.1f} ms per step have another cause; record a capture to see it")
    return report


def slowdown_causes(run: Scaling) -> tuple[SlowdownCause, ...]:
    """Return the causes of lost time, the most expensive first.

    A cost is at most the difference between a step and the work of a single GPU, and at least 2% of a step.
    """
    single = _single_gpu_ms(run)
    lost = run.step_ms if single is None else max(run.step_ms - single, 0.0)
    causes = [*_waiting_causes(run), *_communication_causes(run)]
    capped = [SlowdownCause(min(cause.cost_ms, lost), cause.text) for cause in causes]
    relevant = [cause for cause in capped if cause.cost_ms >= MIN_COST_FRACTION * run.step_ms]
    return tuple(sorted(relevant, key=lambda cause: -cause.cost_ms))


def _communication_causes(run: Scaling) -> Iterator[SlowdownCause]:
    """Yield the causes in the reductions, for the rank whose backward pass can hide the most."""
    calibrations = [rank.calibration for rank in run.ranks if rank.calibration is not None]
    if not calibrations or len(run.ranks) == 1:
        return
    best = max(calibrations, key=lambda calibration: calibration.backward_ms)
    backward, measured = best.backward_ms, best.reductions
    times = 1 if run.no_sync else run.accumulation
    buckets = _bucket_count(measured, measured.bucket_mb)
    exposed = _exposed_ms(measured.bucketed_ms, backward, buckets)
    if times > 1:
        yield SlowdownCause(
            exposed * (times - 1),
            f"gradients are reduced {times} times per step; remove --ddp-sync to reduce them once",
        )
    reachable, window = measured.bucketed_ms, backward * (buckets - 1) / buckets
    if measured.bucket_mb < REFERENCE_MB and measured.bucketed_ms > 1.2 * measured.reference_ms:
        reference = _bucket_count(measured, REFERENCE_MB)
        reachable = measured.reference_ms
        yield _small_buckets(measured, times * (exposed - _exposed_ms(reachable, backward, reference)))
    elif buckets == 1:
        size = _quarter_mb(measured)
        split = _exposed_ms(measured.unsplit_ms, backward, _bucket_count(measured, size))
        yield _large_buckets(measured, size, times * (exposed - split))
        window = backward * 3 / 4
    if reachable > window > 0:
        yield _small_batch(run, measured.gradient_bytes, backward, reachable, window, times)


def _small_buckets(measured: Reductions, cost: float) -> SlowdownCause:
    slow, fast = (_gb_per_s(measured.gradient_bytes, ms) for ms in (measured.bucketed_ms, measured.reference_ms))
    text = (
        f"bucket_mb is too small: buckets of {measured.bucket_mb:g} MB reduce at {slow:.1f} GB/s, "
        f"buckets of {REFERENCE_MB:g} MB at {fast:.1f} GB/s; use --bucket-mb {REFERENCE_MB:g}"
    )
    return SlowdownCause(cost, text)


def _large_buckets(measured: Reductions, size: float, cost: float) -> SlowdownCause:
    text = (
        f"bucket_mb is too large: one bucket of {measured.bucket_mb:g} MB holds all gradients "
        f"({_size_text(measured.gradient_bytes)}), so nothing overlaps; use --bucket-mb {size:g}"
    )
    return SlowdownCause(cost, text)


def _small_batch(
    run: Scaling, nbytes: int, backward: float, reduction: float, window: float, times: int
) -> SlowdownCause:
    enough = run.batch * 2 ** max(math.ceil(math.log2(reduction / window)), 1)
    text = (
        f"batch per GPU is too small: {backward:.1f} ms of backward cannot hide {reduction:.1f} ms of all-reduce "
        f"({_size_text(nbytes)} at {_gb_per_s(nbytes, reduction):.1f} GB/s); use --batch {enough}"
    )
    return SlowdownCause(times * (reduction - window), text)


def _waiting_causes(run: Scaling) -> Iterator[SlowdownCause]:
    """Yield data loading that all ranks wait for, and a slow rank that the others wait for."""
    data = min(rank.data_load_ms for rank in run.ranks)
    if data:
        yield SlowdownCause(data, f"every rank waits {data:.1f} ms per step for data; load ahead with more --workers")
    fastest, slowest = (choose(run.ranks, key=lambda rank: sum(_own_work(rank, run).values())) for choose in (min, max))
    least, most = _own_work(fastest, run), _own_work(slowest, run)
    cost = sum(most.values()) - sum(least.values())
    if cost > 0:
        percent = 100 * cost / max(sum(least.values()), 1e-9)
        phase = max(most, key=lambda name: most[name] - least[name])
        text = (
            f"the ranks wait for rank {slowest.rank}: its own work takes {percent:.0f}% longer "
            f"({phase} {most[phase]:.1f} ms instead of {least[phase]:.1f} ms)"
        )
        yield SlowdownCause(cost, text)


def _own_work(rank: RankFigures, run: Scaling) -> dict[str, float]:
    """Return the times in ms of a rank's work in a step that other ranks cannot delay."""
    work = {"data loading": rank.data_load_ms, "copy": rank.copy_ms}
    if rank.calibration is not None:
        work["forward"] = run.accumulation * rank.calibration.forward_ms
        work["backward"] = run.accumulation * rank.calibration.backward_ms
        work["optimizer"] = rank.optimizer_ms
    return work


def _single_gpu_ms(run: Scaling) -> float | None:
    """Return the step time of one GPU that waits neither for data nor for other ranks; None if not measured."""
    if any(rank.calibration is None for rank in run.ranks):
        return None
    return min(sum(_own_work(rank, run).values()) - rank.data_load_ms for rank in run.ranks)


def _exposed_ms(reduction: float, backward: float, buckets: int) -> float:
    return max(reduction - backward * (buckets - 1) / buckets, reduction / buckets)


def _bucket_count(measured: Reductions, bucket_mb: float) -> int:
    return max(math.ceil(measured.gradient_bytes / (bucket_mb * MIB)), 1)


def _quarter_mb(measured: Reductions) -> float:
    """Return a bucket size that splits the gradients into four buckets, at most `REFERENCE_MB`."""
    quarter = measured.gradient_bytes / MIB / 4
    return min(REFERENCE_MB, float(f"{quarter:.1g}") if quarter else REFERENCE_MB)


def _gb_per_s(nbytes: int, milliseconds: float) -> float:
    return nbytes / 1e6 / max(milliseconds, 1e-9)


def _size_text(nbytes: int) -> str:
    return f"{nbytes / 1e6:.3g} MB" if nbytes < 1e9 else f"{nbytes / 1e9:.3g} GB"
