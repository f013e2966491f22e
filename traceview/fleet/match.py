"""Which collective of one rank is which of another.

By communicator and order where every capture names the communicator of each call; else by stream and order, counted
inside each iteration. Streams of two ranks are the same where they run the same kinds of collectives; of several
such streams, the n-th by stream id (they are made in the same order on every rank). An iteration counts only where
all ranks ran the same kinds in the same order: nothing is matched past a difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traceview.fleet.collectives import BEFORE_ALL
from traceview.intervals import Times
from traceview.model.fleet import RankResult


@dataclass(frozen=True, slots=True)
class Matched:
    """Collectives that some ranks ran together: arrays of shape (ranks, collectives), on each rank's own clock."""

    name: str
    how: str  # "communicator" or "order"
    ranks: Times
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    hidden: NDArray[np.int64]
    step: Times
    kind: tuple[str, ...]

    def only(self, rows: Times) -> Matched:
        """Return the same collectives of some of the ranks; `rows` ascend and index `ranks`."""
        if len(rows) == len(self.ranks):
            return self
        return Matched(
            self.name,
            self.how,
            self.ranks[rows],
            self.start[rows],
            self.end[rows],
            self.hidden[rows],
            self.step,
            self.kind,
        )


@dataclass(frozen=True, slots=True)
class Matches:
    """What was matched, how many collectives were not, and why in words."""

    found: tuple[Matched, ...]
    unmatched: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Sequence:
    """What one rank ran on one channel; `kind` is the same number for the same name on all ranks."""

    rank: int
    rows: Times
    step: Times
    kind: Times

    def of_steps(self) -> dict[int, bytes]:
        """Return the kinds of each step, in order, as bytes that compare."""
        order = np.argsort(self.step, kind="stable")
        numbers, first = np.unique(self.step[order], return_index=True)
        parts = np.split(self.kind[order], first[1:])
        return {int(number): part.tobytes() for number, part in zip(numbers, parts, strict=True)}


def match(ranks: Sequence[RankResult], labels: Sequence[str], *, anchored: bool = True) -> Matches:
    """Match the collectives of all ranks; `labels` name them in the notes.

    Without `anchored` they are counted from the beginning of each capture, not of each iteration.
    """
    names = sorted({kind for rank in ranks for kind in rank.collectives.kinds})
    by_name = _all_named(ranks)
    classes = _classes(ranks, names, by_name, anchored)
    total = sum(len(rank.collectives.start) for rank in ranks)
    found: list[Matched] = []
    notes: list[str] = []
    for name, members in classes:
        for group in _agreeing(members, name, labels, notes):
            made = _matched(ranks, group, names, name, "communicator" if by_name else "order")
            if len(made.step):
                found.append(made)
    return Matches(tuple(found), total - sum(one.start.size for one in found), tuple(notes))


def _all_named(ranks: Sequence[RankResult]) -> bool:
    channels = [channel for rank in ranks for channel in rank.collectives.channels]
    return bool(channels) and all(channel.communicator is not None for channel in channels)


def _classes(
    ranks: Sequence[RankResult], names: list[str], by_name: bool, anchored: bool
) -> list[tuple[str, list[_Sequence]]]:
    """Return the ranks' sequences, those of one channel together."""
    classes: dict[tuple[str, int], list[_Sequence]] = defaultdict(list)
    for index, rank in enumerate(ranks):
        of = rank.collectives
        code = np.array([names.index(kind) for kind in of.kinds], np.int64)
        seen: dict[str, int] = defaultdict(int)
        for place in sorted(range(len(of.channels)), key=lambda at: of.channels[at].stream):
            rows = np.flatnonzero(of.channel == place)
            kind = code[of.kind[rows]]
            shape = ", ".join(names[one] for one in np.unique(kind))
            key = of.channels[place].communicator or shape if by_name else shape
            step = of.step[rows] if anchored else np.full(len(rows), BEFORE_ALL)
            classes[key, seen[key]].append(_Sequence(index, rows, step, kind))
            seen[key] += 1
    return [(_name(key, number, by_name), members) for (key, number), members in sorted(classes.items(), key=_order)]


def _order(item: tuple[tuple[str, int], list[_Sequence]]) -> tuple[int, str, int]:
    (key, number), members = item
    return min(member.rank for member in members), key, number


def _name(key: str, number: int, by_name: bool) -> str:
    if by_name:
        return f"communicator {key}"
    return f"{key}, stream {number + 1}" if number else key


def _agreeing(
    members: list[_Sequence], name: str, labels: Sequence[str], notes: list[str]
) -> Iterator[list[_Sequence]]:
    """Yield sequences that agree, cut to the steps in which they do.

    A rank that differs from most others in more than half of its steps is not one of them: it is tried with the
    others that do.
    """
    while len(members) > 1:
        shapes = _shapes(members)
        usual = _usual(shapes)
        far = {index for index, (steps, _) in enumerate(shapes) if _differing(steps, usual) * 2 > len(steps)}
        if len(far) == len(shapes):
            break
        near = [shape for index, shape in enumerate(shapes) if index not in far]
        kept = [member for _, group in near for member in group]
        if len(kept) > 1:
            yield _cut(near, name, notes)
        elif kept:
            notes.append(_alone(kept, name, labels))
        members = [member for index in sorted(far) for member in shapes[index][1]]
    if members:
        notes.append(_alone(members, name, labels))


