"""Matches the collectives of different ranks, and splits them into the groups of ranks that ran them together.

If every call's communicator is known, collectives match by communicator and order. Otherwise they match by stream and
order, counted within each iteration. Streams of two ranks correspond if they run the same kinds of collectives; among
several such streams, the n-th ids correspond, because every rank creates its streams in the same order. An iteration
counts only if all ranks run the same kinds in the same order; nothing is matched beyond a difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.fleet import Clock, Fleet, RankResult
from traceview.model.frozen import dataclass
from traceview.ranks.collectives import BEFORE_ALL

Index = Times | NDArray[np.bool_] | slice
ALL = slice(None)
NONE = -1  # the number of an operation outside all matched collectives
PREFIX_BYTES = 8  # one int64: the kind of the first collective


@dataclass(frozen=True, slots=True)
class MatchedCollectives:
    """Collectives that several ranks ran together.

    `step` and `kind` have a value for each collective. `start`, `end` and `hidden` (see Collectives) have a row for
    each of `ranks` and a column for each collective. `how` is "communicator" or "order".
    """

    name: str
    how: str
    ranks: Times
    step: Times
    kind: NDArray[np.str_]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    hidden: NDArray[np.int64]

    @property
    def size(self) -> int:
        """The number of kernels: collectives times ranks."""
        return self.start.size

    def select(self, *, rows: Index = ALL, columns: Index = ALL) -> MatchedCollectives:
        """Return some of the collectives of some of the ranks."""
        times = {name: getattr(self, name)[rows][:, columns] for name in ("start", "end", "hidden")}
        return replace(self, ranks=self.ranks[rows], step=self.step[columns], kind=self.kind[columns], **times)

    def on_common_clock(self, clocks: Sequence[Clock]) -> MatchedCollectives:
        """Return the same collectives on the common clock; `clocks` has the clock of each of `ranks`."""
        start, end = (
            np.stack([clock.to_common(times) for clock, times in zip(clocks, rows, strict=True)])
            for rows in (self.start, self.end)
        )
        return replace(self, start=start, end=end)


@dataclass(frozen=True, slots=True)
class _ChannelSequence:
    """The collectives of one rank on one channel; a kind's number is the same on all ranks."""

    rank: int
    rows: Times
    step: Times
    kind: Times

    def kinds_by_step(self) -> dict[int, bytes]:
        """Return the kinds of each step, in order, as comparable bytes."""
        order = np.argsort(self.step, kind="stable")
        numbers, first = np.unique(self.step[order], return_index=True)
        parts = np.split(self.kind[order], first[1:])
        return {int(number): part.tobytes() for number, part in zip(numbers, parts, strict=True)}

    def select(self, chosen: NDArray[np.bool_] | slice) -> _ChannelSequence:
        """Return the chosen collectives."""
        return _ChannelSequence(self.rank, self.rows[chosen], self.step[chosen], self.kind[chosen])


def match_collectives(
    ranks: Sequence[RankResult], labels: Sequence[str], *, anchored: bool = True
) -> tuple[list[MatchedCollectives], list[str]]:
    """Return the matched collectives of all ranks, and notes on the others; `labels` name the ranks in notes.

    If not `anchored`, collectives are counted from the start of each capture instead of each iteration.
    """
    names = sorted({kind for rank in ranks for kind in rank.collectives.kinds})
    by_communicator = _all_communicators_known(ranks)
    matched: list[MatchedCollectives] = []
    notes: list[str] = []
    for name, sequences in _sequences_by_channel(ranks, names, by_communicator, anchored):
        for group in _agreeing_groups(sequences, name, labels, notes):
            how = "communicator" if by_communicator else "order"
            collectives = _stack_sequences(ranks, group, names, name, how)
            if len(collectives.step):
                matched.append(collectives)
    return matched, notes


def _all_communicators_known(ranks: Sequence[RankResult]) -> bool:
    channels = [channel for rank in ranks for channel in rank.collectives.channels]
    return bool(channels) and all(channel.communicator is not None for channel in channels)


