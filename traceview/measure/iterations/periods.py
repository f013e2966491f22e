"""Iterations of a program without ranges: the repeating unit of its launches (docs/definitions.md "Iterations")."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, index_ranges
from traceview.measure.iterations.launches import LaunchSequence
from traceview.measure.iterations.levels import (
    LOOSE,
    MAX_SHORT,
    MIN_EXTRA,
    MIN_GROUPED,
    MIN_NESTED,
    MIN_REPEATS,
    STRICT,
    Patterns,
    PeriodLevel,
    choose_level,
    pattern_hashes,
    repeating_levels,
)
from traceview.measure.iterations.times import typical_pause
from traceview.model.analysis import IterationCandidate

MIN_WHOLE = 0.6  # share of the typical launches that an iteration has
MAX_COMPARED = 48  # iterations whose pauses are compared
MAX_COMPARED_LAUNCHES = 1 << 16
MIN_CONFIDENCE = 0.5
MAX_TRIED = 3  # levels, until one is confident
SLACK = 0.08  # share of an iteration's launches that may be inserted or missing
MAX_PAUSE_RATIO = 4  # the pause before complete iterations may be shorter than the longest one by this
MIN_SAME, MAX_SAME = 0.5, 1.2  # occurrences in each iteration of the pattern that begins it
PATTERN_SHIFT = 40
MIN_LISTED_WORTH, MAX_LISTED = 0.25, 4
SHORT_CONFIDENCE = 0.75  # confidence in periods of at most MAX_SHORT launches
MIN_PASS = 3  # launches; fewer may be calls by hand
# Repetitions that prove nothing, where these are whole passes, and where they are a few launches. Equal launches of one
# kernel are often calls by hand. The weight of the work outside the repetitions.
DOUBT, DOUBT_SHORT, DOUBT_OUTSIDE = 0.5, 1.5, 1.5
MIN_PAUSE = 1000  # ns
MIN_JUMP, MIN_REGULAR = 2, 0.9  # pauses between groups over pauses inside, and share of groups of the typical size
MAX_LAYERS, MIN_LAYER, MAX_LAYER = 128, 3, 128  # layers of a model, launches of a layer
MAX_TALKING_LAYERS = 0.1
MIN_LOOP = 0.2  # share of the GPU time
# Shares of the GPU time of a training program: kernels that each step has, and how far kernels reach through the steps.
MIN_STEP_KERNELS, MIN_REACH = 0.8, 0.9
CHOOSES = re.compile(r"multinomial|top_?k|argm(?:ax|in)", re.IGNORECASE)  # kernels that choose a token
FORWARD, BACKWARD = re.compile(r"fwd|forward", re.IGNORECASE), re.compile(r"bwd|backward|grad", re.IGNORECASE)


class Period(NamedTuple):
    """The repetitions of a launch sequence at one level.

    Repetition i has the launches [first[i], last[i]) and lasts from `start[i]` to `end[i]`. `confidence` is 0 to 1.
    `first_loop` is the number of repetitions of the first of several loops.
    """

    first: Times
    last: Times
    start: Times
    end: Times
    confidence: float
    first_loop: int | None = None


def find_loops(sequence: LaunchSequence, training: bool | None = None) -> tuple[Period | None, list[PeriodLevel]]:
    """Return the iterations of all loops that follow each other, and the other levels that repeat (see find_periods).

    Another loop counts if it takes more than MIN_LOOP of the GPU time. A capture that holds the forward pass of a
    training alone has no step.
    """
    period, levels = (None, []) if training and _is_forward_alone(sequence) else find_periods(sequence, training)
    if period is None:
        return None, []
    loops, count, gpu_ns = [period], len(sequence.symbol), int(sequence.gpu_ns.sum())
    stretches = [(0, int(period.first[0])), (int(period.last[-1]), count)]
    while stretches:
        begin, stop = stretches.pop()
        launches = sequence.between(begin, stop)
        if int(launches.gpu_ns.sum()) <= MIN_LOOP * gpu_ns:
            continue
        loop, _ = find_periods(launches, training)
        if loop is not None:
            loop = loop._replace(first=loop.first + begin, last=loop.last + begin)
            stretches += [(begin, int(loop.first[0])), (int(loop.last[-1]), stop)]
            loops.append(loop)
    loops.sort(key=lambda loop: int(loop.first[0]))
    first, last, start, end = (
        np.concatenate([getattr(loop, name) for loop in loops]) for name in ("first", "last", "start", "end")
    )
    return Period(first, last, start, end, period.confidence, len(loops[0].first)), levels


def _is_forward_alone(sequence: LaunchSequence) -> bool:
    """Return whether kernels are named after a forward pass and none after a backward pass: they repeat by layers."""
    names = [sequence.names[code] for code in np.unique(sequence.name)]
    return any(map(FORWARD.search, names)) and not any(map(BACKWARD.search, names))


def find_periods(sequence: LaunchSequence, training: bool | None = None) -> tuple[Period | None, list[PeriodLevel]]:
    """Return the iterations, or None where nothing repeats for sure, and the other levels that repeat.

    `training` states whether the program trains a model; None if that is unknown or it has none.
    """
    if len(sequence.symbol) < MIN_REPEATS:
        return None, []
    levels = left = repeating_levels(sequence)
    for _ in range(MAX_TRIED):
        chosen = choose_level(left)
        if chosen is None:
            return None, []
        period = _cut_into_iterations(sequence, chosen)
        if training is False and _are_layers(sequence, chosen, period):
            return None, []
        confident = len(period.first) >= MIN_REPEATS and period.confidence >= MIN_CONFIDENCE
        if confident and not (training and _are_parts_of_step(sequence, period)):
            break
        left = [level for level in left if level is not chosen]
    else:
        return None, []
    passes = _passes_over_model(sequence, chosen, period) if training is False else None
    if passes is not None:
        return passes, [level for level in levels if level.worth >= MIN_LISTED_WORTH][:MAX_LISTED]
    if chosen.length <= MAX_SHORT:
        period = _grouped_by_pause(sequence, period)
    others = [level for level in levels if level is not chosen and level.worth >= MIN_LISTED_WORTH]
    if chosen.length <= MAX_SHORT and sequence.stream.min() < sequence.stream.max():
        # One kernel over and over again: a loop over streams shows in the streams.
        rounds = choose_level(repeating_levels(sequence.by_stream()))
        others = [rounds, *others] if rounds is not None and rounds.length > chosen.length else others
    return period, others[:MAX_LISTED]


def _cut_into_iterations(sequence: LaunchSequence, level: PeriodLevel) -> Period:
    """Cut the sequence into iterations, each beginning after the longest pause, and leave out other phases."""
    hashes = pattern_hashes(sequence.symbol)
    places = np.flatnonzero(hashes[level.anchor.length] == level.anchor.pattern)
    pauses = np.concatenate([np.zeros(1, np.int64), sequence.pauses()])
    first = _starts_after_pause(len(sequence.symbol), hashes, places, level.length, pauses)
    last = np.append(first[1:], min(int(first[-1]) + level.length, len(sequence.symbol)))
    whole = _content(sequence, first, last, level.length) >= MIN_WHOLE
    own = _without_strays(first[whole], last[whole], level.length)
    first, last = first[whole][own], last[whole][own]
    done = np.roll(sequence.begin[first] - pauses[first], -1)
    end = _iteration_ends(sequence, last, typical_pause(sequence.begin[first], done) or 0)
    return Period(first, last, sequence.begin[first], end, _confidence(sequence, level, first, last))


def _without_strays(first: Times, last: Times, length: int) -> slice:
    """Return the repetitions without one or two at either end that are beyond many launches of something else.

    They belong to another loop, such as the outputs of a production run after an equilibration.
    """
    far = np.flatnonzero(first[1:] - last[:-1] >= MIN_NESTED * length) + 1
    runs = np.diff(np.concatenate([[0], far, [len(first)]]))
    loops = np.flatnonzero(runs >= MIN_REPEATS)
    if len(loops) == 0:
        return slice(None)
    return slice(int(runs[: loops[0]].sum()), int(runs[: loops[-1] + 1].sum()))


def _confidence(sequence: LaunchSequence, level: PeriodLevel, first: Times, last: Times) -> float:
    """Return the confidence, 0 to 1, that the repetitions are iterations: few, unequal or short ones may not be.

    Few repetitions are less certain in a small share of the run than in all of it.
    """
    short = level.length <= MAX_SHORT and not sequence.graph[first[0] : last[0]].any()
    outside = (1 - level.score) * DOUBT_OUTSIDE * (2 if short else 1)
    few = DOUBT_SHORT if short and not _computes_and_talks(sequence, first, last) else DOUBT
    doubt = (few + outside) / max(len(first) - 1, 1)
    confidence = (level.regularity + level.similarity) / 2 * max(1 - doubt, 0)
    return confidence * SHORT_CONFIDENCE if short else confidence


def _computes_and_talks(sequence: LaunchSequence, first: Times, last: Times) -> bool:
    """Return whether most repetitions talk to the host and compute: they are whole passes over some data."""
    talks, computes = (np.append(0, np.cumsum(marks)) for marks in (sequence.talks, sequence.computes))
    passes = (talks[last] > talks[first]) & (computes[last] > computes[first]) & (last - first >= MIN_PASS)
    return bool(np.mean(passes) >= MIN_WHOLE)


def _are_layers(sequence: LaunchSequence, level: PeriodLevel, period: Period) -> bool:
    """Return whether the repetitions are the layers of one pass over a model.

    They are few and short and do not talk to the host. The pass has launches of its own before or after them, which
    compute, and between which and the layers nothing is copied or waited for. A loop over passes has none.
    """
    short = MIN_LAYER <= level.length <= MAX_LAYER and len(period.first) <= MAX_LAYERS
    if not short or level.talking > MAX_TALKING_LAYERS:
        return False
    first, last = int(period.first[0]), max(int(level.places[-1]), int(period.first[-1]))
    own = sequence.computes & ~np.isin(sequence.symbol, sequence.symbol[first : int(period.first[-1])])
    talks = np.flatnonzero(sequence.talks)
    before = int(talks[np.searchsorted(talks, first, side="right") - 1]) if len(talks) and talks[0] <= first else 0
    before = 0 if first <= level.length else before  # the embedding may read a flag of the mask
    after = int(np.append(talks, len(own))[np.searchsorted(talks, last, side="right")])
    return bool(own[last:after].any()) or int(np.count_nonzero(own[before:first])) >= MIN_EXTRA


def _passes_over_model(sequence: LaunchSequence, level: PeriodLevel, period: Period) -> Period | None:
    """Return the passes over a model if they have many of the repetitions each, which are layers then.

    A pass uploads its input and reads its result, or ends with the choice of a token.
    """
    if level.talking > MAX_TALKING_LAYERS:
        return None
    used = np.unique(sequence.name)
    ends = np.isin(sequence.name, [code for code in used.tolist() if CHOOSES.search(sequence.names[code])])
    return _passes(sequence, level, period, sequence.talks, MIN_NESTED) or _passes(
        sequence, level, period, ends, MIN_GROUPED
    )


def _passes(
    sequence: LaunchSequence, level: PeriodLevel, period: Period, marks: NDArray[np.bool_], least: int
) -> Period | None:
    """Return the even stretches between marks, of `least` repetitions or more, if they take most of the period."""
    places = np.flatnonzero(marks)
    borders = places[np.diff(places, prepend=-level.length) > max(level.length, MAX_SHORT)]
    is_result = np.array([sequence.names[code] == "memcpy d2h" for code in sequence.name[borders].tolist()], np.bool_)
    first = np.append(borders + is_result, len(sequence.symbol))
    length = np.diff(first)
    passes = length >= least * level.length
    first, length = first[:-1][passes], length[passes]
    even = np.abs(length - np.median(length)) * LOOSE <= np.median(length) if len(length) else passes[:0]
    if len(first) < MIN_REPEATS or not even.all() or length.sum() < MIN_WHOLE * int(period.last[-1] - period.first[0]):
        return None
    last = first + length
    end = _iteration_ends(sequence, last, 0)
    return Period(first, last, sequence.begin[first], end, SHORT_CONFIDENCE * (1 - 1 / (2 * len(first))))


def _are_parts_of_step(sequence: LaunchSequence, period: Period) -> bool:
    """Return whether the repetitions lack what each step of a training has: they are layers of a few steps.

    Layers of the forward have no kernels of the backward, and each kernel of a step recurs in all steps.
    """
    number, count = np.full(len(sequence.symbol), -1), len(period.first)
    length = period.last - period.first
    number[index_ranges(period.first, length)] = np.repeat(np.arange(count), length)
    gpu_ns = np.where(sequence.computes, sequence.gpu_ns, 0)
    total = np.zeros(int(sequence.symbol.max()) + 1, np.int64)
    np.add.at(total, sequence.symbol, gpu_ns)
    inside = number >= 0
    symbol, number = sequence.symbol[inside], number[inside]
    earliest, latest = np.full(len(total), count), np.full(len(total), -1)
    np.minimum.at(earliest, symbol, number)
    np.maximum.at(latest, symbol, number)
    recurs = latest >= 0
    own = total[recurs].sum()
    reach = (total * (latest - earliest + 1))[recurs].sum() / max(count * own, 1)
    return bool(own < MIN_STEP_KERNELS * total.sum() or reach < MIN_REACH)


def _grouped_by_pause(sequence: LaunchSequence, period: Period) -> Period:
    """Return the groups of short repetitions that longer pauses separate, if these have regular sizes; else the period.

    A loop around a loop has the same launches in each pass, so only the pause between two passes separates them.
    """
    pause = np.concatenate([np.zeros(1, np.int64), sequence.pauses()])[period.first]
    ordered = np.maximum(np.sort(pause[1:])[len(pause) // 3 :], MIN_PAUSE)
    if len(ordered) < 2 * MIN_REPEATS or sequence.graph[period.first[0] : period.last[0]].any():
        return period
    jumps = ordered[1:-MIN_REPEATS] / ordered[: -MIN_REPEATS - 1]
    widest = int(np.argmax(jumps))
    if jumps[widest] < MIN_JUMP:
        return period
    begin = np.append(0, np.flatnonzero(pause[1:] > ordered[widest]) + 1)
    size = np.diff(begin)
    typical = int(np.median(size))
    regular = float(np.mean(np.abs(size - typical) <= typical // STRICT))
    if typical < 2 or regular < MIN_REGULAR:
        return period
    ends = np.append(begin[1:], len(pause)) - 1
    confidence = SHORT_CONFIDENCE * regular * (1 - 1 / (2 * len(size)))
    return Period(period.first[begin], period.last[ends], period.start[begin], period.end[ends], confidence)


def _starts_after_pause(count: int, hashes: Mapping[int, Patterns], places: Times, length: int, pauses: Times) -> Times:
    """Return where the iterations of `count` launches begin: after the longest typical pause up to their anchors."""
    begin = _choose_begin(count, hashes, places, length, pauses)
    previous = np.append(max(int(places[0]) - 3 * length, -1), places[:-1])
    first: Times = np.maximum(places - begin.back, previous + 1)
    if begin.length:
        # Launches may be missing or inserted before the anchor, so look for the pattern that begins an iteration.
        matches = np.flatnonzero(hashes[begin.length] == begin.pattern)
        latest = np.searchsorted(matches, places, side="right") - 1
        match = matches[np.maximum(latest, 0)]
        first = np.where((latest >= 0) & (match > previous), match, first)
    return first


class _Begin(NamedTuple):
    """A pattern that may begin the iterations: the pause before it, and how many launches before the anchor it is.

    `length` is 0 if no pattern is known.
    """

    pause: int
    back: int
    length: int = 0
    pattern: int = 0


class _Begins(NamedTuple):
    """The patterns of `length` launches that occur about once in each iteration: one value per pattern."""

    length: int
    pattern: Times
    pause: Times
    back: Times

    def best(self, low: int, high: int) -> _Begin:
        """Return the pattern with the longest pause from `low` to `high` launches before the anchor."""
        allowed = np.flatnonzero((self.back >= low) & (self.back <= high))
        if len(allowed) == 0:
            return _Begin(-1, 0)
        best = allowed[np.argmax(self.pause[allowed])]
        return _Begin(int(self.pause[best]), int(self.back[best]), self.length, int(self.pattern[best]))


def _choose_begin(count: int, hashes: Mapping[int, Patterns], places: Times, length: int, pauses: Times) -> _Begin:
    distance = np.diff(places)
    regular = places[1:][np.abs(distance - length) <= max(length // 10, 1)]
    rows = int(np.clip(MAX_COMPARED_LAUNCHES // length, 3, MAX_COMPARED))
    regular = regular[np.linspace(0, len(regular) - 1, min(rows, len(regular))).astype(np.int64)]
    begins = [_begin_patterns(values, size, regular, length, pauses) for size, values in hashes.items()]

    def best_begin(low: int, high: int) -> _Begin:
        return max((each.best(low, high) for each in begins), key=lambda begin: begin.pause)

    best = best_begin(0, length)
    # Launches before the first anchor and after the last one may belong to complete iterations too.
    low, high = length - (count - int(places[-1])), min(int(places[0]), length - 1)
    slack = int(length * SLACK)
    whole = max(best_begin(low, high), best_begin(low - slack, high + slack), key=lambda begin: begin.pause)
    if abs(high - low) <= slack:
        # All launches belong to iterations, so the first launch begins one.
        return whole if whole.length else _Begin(0, high)
    return whole if whole.length and whole.pause * MAX_PAUSE_RATIO >= best.pause else best


def _begin_patterns(values: Patterns, size: int, anchors: Times, length: int, pauses: Times) -> _Begins:
    """Return the patterns that occur once before most anchors, with their median pauses and distances."""
    back = np.broadcast_to(np.arange(length), (len(anchors), length))
    at = anchors[:, None] - back
    known = (at >= 0) & (at < len(values))
    pattern = values[at[known]].astype(np.int64) << PATTERN_SHIFT
    limit = (1 << PATTERN_SHIFT) - 1
    by_pause = np.sort(pattern | np.minimum(pauses[at[known]], limit))
    by_back = np.sort(pattern | back[known])
    first = np.flatnonzero(np.diff(by_pause >> PATTERN_SHIFT, prepend=-1))
    count = np.diff(first, append=len(by_pause))
    once = (count >= MIN_SAME * len(anchors)) & (count <= MAX_SAME * len(anchors))
    middle = (first + count // 2)[once]
    return _Begins(size, by_pause[middle] >> PATTERN_SHIFT, by_pause[middle] & limit, by_back[middle] & limit)


def _content(sequence: LaunchSequence, first: Times, last: Times, usual: int) -> NDArray[np.float64]:
    """Return the share of the typical repetition's launches that each repetition has.

    The typical one has the median length; if it computes nothing, the one with `usual` launches: most repetitions are
    then copies of weights, which begin as each step does.
    """
    symbol, length = sequence.symbol, last - first
    middle = np.argsort(np.abs(np.arange(len(length)) - len(length) // 2), kind="stable")
    for wanted_length in (np.median(length), usual):
        typical = int(middle[np.argmin(np.abs(length - wanted_length)[middle])])
        if sequence.computes[first[typical] : last[typical]].any():
            break
    kinds, wanted = np.unique(symbol[first[typical] : last[typical]], return_counts=True)
    number = np.full(int(symbol.max()) + 1, len(kinds))
    number[kinds] = np.arange(len(kinds))
    rows = np.repeat(np.arange(len(length)), length) * (len(kinds) + 1) + number[symbol[index_ranges(first, length)]]
    counts = np.bincount(rows, minlength=len(length) * (len(kinds) + 1)).reshape(len(length), -1)[:, :-1]
    content: NDArray[np.float64] = np.minimum(counts, wanted).sum(axis=1) / wanted.sum()
    return content


def _iteration_ends(sequence: LaunchSequence, last: Times, pause: int) -> Times:
    """Return when each iteration ends: where the next launch begins, the last one after a typical pause."""
    count = len(sequence.begin)
    end = sequence.begin[np.minimum(last, count - 1)]
    final = int(sequence.end[: int(last[-1])].max()) + pause
    end[-1] = final if last[-1] == count else min(final, int(end[-1]))
    return end


def period_name(sequence: LaunchSequence, first: int, last: int) -> str:
    """Return a readable name for a period: its number of launches, and the operation with the most GPU time."""
    own = [sequence.names[code] for code in sequence.name[first:last].tolist()]
    launches = pl.DataFrame({"name": own, "gpu_ns": sequence.gpu_ns[first:last]})
    totals = launches.group_by("name").agg(pl.col("gpu_ns").sum()).sort(["gpu_ns", "name"], descending=[True, False])
    count = last - first
    return f"period of {count} launch{'' if count == 1 else 'es'} ({totals['name'][0]})"


def level_candidate(sequence: LaunchSequence, level: PeriodLevel) -> IterationCandidate:
    """Return a level that is not the iteration in the form that reports show."""
    first, last = level.places[0], level.places[-1]
    middle = len(level.places) // 2
    return IterationCandidate(
        period_name(sequence, int(level.places[middle - 1]), int(level.places[middle])),
        "period",
        len(level.places),
        int(sequence.begin[last] - sequence.begin[first]) // (len(level.places) - 1),
        level.score,
    )
