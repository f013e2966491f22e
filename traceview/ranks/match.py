"""Matches the collectives of different ranks, and splits them into the groups of ranks that ran them together.

If every call's communicator is known, collectives match by communicator and order. Otherwise they match by stream and
order, counted within each iteration. Streams of two ranks correspond if they run the same kinds of collectives; among
several such streams, the n-th ids correspond, because every rank creates its streams in the same order. An iteration
counts only if all ranks run the same kinds in the same order; nothing is matched beyond a difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.fleet import PackedColumn, RankResult
from traceview.ranks.collectives import BEFORE_ALL
from traceview.ranks.partials import ByKey, FleetReports, NumberedReports, SharedColumns, ranks_of

PREFIX_BYTES = 8  # one int64: the kind of the first collective


@dataclass(frozen=True, slots=True)
class MatchedCollectives:
    """Collectives that several ranks ran together; `places` are their rows in the collectives of each of `ranks`.

    Ranks with equal places share one column. `step` and `kind` have a value for each collective. `how` is
    "communicator" or "order".
    """

    name: str
    how: str
    ranks: Times
    places: tuple[PackedColumn, ...]
    step: Times
    kind: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of kernels: collectives times ranks."""
        return len(self.ranks) * len(self.step)

    def places_of(self, rows: Iterable[int]) -> dict[int, PackedColumn]:
        """Return the places of some rows of `ranks`, by rank."""
        return {int(self.ranks[row]): self.places[row] for row in rows}

    def select_ranks(self, rows: Times) -> MatchedCollectives:
        """Return the same collectives for some of the ranks; `rows` ascend and index `ranks`."""
        return replace(self, ranks=self.ranks[rows], places=tuple(self.places[row] for row in rows))

    def select_collectives(self, places: Times) -> MatchedCollectives:
        """Return some of the collectives; `places` ascend and index `step`."""
        distinct = {id(column): column for column in self.places}
        selected = {key: PackedColumn.pack(column.values()[places]) for key, column in distinct.items()}
        return replace(
            self,
            places=tuple(selected[id(column)] for column in self.places),
            step=self.step[places],
            kind=tuple(self.kind[place] for place in places),
        )


@dataclass(frozen=True, slots=True)
class _ChannelSequence:
    """The collectives of one rank on one channel; a kind's number is the same on all ranks."""

    rank: int
    rows: PackedColumn
    step: PackedColumn
    kind: PackedColumn

    def kinds_by_step(self) -> dict[int, bytes]:
        """Return the kinds of each step, in order, as comparable bytes."""
        step, kind = self.step.values(), self.kind.values()
        order = np.argsort(step, kind="stable")
        numbers, first = np.unique(step[order], return_index=True)
        parts = np.split(kind[order], first[1:])
        return {int(number): part.tobytes() for number, part in zip(numbers, parts, strict=True)}

    def select(self, mask: NDArray[np.bool_]) -> _ChannelSequence:
        """Return the collectives where `mask` is true."""
        rows, step, kind = (PackedColumn.pack(column.values()[mask]) for column in (self.rows, self.step, self.kind))
        return _ChannelSequence(self.rank, rows, step, kind)


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
    shared = SharedColumns()
    for index, rank in enumerate(ranks):
        collectives = rank.collectives
        code = np.array([names.index(kind) for kind in collectives.kinds], np.int64)
        channel, kinds_of_rows, steps = (collectives.column(name) for name in ("channel", "kind", "step"))
        count: dict[str, int] = defaultdict(int)
        for place in sorted(range(len(collectives.channels)), key=lambda at: collectives.channels[at].stream):
            rows = np.flatnonzero(channel == place)
            kind = code[kinds_of_rows[rows]]
            kinds = ", ".join(names[number] for number in np.unique(kind))
            key = collectives.channels[place].communicator or kinds if by_communicator else kinds
            step = steps[rows] if anchored else np.full(len(rows), BEFORE_ALL)
            by_channel[key, count[key]].append(_ChannelSequence(index, shared(rows), shared(step), shared(kind)))
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
        groups[sequence.step.key(), sequence.kind.key()].append(sequence)
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
    return [sequence.select(np.isin(sequence.step.values(), kept)) for sequence in sequences]


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
    return [sequence.select(np.arange(len(sequence.rows)) < length) for sequence in sequences]


def _stack_sequences(
    ranks: Sequence[RankResult], group: list[_ChannelSequence], names: list[str], name: str, how: str
) -> MatchedCollectives:
    """Return sequences of equal length as one MatchedCollectives."""
    group = sorted(group, key=lambda sequence: sequence.rank)
    shared: dict[tuple[int, int], PackedColumn] = {}
    for sequence in group:
        if (key := (id(sequence.step), id(sequence.rows))) not in shared:
            # Launch order and step order differ only if a launch crossed the border of an iteration; then the step
            # decides.
            order = np.argsort(sequence.step.values(), kind="stable")
            shared[key] = PackedColumn.pack(sequence.rows.values()[order])
    places = tuple(shared[id(sequence.step), id(sequence.rows)] for sequence in group)
    first = group[0]
    order = np.argsort(first.step.values(), kind="stable")
    return MatchedCollectives(
        name=name,
        how=how,
        ranks=np.array([sequence.rank for sequence in group], np.int64),
        places=places,
        step=ranks[first.rank].collectives.column("step")[places[0].values()],
        kind=tuple(names[number] for number in first.kind.values()[order]),
    )