def _sequences_by_channel(
    ranks: Sequence[RankResult], names: list[str], by_communicator: bool, anchored: bool
) -> list[tuple[str, list[_ChannelSequence]]]:
    """Return the ranks' sequences by channel, with the channel's name."""
    by_channel: dict[tuple[str, int], list[_ChannelSequence]] = defaultdict(list)
    for index, rank in enumerate(ranks):
        collectives = rank.collectives
        code = np.array([names.index(kind) for kind in collectives.kinds], np.int64)
        count: dict[str, int] = defaultdict(int)
        for place in sorted(range(len(collectives.channels)), key=lambda at: collectives.channels[at].stream):
            rows = np.flatnonzero(collectives.channel == place)
            kind = code[collectives.kind[rows]]
            kinds = ", ".join(names[number] for number in np.unique(kind))
            key = collectives.channels[place].communicator or kinds if by_communicator else kinds
            step = collectives.step[rows] if anchored else np.full(len(rows), BEFORE_ALL)
            by_channel[key, count[key]].append(_ChannelSequence(index, rows, step, kind))
            count[key] += 1
    return [
        (_channel_name(key, number, by_communicator), sequences)
        for (key, number), sequences in sorted(by_channel.items(), key=_channel_order)
    ]


def _channel_order(item: tuple[tuple[str, int], list[_ChannelSequence]]) -> tuple[int, str, int]:
    (key, number), sequences = item
    return min(sequence.rank for sequence in sequences), key, number


def _channel_name(key: str, number: int, by_communicator: bool) -> str:
    if by_communicator:
        return f"communicator {key}"
    return f"{key}, stream {number + 1}" if number else key


def _agreeing_groups(
    sequences: list[_ChannelSequence], name: str, labels: Sequence[str], notes: list[str]
) -> Iterator[list[_ChannelSequence]]:
    """Yield groups of sequences that agree, reduced to the steps in which they agree.

    A rank that differs from the majority in more than half of its steps is not part of the group; such ranks are then
    grouped with each other.
    """
    while len(sequences) > 1:
        variants = _distinct_variants(sequences)
        majority = _majority_kinds(variants)
        different = {
            index for index, (steps, _) in enumerate(variants) if _count_differing(steps, majority) * 2 > len(steps)
        }
        if len(different) == len(variants):
            break
        similar = [variant for index, variant in enumerate(variants) if index not in different]
        kept = [sequence for _, group in similar for sequence in group]
        if len(kept) > 1:
            yield _common_part(similar, name, notes)
        elif kept:
            notes.append(_unmatched_note(kept, name, labels))
        sequences = [sequence for index in sorted(different) for sequence in variants[index][1]]
    if sequences:
        notes.append(_unmatched_note(sequences, name, labels))


def _unmatched_note(sequences: list[_ChannelSequence], name: str, labels: Sequence[str]) -> str:
    listed = ", ".join(labels[sequence.rank] for sequence in sequences[:3]) + (", ..." if len(sequences) > 3 else "")
    return f"{name}: no other rank ran the collectives of {listed} in the same order"


Variant = tuple[dict[int, bytes], list[_ChannelSequence]]


def _distinct_variants(sequences: list[_ChannelSequence]) -> list[Variant]:
    """Return each distinct sequence once, with the ranks that have it; usually there is one."""
    groups: dict[object, list[_ChannelSequence]] = defaultdict(list)
    for sequence in sequences:
        groups[sequence.step.tobytes(), sequence.kind.tobytes()].append(sequence)
    return [(group[0].kinds_by_step(), group) for group in groups.values()]


def _majority_kinds(variants: list[Variant]) -> dict[int, bytes]:
    """Return the kinds that most ranks ran in each step."""
    votes: dict[int, dict[bytes, int]] = defaultdict(lambda: defaultdict(int))
    for steps, group in variants:
        for step, kinds in steps.items():
            votes[step][kinds] += len(group)
    return {step: max(sorted(counts), key=lambda kinds: counts[kinds]) for step, counts in votes.items()}


def _count_differing(steps: dict[int, bytes], majority: dict[int, bytes]) -> int:
    # Without iterations everything is one step, whose beginning may still agree.
    if set(steps) == {BEFORE_ALL}:
        return int(steps[BEFORE_ALL][:PREFIX_BYTES] != majority[BEFORE_ALL][:PREFIX_BYTES])
    return sum(kinds != majority[step] for step, kinds in steps.items())