def _alone(members: list[_Sequence], name: str, labels: Sequence[str]) -> str:
    shown = ", ".join(labels[member.rank] for member in members[:3]) + (", ..." if len(members) > 3 else "")
    return f"{name}: what {shown} ran has no counterpart in the same order on another rank"


Shape = tuple[dict[int, bytes], list[_Sequence]]


def _shapes(members: list[_Sequence]) -> list[Shape]:
    """Return each different sequence once, with the ranks that have it: mostly there is one."""
    found: dict[tuple[bytes, bytes], list[_Sequence]] = defaultdict(list)
    for member in members:
        found[member.step.tobytes(), member.kind.tobytes()].append(member)
    return [(group[0].of_steps(), group) for group in found.values()]


def _usual(shapes: list[Shape]) -> dict[int, bytes]:
    """Return what most ranks ran in each step."""
    votes: dict[int, dict[bytes, int]] = defaultdict(lambda: defaultdict(int))
    for steps, group in shapes:
        for step, kinds in steps.items():
            votes[step][kinds] += len(group)
    return {step: max(sorted(of), key=lambda kinds: of[kinds]) for step, of in votes.items()}


def _differing(steps: dict[int, bytes], usual: dict[int, bytes]) -> int:
    # Without iterations all of it is one step, of which the beginning may agree.
    if set(steps) == {BEFORE_ALL}:
        return int(steps[BEFORE_ALL][:8] != usual[BEFORE_ALL][:8])
    return sum(kinds != usual[step] for step, kinds in steps.items())


def _cut(shapes: list[Shape], name: str, notes: list[str]) -> list[_Sequence]:
    """Return the ranks' sequences without what they do not have in common."""
    if len(shapes) == 1:
        return shapes[0][1]
    members = [member for _, group in shapes for member in group]
    every = [steps for steps, _ in shapes]
    if all(set(steps) == {BEFORE_ALL} for steps in every):
        return _prefix(every, members, name, notes)
    steps = set.intersection(*map(set, every))
    agreed = {step for step in steps if len({shape[step] for shape in every}) == 1}
    differ = sorted(steps - agreed)
    missing = set.union(*map(set, every)) - steps
    if differ:
        where = "before the first iteration" if differ[0] == BEFORE_ALL else f"first in iteration {differ[0]}"
        notes.append(f"{name}: ranks ran different collectives in {len(differ)} iterations ({where}), left out")
    if missing - {BEFORE_ALL}:
        notes.append(f"{name}: {len(missing - {BEFORE_ALL})} iterations are not in all captures, left out")
    wanted = np.array(sorted(agreed), np.int64)
    return [_kept(member, np.isin(member.step, wanted)) for member in members]


def _prefix(every: list[dict[int, bytes]], members: list[_Sequence], name: str, notes: list[str]) -> list[_Sequence]:
    kinds = [np.frombuffer(steps[BEFORE_ALL], np.int64) for steps in every]
    shortest = min(map(len, kinds))
    same = np.all([one[:shortest] == kinds[0][:shortest] for one in kinds], axis=0)
    length = int(np.argmin(same)) if not same.all() else shortest
    notes.append(
        f"{name}: matched up to the {length}-th of each rank, where counts or kinds differ; no iterations to count from"
    )
    return [_kept(member, np.arange(len(member.rows)) < length) for member in members]


def _kept(member: _Sequence, mask: NDArray[np.bool_]) -> _Sequence:
    return _Sequence(member.rank, member.rows[mask], member.step[mask], member.kind[mask])


def _matched(ranks: Sequence[RankResult], group: list[_Sequence], names: list[str], name: str, how: str) -> Matched:
    group = sorted(group, key=lambda member: member.rank)
    # The steps of one rank ascend nearly always; where a launch crossed a border, the step decides.
    orders = [member.rows[np.argsort(member.step, kind="stable")] for member in group]
    first = group[0]
    kinds = first.kind[np.argsort(first.step, kind="stable")]

    def stacked(column: str) -> NDArray[np.int64]:
        return np.stack(
            [getattr(ranks[one.rank].collectives, column)[rows] for one, rows in zip(group, orders, strict=True)]
        )

    return Matched(
        name=name,
        how=how,
        ranks=np.array([member.rank for member in group], np.int64),
        start=stacked("start"),
        end=stacked("end"),
        hidden=stacked("hidden"),
        step=ranks[first.rank].collectives.step[orders[0]],
        kind=tuple(names[one] for one in kinds),
    )
