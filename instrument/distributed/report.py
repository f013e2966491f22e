"""Whether the GPUs together were faster than one and, if not, which knob was too small: arithmetic on measurements.

DDP reduces gradients in buckets while backward still computes; what does not fit under backward is seen in the step.
With n buckets the first starts 1/n into backward and the last starts at its end, so of a reduction that takes r,
beside a backward that takes b, max(r - b (n-1)/n, r/n) is exposed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

MIB = 1 << 20
REFERENCE_MB = 25.0  # torch's default, known to be large enough to use the whole bandwidth
NOTICEABLE = 0.02  # share of a step below which a cause is not worth a line
NEARLY_ALL = 0.95  # share of the possible speed above which there is nothing to do


@dataclass(frozen=True, slots=True)
class Reductions:
    """How long an all-reduce of all gradients takes while nothing else runs, in ms.

    Attributes:
        gradient_bytes: of all gradients of one rank.
        whole_ms: in one piece.
        bucket_mb: the run's bucket size, in MiB.
        bucketed_ms: in buckets of that size.
        reference_ms: in buckets of `REFERENCE_MB`.
    """

    gradient_bytes: int
    whole_ms: float
    bucket_mb: float
    bucketed_ms: float
    reference_ms: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured before the first step, in ms: a micro-batch's passes, which reduce nothing, and reductions."""

    forward_ms: float
    backward_ms: float
    reductions: Reductions


@dataclass(frozen=True, slots=True)
class RankFigures:
    """One rank's median step, in ms.

    Attributes:
        rank: whose.
        step_ms: from one step's start to the next one's.
        data_load_ms: what the host waited for data.
        copy_ms: copies that the computation waited for; 0 where they ran beside it.
        optimizer_ms: of the optimizer.
        calibration: None where the model is sharded, whose weights cannot be computed with alone.
    """

    rank: int
    step_ms: float
    data_load_ms: float = 0.0
    copy_ms: float = 0.0
    optimizer_ms: float = 0.0
    calibration: Calibration | None = None