def _common_part(variants: list[Variant], name: str, notes: list[str]) -> list[_ChannelSequence]:
    """Return the sequences without the iterations in which the ranks differ; a note counts those."""
    if len(variants) == 1:
        return variants[0][1]
    sequences = [sequence for _, group in variants for sequence in group]
    kinds_by_step = [steps for steps, _ in variants]
    if all(set(steps) == {BEFORE_ALL} for steps in kinds_by_step):
        return _common_prefix(kinds_by_step, sequences, name, notes)
    steps = set.intersection(*map(set, kinds_by_step))
    agreed = {step for step in steps if len({kinds[step] for kinds in kinds_by_step}) == 1}
    differ = sorted(steps - agreed)
    missing = set.union(*map(set, kinds_by_step)) - steps
    if differ:
        where = "before the first iteration" if differ[0] == BEFORE_ALL else f"first in iteration {differ[0]}"
        notes.append(f"{name}: ranks ran different collectives in {len(differ)} iterations ({where}), left out")
    if missing - {BEFORE_ALL}:
        notes.append(f"{name}: {len(missing - {BEFORE_ALL})} iterations are not in all captures, left out")
    kept = np.array(sorted(agreed), np.int64)
    return [sequence.select(np.isin(sequence.step, kept)) for sequence in sequences]


def _common_prefix(
    kinds_by_step: list[dict[int, bytes]], sequences: list[_ChannelSequence], name: str, notes: list[str]
) -> list[_ChannelSequence]:
    """Return the sequences up to the first difference."""
    kinds = [np.frombuffer(steps[BEFORE_ALL], np.int64) for steps in kinds_by_step]
    shortest = min(map(len, kinds))
    same = np.all([row[:shortest] == kinds[0][:shortest] for row in kinds], axis=0)
    length = int(np.argmin(same)) if not same.all() else shortest
    notes.append(
        f"{name}: only the first {length} of each rank match, because later counts or kinds differ and iterations "
        "are unknown"
    )
    return [sequence.select(slice(length)) for sequence in sequences]


def _stack_sequences(
    ranks: Sequence[RankResult], group: list[_ChannelSequence], names: list[str], name: str, how: str
) -> MatchedCollectives:
    """Return sequences of equal length as one MatchedCollectives."""
    group = sorted(group, key=lambda sequence: sequence.rank)
    # Launch order and step order differ only if a launch crossed the border of an iteration; then the step decides.
    orders = [np.argsort(sequence.step, kind="stable") for sequence in group]
    rows = [sequence.rows[order] for sequence, order in zip(group, orders, strict=True)]
    collectives = [ranks[sequence.rank].collectives for sequence in group]
    start, end, hidden = (
        np.stack([getattr(own, column)[places] for own, places in zip(collectives, rows, strict=True)])
        for column in ("start", "end", "hidden")
    )
    return MatchedCollectives(
        name=name,
        how=how,
        ranks=np.array([sequence.rank for sequence in group], np.int64),
        step=collectives[0].step[rows[0]],
        kind=np.array(names)[group[0].kind[orders[0]]],
        start=start,
        end=end,
        hidden=hidden,
    )


# One rank sends or receives: it does not wait for the others, and they do not end together.
ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")
MAX_IMPOSSIBLE_SHARE = 100  # a group may have one impossible collective in this many
MIN_COLLECTIVES_FOR_CLOCKS = 4  # fewer collectives do not compare the clocks of two reports
# The ends of one collective on two H200 with a common clock differ by less than this (docs/fleet.md "Clocks").
MAX_END_DIFFERENCE_NS = 50_000
TRANSFER_SHARE = 20  # a twentieth of the transfer is the tolerance, if that is longer


