"""Kinds of iterations: groups that differ in what they launch, or in length (docs/definitions.md "Iterations").

Iterations with the same kernels form one group, and groups of nearly the same length are joined. A group is divided
where its lengths leave a wide gap. A single iteration that is much longer than all others is a group of its own.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.measure.iterations.times import IterationLaunches, IterationTimes, spread
from traceview.model.analysis import IterationKind
from traceview.model.units import quantity

MAX_KINDS = 4
MIN_KNOWN = 0.8  # share of the iterations whose contents others have, too
MIN_DIFFERENCE = 1.15  # ratio of the lengths of groups with different contents
MIN_GAP = 1.5  # ratio of the lengths on both sides of a gap
MIN_COUNT, MIN_TIME = 0.1, 0.05  # a group has this share of the iterations or of the time
MIN_STALL, STALL_TIME = 2.0, 0.1  # length of a stall over the next longest iteration, and its share of the time

Rows = NDArray[np.intp]


def iteration_kinds(
    times: IterationTimes, work: IterationLaunches, first_loop: int | None = None
) -> tuple[IterationKind, ...]:
    """Return the kinds of the counted iterations in the order of their first ones; empty if all are of one kind.

    `work` is what all iterations launch. `first_loop` is the number of all iterations of the first of several loops.
    The last one is of no kind where its end is unknown (IterationTimes.last_is_known).
    """
    lengths, skipped = times.lengths, times.skipped
    total = max(int(lengths.sum()), 1)
    if not times.last_is_known:
        lengths = lengths[:-1]
    if np.mean(lengths == 0) >= MIN_COUNT:
        return ()  # several iterations run at once on their streams, and some end together
    names, count = (each[skipped : skipped + len(lengths)] for each in (work.names, work.kernels))
    if not count.any():
        return ()  # nothing is known of what they do
    groups = []
    for loop in _loops(names, (first_loop or 0) - skipped):
        contents = [loop[own] for own in _by_contents(lengths[loop], names[loop])]
        groups += _join_nearest([rows for group in contents for rows in _by_length(group, lengths)], lengths)
    groups = _without_pauses(_join_nearest(groups, lengths))
    if len(groups) < 2:
        return ()
    groups.sort(key=lambda rows: int(rows[0]))
    launches = [int(np.median(count[rows])) for rows in groups]
    return tuple(
        IterationKind(
            count=len(rows),
            share=int(lengths[rows].sum()) / total,
            time_ns=spread(lengths[rows]),
            differs=_difference(rows, len(lengths), own, launches),
            first=int(rows[0]) + skipped,
            longest=int(rows[np.argmax(lengths[rows])]) + skipped,
            mean_ns=int(lengths[rows].sum()) // len(rows),
        )
        for rows, own in zip(groups, launches, strict=True)
    )


def _loops(names: Times, first: int) -> list[Rows]:
    """Return the iterations of the first loop and of the others; all together unless both mostly do something else."""
    everything = np.arange(len(names))
    loops = np.split(everything, [min(max(first, 0), len(names))])
    usual = set()
    for loop in loops:
        values, counts = np.unique(names[loop], return_counts=True)
        usual.add(int(values[counts.argmax()]) if 2 * counts.max(initial=0) > len(loop) else None)
    return loops if len(usual) == len(loops) and None not in usual else [everything]


def _by_contents(lengths: Times, names: Times) -> list[Rows]:
    """Return the groups of iterations with different contents and lengths, each in ascending order."""
    everything = np.arange(len(lengths))
    _, group, count = np.unique(names, return_inverse=True, return_counts=True)
    known = np.flatnonzero(count > 1)
    if len(known) < 2 or count[known].sum() < MIN_KNOWN * len(lengths):
        return [everything]
    groups = [np.flatnonzero(group == code) for code in known]
    groups.sort(key=lambda rows: float(np.median(lengths[rows])))
    joined = [groups[0]]
    for rows in groups[1:]:
        if _are_apart(lengths[joined[-1]], lengths[rows]):
            joined.append(rows)
        else:
            joined[-1] = np.concatenate([joined[-1], rows])
    middle = np.array([np.median(lengths[rows]) for rows in joined])
    rare = np.flatnonzero(np.isin(group, known, invert=True))
    nearest = np.argmin(np.abs(lengths[rare][:, None] - middle), axis=1) if len(rare) else rare
    return [np.sort(np.concatenate([rows, rare[nearest == place]])) for place, rows in enumerate(joined)]


def _are_apart(shorter: Times, longer: Times) -> bool:
    """Return whether the lengths of two groups differ, and most of one group are below most of the other."""
    low, high = spread(shorter), spread(longer)
    return high.median >= MIN_DIFFERENCE * low.median and high.p5 > low.median and high.median > low.p95


def _by_length(rows: Rows, lengths: Times) -> list[Rows]:
    """Divide a group of iterations where its lengths leave the widest gap, again and again; a small one stays whole."""
    if len(rows) < MIN_COUNT * len(lengths):
        return [rows]
    total = int(lengths.sum())
    order = rows[np.argsort(lengths[rows], kind="stable")]
    ordered = np.maximum(lengths[order], 1)
    gaps = ordered[1:] / ordered[:-1]
    for place in np.argsort(-gaps, kind="stable"):
        if gaps[place] < MIN_GAP:
            break
        if _is_border(ordered, int(place) + 1, total):
            halves = (np.sort(order[: place + 1]), np.sort(order[place + 1 :]))
            return [group for half in halves for group in _by_length(half, lengths)]
    return [rows]


def _is_border(ordered: Times, place: int, total: int) -> bool:
    """Return whether both sides of a gap are groups: large enough, and narrow compared with the gap."""
    low, high = ordered[:place], ordered[place:]
    if len(high) == 1:
        return bool(high[0] >= MIN_STALL * low[-1] and high[0] - low[-1] >= STALL_TIME * total)
    if min(len(low), len(high)) < 2 or not all(_is_large(side, len(ordered), total) for side in (low, high)):
        return False
    widest = max(_width(low), _width(high))
    return bool(high[0] / low[-1] >= widest)


def _width(ordered: Times) -> float:
    """Return the ratio of the long to the short iterations of a group."""
    known = spread(ordered)
    return known.p95 / max(known.p5, 1)


def _join_nearest(groups: list[Rows], lengths: Times) -> list[Rows]:
    """Return at most MAX_KINDS groups: small ones, and then those of the most similar lengths, are joined."""
    groups = sorted(groups, key=lambda rows: float(np.median(lengths[rows])))
    while len(groups) > 1:
        middle = [max(float(np.median(lengths[rows])), 1.0) for rows in groups]
        ratio = np.array([high / low for low, high in pairwise(middle)])
        small = np.array([not _is_large(lengths[rows], len(lengths), int(lengths.sum())) for rows in groups])
        joins = small[1:] | small[:-1]
        if len(groups) <= MAX_KINDS and not joins.any():
            break
        place = int(np.argmin(np.where(joins | ~joins.any(), ratio, np.inf)))
        groups[place : place + 2] = [np.sort(np.concatenate(groups[place : place + 2]))]
    return groups


def _is_large(lengths: Times, count: int, total: int) -> bool:
    """Return whether iterations of these lengths are a tenth of `count`, or take a twentieth of the `total` ns."""
    return len(lengths) >= MIN_COUNT * count or int(lengths.sum()) >= MIN_TIME * total


def _without_pauses(groups: list[Rows]) -> list[Rows]:
    """Join each single iteration between two loops of other kinds to the loop before: a pause makes it long."""
    for single in [rows for rows in groups if len(rows) == 1]:
        place, others = int(single[0]), [rows for rows in groups if rows is not single]
        before = [rows for rows in others if rows[-1] == place - 1 and len(rows) == rows[-1] - rows[0] + 1]
        after = [rows for rows in others if rows[0] == place + 1 and len(rows) == rows[-1] - rows[0] + 1]
        if before and after and len(before[0]) > 1 and len(after[0]) > 1:
            groups = [np.append(rows, place) if rows is before[0] else rows for rows in others]
    return groups


def _difference(rows: Rows, counted: int, launches: int, every: list[int]) -> str:
    """Return what is different in a kind: where its iterations are, and what they launch."""
    texts = [_places(rows, counted)]
    if len(set(every)) == 1:
        texts.append("the same kernels")
    elif launches:
        texts.append(quantity(launches, "kernel"))
    return ", ".join(text for text in texts if text)


def _places(rows: Rows, counted: int) -> str:
    """Return where the iterations of a kind are: "the first 16", "every 10th"."""
    count, first, last = len(rows), int(rows[0]), int(rows[-1])
    if last - first == count - 1:
        if count == 1:
            return "the first" if first == 0 else "the last" if last == counted - 1 else "a single one"
        if first == 0 or last == counted - 1:
            return f"the {'first' if first == 0 else 'last'} {count:,}"
        return f"{count:,} one after the other"
    distance = np.diff(rows)
    if count > 2 and (distance == distance[0]).all():
        return f"every {int(distance[0])}{_ending(int(distance[0]))}"
    return ""


def _ending(number: int) -> str:
    """Return the ending of an ordinal: "nd" for 2."""
    return "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
