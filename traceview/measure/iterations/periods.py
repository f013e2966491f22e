"""Iterations of a program without ranges: the repeating unit of its launches (docs/definitions.md "Iterations")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, index_ranges
from traceview.measure.iterations.launches import LaunchSequence
from traceview.measure.iterations.levels import PeriodLevel, choose_level, repeating_levels
from traceview.measure.iterations.patterns import MIN_REPEATS, Patterns, pattern_hashes
from traceview.model.analysis import IterationCandidate

MIN_CONTENT = 0.6  # share of the typical launches that an iteration has
MAX_COMPARED = 48  # iterations whose pauses are compared
MAX_COMPARED_LAUNCHES = 1 << 18
MIN_CONFIDENCE = 0.5
SLACK = 0.05
MIN_LISTED_SCORE, MAX_LISTED = 0.5, 4
MAX_SHORT, SHORT_CONFIDENCE = 4, 0.75  # a period of so few launches may be part of an iteration


@dataclass(frozen=True, slots=True)
class Period:
    """The repetitions of a launch sequence at one level.

    Repetition i has the launches [first[i], last[i]) and lasts from `start[i]` to `end[i]`. `confidence` is 0 to 1.
    """

    first: Times
    last: Times
    start: Times
    end: Times
    confidence: float


def find_periods(sequence: LaunchSequence) -> tuple[Period | None, list[PeriodLevel]]:
    """Return the iterations, or None where nothing repeats for sure, and the other levels that repeat."""
    if len(sequence.symbol) < MIN_REPEATS:
        return None, []
    levels = repeating_levels(sequence)
    chosen = choose_level(levels)
    if chosen is None:
        return None, []
    period = _cut(sequence, chosen)
    if len(period.first) < MIN_REPEATS or period.confidence < MIN_CONFIDENCE:
        return None, []
    others = [level for level in levels if level is not chosen and level.score >= MIN_LISTED_SCORE]
    if chosen.length <= MAX_SHORT and sequence.stream.min() < sequence.stream.max():
        # One kernel over and over again: a loop over streams shows in the streams.
        rounds = choose_level(repeating_levels(sequence.by_stream()))
        others = [rounds, *others] if rounds is not None and rounds.length > chosen.length else others
    return period, others[:MAX_LISTED]


def _cut(sequence: LaunchSequence, level: PeriodLevel) -> Period:
    """Cut the sequence into iterations, each beginning after the longest pause, and leave out other phases."""
    hashes = pattern_hashes(sequence.symbol)
    places = np.flatnonzero(hashes[level.anchor.length] == level.anchor.pattern)
    pauses = np.concatenate([np.zeros(1, np.int64), sequence.pauses()])
    first = _starts_after_pause(sequence.symbol, hashes, places, level.length, pauses)
    last = np.append(first[1:], min(int(first[-1]) + level.length, len(sequence.symbol)))
    whole = _content(sequence.symbol, first, last) >= MIN_CONTENT
    first, last = first[whole], last[whole]
    end = _ends(sequence, last, int(np.median(pauses[first])))
    return Period(first, last, sequence.begin[first], end, _confidence(sequence, level, first, last))


def _confidence(sequence: LaunchSequence, level: PeriodLevel, first: Times, last: Times) -> float:
    """Return how sure it is that the repetitions are iterations: few, unequal or short ones may be something else."""
    confidence = (level.regularity + level.similarity) / 2 * (1 - 1 / (2 * max(len(first) - 1, 1)))
    short = level.length <= MAX_SHORT and not sequence.graph[first[0] : last[0]].any()
    return confidence * SHORT_CONFIDENCE if short else confidence


def _starts_after_pause(
    symbol: NDArray[np.int64], hashes: Mapping[int, Patterns], places: Times, length: int, pauses: Times
) -> Times:
    """Return where each iteration begins: at the launch after the longest typical pause, up to its anchor."""
    distance = np.diff(places)
    regular = places[1:][np.abs(distance - length) <= max(length // 10, 1)]
    if len(regular) == 0:
        return places
    count = int(np.clip(MAX_COMPARED_LAUNCHES // length, 3, MAX_COMPARED))
    regular = regular[np.linspace(0, len(regular) - 1, min(count, len(regular))).astype(np.int64)]
    middle = int(regular[len(regular) // 2])
    before = np.maximum(regular[:, None] - np.arange(length), 0)
    same = symbol[before] == symbol[np.maximum(middle - np.arange(length), 0)]
    typical = np.median(np.where(same, pauses[before], 0), axis=0)
    # Launches before the first anchor and after the last one belong to complete iterations too.
    complete = np.arange(length) <= places[0]
    complete &= np.arange(length) >= length - (len(symbol) - places[-1]) * (1 + SLACK)
    if complete.any():
        typical[~complete] = -1
    back = int(np.argmax(typical))
    previous = np.append(max(int(places[0]) - 3 * length, -1), places[:-1])
    first: Times = np.maximum(places - back, previous + 1)
    for pattern in hashes.values():
        # Launches may be missing or inserted before the anchor, so look for the pattern that begins an iteration.
        if middle - back < len(pattern) and _is_unique(pattern, middle - back, middle - length, middle):
            begins = np.flatnonzero(pattern == pattern[middle - back])
            latest = np.searchsorted(begins, places, side="right") - 1
            begin = begins[np.maximum(latest, 0)]
            first = np.where((latest >= 0) & (begin > previous), begin, first)
            break
    return first


def _is_unique(pattern: Patterns, place: int, first: int, last: int) -> bool:
    """Return whether the pattern at a place occurs once in (first, last]."""
    return bool(np.count_nonzero(pattern[max(first + 1, 0) : last + 1] == pattern[place]) == 1)


def _content(symbol: NDArray[np.int64], first: Times, last: Times) -> NDArray[np.float64]:
    """Return the share of the typical repetition's launches that each repetition has."""
    length = last - first
    middle = np.argsort(np.abs(np.arange(len(length)) - len(length) // 2), kind="stable")
    typical = int(middle[np.argmin(np.abs(length - np.median(length))[middle])])
    kinds, wanted = np.unique(symbol[first[typical] : last[typical]], return_counts=True)
    number = np.full(int(symbol.max()) + 1, len(kinds))
    number[kinds] = np.arange(len(kinds))
    rows = np.repeat(np.arange(len(length)), length) * (len(kinds) + 1) + number[symbol[index_ranges(first, length)]]
    counts = np.bincount(rows, minlength=len(length) * (len(kinds) + 1)).reshape(len(length), -1)[:, :-1]
    content: NDArray[np.float64] = np.minimum(counts, wanted).sum(axis=1) / wanted.sum()
    return content


def _ends(sequence: LaunchSequence, last: Times, pause: int) -> Times:
    """Return when each iteration ends: where the next launch begins, the last one after a typical pause."""
    count = len(sequence.begin)
    end = sequence.begin[np.minimum(last, count - 1)]
    final = int(sequence.end[: int(last[-1])].max()) + pause
    end[-1] = final if last[-1] == count else min(final, int(end[-1]))
    return end


def period_name(sequence: LaunchSequence, names: pl.Series, first: int, last: int) -> str:
    """Return a readable name for a period: its number of launches, and the name with the most GPU time."""
    part = pl.DataFrame({"name": names[first:last], "gpu_ns": sequence.gpu_ns[first:last]})
    totals = part.group_by("name").agg(pl.col("gpu_ns").sum()).sort(["gpu_ns", "name"], descending=[True, False])
    count = last - first
    return f"period of {count} launch{'' if count == 1 else 'es'} ({totals['name'][0]})"


def level_candidate(sequence: LaunchSequence, names: pl.Series, level: PeriodLevel) -> IterationCandidate:
    """Return a level that is not the iteration as reports show it."""
    first, last = level.places[0], level.places[-1]
    middle = len(level.places) // 2
    return IterationCandidate(
        period_name(sequence, names, int(level.places[middle - 1]), int(level.places[middle])),
        "period",
        len(level.places),
        int(sequence.begin[last] - sequence.begin[first]) // (len(level.places) - 1),
        level.score,
    )
