"""The periods at which a launch sequence repeats, and which of them is the iteration.

A training run repeats at several levels: layers, micro-batches, steps, epochs. The iteration is the shortest level
whose repetitions cover almost as much of the run as those of any other. Layers do not: between two passes over the
layers something else runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times, index_ranges
from traceview.measure.iterations.launches import LaunchSequence

LENGTHS = (1, 2, 4, 8)  # launches in a pattern
# Number of kinds of launches -> length of the patterns by which repetitions are compared. With few kinds, all
# sequences of short patterns are similar.
CONTENT = {2: 8, 7: 4}
MIN_CONTENT = 2
MIN_REPEATS = 3
MAX_ANCHORS = 32
MIN_SPACED_SHARE = 0.15  # share of the launches or of their GPU time, between anchors at about their median distance
SPACING = 4  # distances within 1/4 of the median are regular
DISTANCE_STEP = 1.05  # one anchor is kept of several whose median distances differ by less
SKETCH = 16  # random codes
MAX_COUNTS = 1 << 22  # stretches times patterns
FIRST, SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
SHIFT, BITS = np.uint64(29), np.uint64(48)

Patterns = NDArray[np.uint16]


def pattern_hashes(symbol: NDArray[np.int64]) -> Mapping[int, Patterns]:
    """Return, for each of LENGTHS, a 16-bit hash of the pattern that begins at each place."""
    hashes = {1: _mix_bits(symbol.astype(np.uint64) * FIRST + FIRST)}
    for length in LENGTHS[1:]:
        later = hashes[length // 2][length // 2 :]
        if len(later) == 0:
            break
        hashes[length] = _mix_bits(hashes[length // 2][: len(later)] * FIRST + _mix_bits(later))
    return {length: (values >> BITS).astype(np.uint16) for length, values in hashes.items()}


def _mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed: NDArray[np.uint64] = (values ^ (values >> SHIFT)) * SECOND
    return mixed


class Anchor(NamedTuple):
    """A pattern that recurs at regular distances: its length, its hash and where it begins.

    `steadier` is a pattern that covers less of the sequence at this distance, but occurs less often elsewhere, such as
    a kernel that only the iterations launch.
    """

    length: int
    pattern: int
    places: Times
    distance: int  # the median
    steadier: Anchor | None = None


def regular_anchors(hashes: Mapping[int, Patterns], gpu_ns: Times) -> Iterator[Anchor]:
    """Yield for each distance the pattern that covers most of the sequence at this distance, shortest pattern first."""
    running = np.append(0, np.cumsum(gpu_ns))
    columns = [_regular_patterns(values, length, running) for length, values in hashes.items()]
    length, pattern, distance, share, steady = (np.concatenate(column) for column in zip(*columns, strict=True))
    steps = np.round(np.log(distance) / np.log(DISTANCE_STEP)).astype(np.int64)

    def anchor(row: int, steadier: Anchor | None = None) -> Anchor:
        places = np.flatnonzero(hashes[int(length[row])] == pattern[row])
        return Anchor(int(length[row]), int(pattern[row]), places, int(distance[row]), steadier)

    widest = _best_rows(share, length, steps)
    steadiest = dict(zip(steps[widest].tolist(), widest.tolist(), strict=True))
    steadiest |= {int(steps[row]): row for row in _best_rows(share * steady, length, steps).tolist()}
    for row in widest.tolist():
        other = steadiest[int(steps[row])]
        yield anchor(row, None if other == row else anchor(other))


def _best_rows(worth: NDArray[np.float64], length: Times, steps: Times) -> Times:
    """Return the best pattern of each step of distance, the best ones first."""
    # Prefer a short pattern unless a longer one covers 5% more, because every inserted launch breaks a long one.
    order = np.lexsort((length, -np.floor(worth * 20)))
    best: Times = order[np.sort(np.unique(steps[order], return_index=True)[1])[:MAX_ANCHORS]]
    return best


def _regular_patterns(
    values: Patterns, length: int, gpu_ns: Times
) -> tuple[Times, Times, Times, NDArray[np.float64], NDArray[np.float64]]:
    """Return length, hash, median distance, covered share and share of regular distances of the regular patterns.

    `gpu_ns` is the GPU time before each launch, and in all.
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    same = ordered[1:] == ordered[:-1]
    # Sort by pattern, then by distance, so that the medians can be picked.
    keys = (ordered[1:][same].astype(np.int64) << 40) | np.diff(order)[same]
    by_distance = np.argsort(keys)
    time = np.diff(gpu_ns[order])[same][by_distance]
    pattern, distance = np.divmod(keys[by_distance], 1 << 40)
    first = np.flatnonzero(np.diff(pattern, prepend=-1))
    count = np.diff(first, append=len(pattern))
    median = distance[first + (count - 1) // 2]
    regular = np.abs(distance - np.repeat(median, count)) * SPACING <= np.repeat(median, count)
    covered, busy, steady = (
        np.add.reduceat(each, first) if len(first) else first
        for each in (np.where(regular, distance, 0), np.where(regular, time, 0), regular.astype(np.int64))
    )
    share = np.maximum(covered / max(len(values), 1), busy / max(int(gpu_ns[-1]), 1))
    chosen = (count >= MIN_REPEATS - 1) & (share >= MIN_SPACED_SHARE)
    lengths = np.full(np.count_nonzero(chosen), length)
    return lengths, pattern[first][chosen], median[chosen], share[chosen], (steady / count)[chosen]


def content_length(hashes: Mapping[int, Patterns]) -> int:
    """Return the length, in launches, of the patterns by which long repetitions are compared."""
    kinds = np.count_nonzero(np.bincount(hashes[1]))
    return next((length for most, length in CONTENT.items() if kinds <= most), MIN_CONTENT)


@cache
def _codes() -> NDArray[np.int8]:
    """Return the random code of each pattern: SKETCH times -1 or 1."""
    bits = _mix_bits(np.arange(1 << 16, dtype=np.uint64) * FIRST)[:, None] >> np.arange(
        BITS, BITS + SKETCH, dtype=np.uint64
    )
    return (bits & np.uint64(1)).astype(np.int8) * np.int8(2) - np.int8(1)


class Contents(NamedTuple):
    """What each stretch of a sequence contains, as sums of random codes, one code for each pattern.

    The mean square of the difference of two sums estimates how many patterns the stretches do not share. It counts a
    pattern that occurs k times more as k * k; `shared` counts it as k.
    """

    running: NDArray[np.int32]
    values: Patterns

    @classmethod
    def from_hashes(cls, hashes: Mapping[int, Patterns], length: int) -> Contents:
        """Add up the codes of the patterns of `length` launches."""
        values = hashes[min(length, max(hashes))]
        running = np.zeros((len(hashes[1]) + 1, SKETCH), np.int32)
        np.cumsum(_codes()[values], axis=0, out=running[1 : len(values) + 1])
        running[len(values) + 1 :] = running[len(values)]
        return cls(running, values)

    def similarity(self, first: Times, last: Times) -> NDArray[np.float64]:
        """Return how similar each stretch [first, last) is to the typical stretch: 1 if both have the same patterns."""
        sums = (self.running[last] - self.running[first]).astype(np.float64)
        length = last - first
        differing = ((sums - np.median(sums, axis=0)) ** 2).mean(axis=1)
        similarity: NDArray[np.float64] = 1 - np.minimum(1, differing / np.maximum(length + np.median(length), 1))
        return similarity

    def shared(self, first: Times, last: Times) -> NDArray[np.float64] | None:
        """Return the share of patterns that each stretch [first, last) has in common with the typical stretch.

        None if the stretches are so many, and of so many patterns, that counting takes long.
        """
        last = np.minimum(last, len(self.values))
        kinds, code = np.unique(self.values, return_inverse=True)
        if len(first) * len(kinds) > MAX_COUNTS:
            return None
        rows = np.repeat(np.arange(len(first)), last - first) * len(kinds) + code[index_ranges(first, last - first)]
        counts = np.bincount(rows, minlength=len(first) * len(kinds)).reshape(len(first), -1)
        differing = np.abs(counts - np.median(counts, axis=0)).sum(axis=1)
        length = last - first
        shared: NDArray[np.float64] = 1 - np.minimum(1, differing / np.maximum(length + np.median(length), 1))
        return shared


SAMPLES = (1 << 16, 1 << 18)  # launches in which periods are searched
MIN_SIMILARITY = 0.5
STRICT, LOOSE = 10, 3  # repetitions whose lengths differ by 1/10, or 1/3, of the median are regular
MIN_EXCHANGED = 4
MIN_LONG = 16  # launches
MIN_EVEN = 0.9  # share of the repetitions
MIN_EXTRA, MAX_TIMES_EXTRA = 3, 20  # launches that a repetition has more, and the launches of one over these
MIN_SCORE = 0.2
MIN_STRICT_SCORE = 0.5  # below it, iterations of varying length are tried
NEARLY_BEST = 0.02
# Qualities above the first rank as equal. Below the second, an anchor that covers less is tried as well.
GOOD_QUALITY, POOR_QUALITY = 0.9, 0.4
# See _is_step_of: repetitions of the inner level in the outer, fewer where the inner one has few launches, share of its
# score, share that talks to the host.
MIN_NESTED, MIN_GROUPED, MIN_NESTED_SCORE, MIN_TALKING = 10, 4, 0.8, 0.9
MAX_SHORT = 4  # a period of so few launches may be less than an iteration
NO_KERNEL = -1


class PeriodLevel(NamedTuple):
    """A period of the sequence.

    `places` are those of its anchor, `length` is the median number of launches of a repetition. `score` is the share of
    the sequence, by launches and GPU time, in regular repetitions, `regularity` their share between first and last
    anchor, `similarity` the mean similarity of repetitions, `talking` the share of the regular ones that talk to the
    host. `kernels` is the GPU time in ns of each kind of kernel in the middle regular one. `irregular` counts the other
    repetitions, which typically have `extra` launches more.
    """

    anchor: Anchor
    places: Times
    length: int
    score: float
    regularity: float
    similarity: float
    talking: float
    kernels: Mapping[int, int]
    irregular: int
    extra: int

    @property
    def worth(self) -> float:
        """The score, reduced if the repetitions are irregular or differ."""
        return self.score * min(1.0, self.quality / GOOD_QUALITY)

    @property
    def quality(self) -> float:
        """The product of regularity and similarity."""
        return self.regularity * self.similarity


def repeating_levels(sequence: LaunchSequence) -> list[PeriodLevel]:
    """Return the levels at which the sequence repeats, shortest period first.

    A long sequence is searched in its middle first, and in more of it if it does not repeat there often enough.
    """
    for size in SAMPLES:
        levels = _levels_within(sequence, _middle(len(sequence.symbol), size))
        if size >= len(sequence.symbol) or any(
            level.score >= MIN_STRICT_SCORE and len(level.places) >= MIN_NESTED for level in levels
        ):
            break
    return levels


def _levels_within(sequence: LaunchSequence, stretch: slice) -> list[PeriodLevel]:
    hashes = pattern_hashes(sequence.symbol[stretch])
    anchors = list(regular_anchors(hashes, sequence.gpu_ns[stretch]))
    contents = {length: Contents.from_hashes(hashes, length) for length in {MIN_CONTENT, content_length(hashes)}}
    weight = _weights(sequence, stretch)
    talks, computes = (np.append(0, np.cumsum(values[stretch])) for values in (sequence.talks, sequence.computes))
    kernels = np.where(sequence.computes, sequence.symbol, NO_KERNEL)[stretch], sequence.gpu_ns[stretch]
    for tolerance in (STRICT, LOOSE):
        levels = [_level(anchor, contents, weight, talks, computes, kernels, tolerance) for anchor in anchors]
        levels += [
            _level(level.anchor.steadier, contents, weight, talks, computes, kernels, tolerance)
            for level in levels
            if level.quality < POOR_QUALITY and level.anchor.steadier is not None
        ]
        if any(level.score >= MIN_STRICT_SCORE for level in levels):
            break
    return sorted((level for level in levels if level.score >= MIN_SCORE), key=lambda level: level.length)


def _middle(count: int, size: int) -> slice:
    """Return the middle `size` of `count` launches."""
    first = max(count - size, 0) // 2
    return slice(first, first + size)


def _weights(sequence: LaunchSequence, stretch: slice) -> NDArray[np.float64]:
    """Return the running share of the launches and of their GPU time, half each."""
    gpu_ns = sequence.gpu_ns[stretch]
    total = max(int(gpu_ns.sum()), 1)
    return np.concatenate([np.zeros(1), np.cumsum(gpu_ns / total + 1 / len(gpu_ns)) / 2])


def _level(
    anchor: Anchor,
    contents: Mapping[int, Contents],
    weight: NDArray[np.float64],
    talks: NDArray[np.int64],
    computes: NDArray[np.int64],
    kernels: tuple[Times, Times],
    tolerance: int,
) -> PeriodLevel:
    first = anchor.places
    length = int(np.median(np.diff(first)))
    last = np.append(first[1:], min(int(first[-1]) + length, len(weight) - 1))
    deviation = np.abs(last - first - length)
    content = contents[max(contents) if length >= MIN_LONG else MIN_CONTENT]
    similarity = content.similarity(first, last)
    even = len(first) >= MIN_NESTED and np.mean(deviation <= length // STRICT) >= MIN_EVEN
    if length >= MIN_LONG and even and np.mean(similarity >= MIN_SIMILARITY) < MIN_EVEN:
        # Padded batches: with the shape, one variant of a kernel takes the place of another in all layers.
        shared = content.shared(first, last)
        similarity = similarity if shared is None else np.maximum(similarity, shared)
    # Threads that launch at once exchange places: one launch more or less says little where there are several.
    regular = (similarity >= MIN_SIMILARITY) & (deviation <= max(length // tolerance, int(length >= MIN_EXCHANGED)))
    regular &= computes[last] > computes[first]
    shares = weight[last] - weight[first]
    # The last repetition may have its launches before the first anchor.
    outside = float(weight[-1] - weight[first[-1]] + weight[first[0]])
    between = float(shares[:-1][regular[:-1]].sum())
    score = between + min(between / len(shares[:-1]), outside)
    return PeriodLevel(
        anchor,
        first,
        length,
        score=score,
        regularity=between / max(float(shares[:-1].sum()), 1e-9),
        similarity=float(np.average(similarity, weights=last - first)),
        talking=float(np.mean((talks[last] > talks[first])[regular])) if regular.any() else 0.0,
        kernels=_kernel_times(*kernels, first[regular], last[regular]),
        **_odd_ones(last[:-1] - first[:-1], length, regular[:-1]),
    )


def _kernel_times(kind: Times, gpu_ns: Times, first: Times, last: Times) -> Mapping[int, int]:
    """Return the GPU time in ns of each kind of kernel in the middle one of the stretches [first, last)."""
    if len(first) == 0:
        return {}
    middle = slice(int(first[len(first) // 2]), int(last[len(first) // 2]))
    kinds, place = np.unique(kind[middle], return_inverse=True)
    total = np.zeros(len(kinds), np.int64)
    np.add.at(total, place, gpu_ns[middle])
    return {code: ns for code, ns in zip(kinds.tolist(), total.tolist(), strict=True) if code != NO_KERNEL}


def _odd_ones(lengths: NDArray[np.int64], length: int, regular: NDArray[np.bool_]) -> dict[str, int]:
    """Return how many repetitions are irregular, and how many launches these have more.

    If all are equal but some, which have the same few launches more, those are irregular too.
    """
    odd = lengths != length
    least = length + max(MIN_EXTRA, length // MAX_TIMES_EXTRA)
    if odd.any() and lengths[odd].min() == lengths[odd].max() >= least:
        regular = ~odd
    if regular.all():
        return {"irregular": 0, "extra": 0}
    return {"irregular": int(np.count_nonzero(~regular)), "extra": int(np.median(lengths[~regular])) - length}


def choose_level(levels: Sequence[PeriodLevel]) -> PeriodLevel | None:
    """Return the level that is the iteration."""
    if not levels:
        return None
    best = max(level.worth for level in levels)
    chosen = next(level for level in levels if level.worth >= best - NEARLY_BEST)
    chosen = next((outer for outer in levels if _is_wrapped_by(outer, chosen) or _is_pair_of(outer, chosen)), chosen)
    nested = [level for level in levels if _is_step_of(level, chosen)]
    return nested[-1] if nested else chosen


def _is_step_of(inner: PeriodLevel, outer: PeriodLevel) -> bool:
    """Return whether `outer` is a loop of many steps `inner`, such as an epoch, or the steps between two outputs.

    The layers of a model do not talk to the host. A pass over them also computes something that takes time, or what it
    computes shortens the last layer; an output lengthens a step.
    """
    if inner.score < MIN_NESTED_SCORE * outer.score:
        return False
    step = sum(inner.kernels.values())
    own = sum(ns for kind, ns in outer.kernels.items() if kind not in inner.kernels)
    rest = sum(outer.kernels.values()) - step * len(inner.places) // len(outer.places)
    computes_nothing_else = max(own, rest) * STRICT <= step and inner.extra > -MIN_EXTRA
    if inner.length * MIN_NESTED <= outer.length:
        return inner.talking >= MIN_TALKING or computes_nothing_else
    return computes_nothing_else and inner.length <= MAX_SHORT and inner.length * MIN_GROUPED <= outer.length


def _is_wrapped_by(outer: PeriodLevel, inner: PeriodLevel) -> bool:
    """Return whether each repetition of `outer` has many of `inner` and some launches of its own, as tokens of layers.

    One or two launches, such as a check for convergence, do not make another level.
    """
    once_each = abs(inner.irregular - len(outer.places)) <= max(len(outer.places) // 5, 1)
    longer = outer.length >= MIN_REPEATS * inner.length
    # A step with a few launches more, every N steps, logs something and waits for it.
    if MIN_EXTRA <= inner.extra <= inner.length // STRICT:
        return longer and once_each and outer.talking == 0 and outer.score > inner.score - NEARLY_BEST
    # What follows the last layer may look like a shorter layer.
    return longer and once_each and abs(inner.extra) >= MIN_EXTRA and outer.score > inner.score


def _is_pair_of(outer: PeriodLevel, inner: PeriodLevel) -> bool:
    """Return whether each repetition of `outer` is two of `inner`, whose lengths alternate: halves of a step."""
    if len(inner.places) < 2 * MIN_REPEATS:
        return False
    lengths = np.diff(inner.places)
    first, second = (float(np.median(lengths[half::2])) for half in range(2))
    even = np.mean(np.abs(lengths - np.where(np.arange(len(lengths)) % 2, second, first)) < MIN_EXTRA)
    return bool(abs(first + second - outer.length) < MIN_EXTRA <= abs(first - second) and even >= MIN_EVEN)