@dataclass(frozen=True, slots=True)
class Together:
    """A run on several GPUs.

    Attributes:
        ranks: each one's figures.
        batch: samples per GPU and micro-batch.
        accumulation: micro-batches per step.
        no_sync: whether gradients are reduced once per step, not per micro-batch.
    """

    ranks: tuple[RankFigures, ...]
    batch: int
    accumulation: int = 1
    no_sync: bool = True

    @property
    def step_ms(self) -> float:
        """The slowest rank's step."""
        return max(one.step_ms for one in self.ranks)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cause of lost time.

    Attributes:
        knob: the setting that changes it, such as "distributed.bucket_mb"; "" where none does.
        cost_ms: what it takes of each step, at most.
        text: one line.
    """

    knob: str
    cost_ms: float
    text: str


def lines(run: Together) -> list[str]:
    """Return the report: how much faster, then each cause with its remedy, the dearest first."""
    size, step = len(run.ranks), run.step_ms
    alone = _alone_ms(run)
    if alone is None:
        told = [
            f"{size} GPUs, sharded: a step takes {step:.1f} ms; what the communication costs, a capture shows",
        ]
        return told + [one.text for one in verdicts(run)]
    gain = size * alone / step
    samples = run.batch * run.accumulation
    verb = f"do {gain:.2f} times the work of" if gain > 1 else f"are slower, {gain:.2f} times the work of"
    told = [
        f"{size} GPUs {verb} one that never waits: {size} x {samples} samples take {step:.1f} ms, "
        f"one GPU's own work for {samples} takes {alone:.1f} ms"
    ]
    if gain >= NEARLY_ALL * size:
        return [*told, f"nothing is left to gain: {gain:.2f} of {size}"]
    found = verdicts(run)
    told += [f"{one.text} (up to {one.cost_ms:.1f} ms a step)" for one in found]
    rest = step - alone - sum(one.cost_ms for one in found)
    if rest > NOTICEABLE * step:
        told.append(f"{rest:.1f} ms a step have none of these causes: a capture shows them")
    return told


def verdicts(run: Together) -> tuple[Verdict, ...]:
    """Return what keeps the GPUs from being as many times faster as they are, the dearest first.

    No cost is more than what a step loses against one GPU's own work, nor less than 2% of a step.
    """
    alone = _alone_ms(run)
    lost = run.step_ms if alone is None else max(run.step_ms - alone, 0.0)
    found = [*_waiting(run), *_communication(run)]
    capped = [Verdict(one.knob, min(one.cost_ms, lost), one.text) for one in found]
    worth = [one for one in capped if one.cost_ms >= NOTICEABLE * run.step_ms]
    return tuple(sorted(worth, key=lambda one: -one.cost_ms))


def _communication(run: Together) -> Iterator[Verdict]:
    """Judge the reductions, on the rank whose backward leaves most room for them."""
    calibrations = [one.calibration for one in run.ranks if one.calibration is not None]
    if not calibrations or len(run.ranks) == 1:
        return
    best = max(calibrations, key=lambda one: one.backward_ms)
    backward, measured = best.backward_ms, best.reductions
    times = 1 if run.no_sync else run.accumulation
    buckets = _buckets(measured, measured.bucket_mb)
    now = _exposed(measured.bucketed_ms, backward, buckets)
    if times > 1:
        yield Verdict(
            "distributed.no_sync",
            now * (times - 1),
            f"gradients are reduced {times} times a step: leave --ddp-sync off to reduce them once",
        )
    reachable, window = measured.bucketed_ms, backward * (buckets - 1) / buckets
    if measured.bucket_mb < REFERENCE_MB and measured.bucketed_ms > 1.2 * measured.reference_ms:
        reference = _buckets(measured, REFERENCE_MB)
        reachable = measured.reference_ms
        yield _too_small(measured, times * (now - _exposed(reachable, backward, reference)))
    elif buckets == 1:
        size = _quarter_mb(measured)
        yield _too_large(
            measured, size, times * (now - _exposed(measured.whole_ms, backward, _buckets(measured, size)))
        )
        window = backward * 3 / 4
    if reachable > window > 0:
        yield _small_batch(run, measured.gradient_bytes, backward, reachable, window, times)


def _too_small(measured: Reductions, cost: float) -> Verdict:
    slow, fast = (_gb_per_s(measured.gradient_bytes, ms) for ms in (measured.bucketed_ms, measured.reference_ms))
    text = (
        f"bucket_mb too small: buckets of {measured.bucket_mb:g} MB reduce at {slow:.1f} GB/s "
        f"against {fast:.1f} GB/s for {REFERENCE_MB:g} MB: use --bucket-mb {REFERENCE_MB:g}"
    )
    return Verdict("distributed.bucket_mb", cost, text)


def _too_large(measured: Reductions, size: float, cost: float) -> Verdict:
    text = (
        f"bucket_mb too large: one bucket of {measured.bucket_mb:g} MB holds every gradient "
        f"({_mb(measured.gradient_bytes)}), so nothing overlaps: use --bucket-mb {size:g}"
    )
    return Verdict("distributed.bucket_mb", cost, text)


def _small_batch(run: Together, nbytes: int, backward: float, reduction: float, window: float, times: int) -> Verdict:
    enough = run.batch * 2 ** max(math.ceil(math.log2(reduction / window)), 1)
    text = (
        f"batch per GPU too small: backward {backward:.1f} ms cannot hide {reduction:.1f} ms of all-reduce "
        f"({_mb(nbytes)} at {_gb_per_s(nbytes, reduction):.1f} GB/s); at batch {enough} it would"
    )
    return Verdict("data.batch", times * (reduction - window), text)


def _waiting(run: Together) -> Iterator[Verdict]:
    """Find a rank that the others wait for, and data that all wait for."""
    data = min(one.data_load_ms for one in run.ranks)
    if data:
        yield Verdict(
            "data.workers", data, f"every rank waits {data:.1f} ms a step for data: load ahead, with more --workers"
        )
    fastest, slowest = (choose(run.ranks, key=lambda one: sum(_work(one, run).values())) for choose in (min, max))
    little, much = _work(fastest, run), _work(slowest, run)
    cost = sum(much.values()) - sum(little.values())
    if cost > 0:
        longer = 100 * cost / max(sum(little.values()), 1e-9)
        cause = max(much, key=lambda name: much[name] - little[name])
        text = (
            f"the ranks wait for rank {slowest.rank}: its own work takes {longer:.0f}% longer "
            f"({cause} {much[cause]:.1f} ms against {little[cause]:.1f} ms)"
        )
        yield Verdict("data.workers" if cause == "data loading" else "", cost, text)


def _work(one: RankFigures, run: Together) -> dict[str, float]:
    """Return what a rank does in a step that no other rank can delay, in ms."""
    work = {"data loading": one.data_load_ms, "copy": one.copy_ms}
    if one.calibration is not None:
        work["forward"] = run.accumulation * one.calibration.forward_ms
        work["backward"] = run.accumulation * one.calibration.backward_ms
        work["optimizer"] = one.optimizer_ms
    return work


def _alone_ms(run: Together) -> float | None:
    """Return a step of one GPU that waits for neither data nor other ranks; None where it was not measured."""
    if any(one.calibration is None for one in run.ranks):
        return None
    return min(sum(_work(one, run).values()) - one.data_load_ms for one in run.ranks)


def _exposed(reduction: float, backward: float, buckets: int) -> float:
    return max(reduction - backward * (buckets - 1) / buckets, reduction / buckets)


def _buckets(measured: Reductions, bucket_mb: float) -> int:
    return max(math.ceil(measured.gradient_bytes / (bucket_mb * MIB)), 1)


def _quarter_mb(measured: Reductions) -> float:
    """Return a bucket size with which four hold all gradients, or torch's own where more do."""
    quarter = measured.gradient_bytes / MIB / 4
    return min(REFERENCE_MB, float(f"{quarter:.1g}") if quarter else REFERENCE_MB)


def _gb_per_s(nbytes: int, milliseconds: float) -> float:
    return nbytes / 1e6 / max(milliseconds, 1e-9)


def _mb(nbytes: int) -> str:
    return f"{nbytes / 1e6:.3g} MB" if nbytes < 1e9 else f"{nbytes / 1e9:.3g} GB"