def split_by_common_ends(
    matched: MatchedCollectives, report_of: Times, labels: Sequence[str], notes: list[str]
) -> Iterator[MatchedCollectives]:
    """Yield the parts of a match whose ranks end together, without rooted collectives.

    A match by communicator is one group. In a match by order, such as one of several tensor-parallel groups, ranks
    belong together if the difference of their ends is constant; ranks of one report share a clock, so it is near 0.
    `report_of` has the report of each rank.
    """
    rooted = np.isin(matched.kind, ROOTED)
    if rooted.any():
        count = np.count_nonzero(rooted)
        notes.append(f"{matched.name}: {count} rooted collectives left out, because they do not show waits")
        matched = matched.select(columns=~rooted)
    if len(matched.step) == 0:
        return
    if matched.how == "communicator":
        yield matched
        return
    reports = report_of[matched.ranks]
    if len(matched.step) < MIN_COLLECTIVES_FOR_CLOCKS and len(np.unique(reports)) > 1:
        notes.append(f"{matched.name}: left out, because {len(matched.step)} are too few to compare clocks")
        return
    for rows in _rows_with_common_ends(matched, reports):
        if len(rows) > 1:
            yield matched.select(rows=rows)
        else:
            label = labels[int(matched.ranks[rows[0]])]
            notes.append(f"{matched.name}: {label} left out, because it does not end together with any other rank")


def _rows_with_common_ends(matched: MatchedCollectives, reports: Times) -> Iterator[Times]:
    """Yield groups of rows that end together, each with the first row that is not yet in a group."""
    shortest = (matched.end - matched.start).min(axis=0)
    tolerance = max(MAX_END_DIFFERENCE_NS, int(np.median(shortest)) // TRANSFER_SHARE)
    rest = np.arange(len(matched.ranks))
    while len(rest):
        difference = matched.end[rest] - matched.end[rest[0]]
        median = np.median(difference, axis=1)
        spread = np.median(np.abs(difference - median[:, None]), axis=1)
        same_clock = reports[rest] == reports[rest[0]]
        joined = (spread <= tolerance) & (~same_clock | (np.abs(median) <= tolerance))
        yield rest[joined]
        rest = rest[~joined]


def rank_sets(groups: Sequence[Times], count: int) -> Times:
    """Return the number of each rank's set, from 0. Ranks of a group are in one set, also through others.

    With fewer than two such sets, all ranks are one set: ranks without matched collectives belong to the same run.
    With more, it is unknown to which run they belong, so they form a set of their own.
    """
    sets = np.arange(count, dtype=np.int64)
    for group in groups:
        sets[np.isin(sets, sets[group])] = sets[group].min()
    firsts, sizes = np.unique(sets, return_counts=True)
    if np.count_nonzero(sizes > 1) < 2:
        return np.zeros(count, np.int64)
    sets[np.isin(sets, firsts[sizes == 1])] = count
    numbers: Times = np.unique(sets, return_inverse=True)[1].astype(np.int64)
    return numbers


def set_notes(sets: Times) -> Iterator[str]:
    """Yield a note if there are several sets."""
    if (count := len(np.unique(sets))) > 1:
        yield (
            f"the ranks form {count:,} sets without common collectives, like different runs; each rank is compared "
            "within its own set"
        )


def collective_numbers(operations: pl.DataFrame, devices: Sequence[str], fleet: Fleet, report: int) -> Times:
    """Return the number of each operation's collective among all matched ones, NONE for other operations.

    `devices` has the ids of the report's devices. The fleet has the times of all collectives.
    """
    clock = fleet.clocks[report]
    numbers = np.full(len(operations), NONE, np.int64)
    device = operations["device"].to_numpy()
    start, end = (clock.to_common(operations[name].to_numpy()) for name in ("start", "end"))
    is_communication = (operations["class"] == "communication").to_numpy()
    first = 0
    for group in fleet.times:
        for row, rank in enumerate(group.ranks):
            if fleet.ranks[rank].report == report:
                rows = np.flatnonzero(is_communication & (device == devices.index(fleet.ranks[rank].device)))
                places = _places(group.start[row], group.end[row], start[rows], end[rows])
                known = places != NONE
                numbers[rows[known]] = first + places[known]
        first += len(group.kind)
    return numbers


def _places(start: Times, end: Times, kernel_start: Times, kernel_end: Times) -> Times:
    """Return the place of each kernel among the collectives with these times, or NONE."""
    order = np.lexsort((end, start))
    table = np.rec.fromarrays([start[order], end[order]])
    wanted = np.rec.fromarrays([kernel_start, kernel_end])
    place = np.minimum(np.searchsorted(table, wanted), max(len(order) - 1, 0))
    places: Times = np.where(table[place] == wanted, order[place], NONE) if len(order) else np.full(len(wanted), NONE)
    return places