# One rank sends or receives: it does not wait for the others, and they do not end together.
ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")
MAX_IMPOSSIBLE_SHARE = 100  # a group may have one impossible collective in this many
MIN_COLLECTIVES_FOR_CLOCKS = 4  # fewer collectives do not compare the clocks of two reports
# The ends of one collective on two H200 with a common clock differ by less than this (docs/fleet.md "Clocks").
MAX_END_DIFFERENCE_NS = 50_000
TRANSFER_SHARE = 20  # a twentieth of the transfer is the tolerance, if that is longer


def split_by_common_ends(
    matched: MatchedCollectives, reports: FleetReports, labels: Sequence[str], notes: list[str]
) -> Iterator[MatchedCollectives]:
    """Yield the parts of a match whose ranks end together, without rooted collectives.

    A match by communicator is one group. In a match by order, such as one of several tensor-parallel groups, ranks
    belong together if the difference of their ends is constant; ranks of one report share a clock, so it is near 0.
    """
    unrooted = np.flatnonzero([kind not in ROOTED for kind in matched.kind])
    if len(unrooted) < len(matched.kind):
        count = len(matched.kind) - len(unrooted)
        notes.append(f"{matched.name}: {count} rooted collectives left out, because they do not show waits")
    if len(unrooted) == 0:
        return
    if len(unrooted) < len(matched.kind):
        matched = matched.select_collectives(unrooted)
    if matched.how == "communicator":
        yield matched
        return
    if len(matched.step) < MIN_COLLECTIVES_FOR_CLOCKS and len(np.unique(reports.report_of[matched.ranks])) > 1:
        notes.append(f"{matched.name}: left out, because {len(matched.step)} are too few to compare clocks")
        return
    for rows in _rows_with_common_ends(matched, reports):
        if len(rows) > 1:
            yield matched.select_ranks(rows)
        else:
            label = labels[int(matched.ranks[rows[0]])]
            notes.append(f"{matched.name}: {label} left out, because it does not end together with any other rank")


def _rows_with_common_ends(matched: MatchedCollectives, reports: FleetReports) -> list[Times]:
    """Return groups of rows that end together, each with the first row that is not yet in a group."""
    left = np.arange(len(matched.ranks))
    tolerance = 0
    groups: list[Times] = []
    while len(left):
        first = int(matched.ranks[left[0]])
        reference = reports.measure(partial(ends_of, matched.places_of(left[:1])), [first])[first]
        work = partial(_compare_ends, matched.places_of(left), reference)
        ends = reports.measure(work, matched.ranks[left])
        if not groups:
            tolerance = max(MAX_END_DIFFERENCE_NS, int(np.median(ends.shortest)) // TRANSFER_SHARE)
        same_clock = reports.report_of[matched.ranks[left]] == reports.report_of[first]
        joined = np.array(
            [
                _end_together(*ends.spread[rank], tolerance, same)
                for rank, same in zip(matched.ranks[left].tolist(), same_clock.tolist(), strict=True)
            ]
        )
        groups.append(left[joined])
        left = left[~joined]
    return groups


def ends_of(places: Mapping[int, PackedColumn], reports: NumberedReports) -> ByKey[Times]:
    """Return the ends of the collectives at these places of each rank, on its own clock."""
    return ByKey(
        {index: rank.collectives.times(places[index])[1] for index, rank in ranks_of(reports) if index in places}
    )


@dataclass(frozen=True, slots=True)
class _ComparedEnds:
    """The shortest kernel of each collective, and how each rank's ends differ from a reference.

    `spread` has the median of the differences of each rank, and the median absolute deviation from it.
    """

    shortest: Times
    spread: ByKey[tuple[float, float]]

    def merged(self, other: _ComparedEnds) -> _ComparedEnds:
        """Return the comparison of the ranks of both."""
        return _ComparedEnds(np.minimum(self.shortest, other.shortest), self.spread.merged(other.spread))


def _compare_ends(places: Mapping[int, PackedColumn], reference: Times, reports: NumberedReports) -> _ComparedEnds:
    """Compare the ends of the ranks with places."""
    shortest = np.full(len(reference), np.iinfo(np.int64).max)
    spread: ByKey[tuple[float, float]] = ByKey()
    for index, rank in ranks_of(reports):
        if index in places:
            start, end = rank.collectives.times(places[index])
            np.minimum(shortest, end - start, out=shortest)
            difference = end - reference
            median = np.median(difference)
            spread[index] = float(median), float(np.median(np.abs(difference - median)))
    return _ComparedEnds(shortest, spread)


def _end_together(median: float, spread: float, tolerance: int, same_clock: bool) -> bool:
    """Return whether two ranks whose ends differ by this belong together."""
    return spread <= tolerance and (not same_clock or abs(median) <= tolerance)


def rank_sets(groups: Sequence[MatchedCollectives], count: int) -> Times:
    """Return the number of each rank's set, from 0. Ranks of a set share collectives, directly or through others.

    With fewer than two such sets, all ranks are one set: ranks without matched collectives belong to the same run.
    With more, it is unknown to which run they belong, so they form a set of their own.
    """
    sets = np.arange(count, dtype=np.int64)
    for group in groups:
        joined = np.isin(sets, sets[group.ranks])
        sets[joined] = sets[group.ranks].min()
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
