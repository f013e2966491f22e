"""The range of a prediction: what measured pairs of the same change did around what was predicted for them.

measured.toml has the pairs. Those of one change decide where they are of at least MIN_PROGRAMS programs, of programs
with the same limit if there are as many of these; otherwise those of all changes of its kind do. A pair whose loader
took the gain is not among them: where a capture shows such a loader, the range reaches to no gain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from traceview.model.catalogue import read_toml
from traceview.model.findings import Finding
from traceview.pricing.describe import decisive_cost

PAIRS = Path(__file__).with_name("measured.toml")
MIN_PROGRAMS = 8  # METRICS, "Ranges are measured", asks for them
LOW, HIGH = 0.05, 0.95  # quantiles of the programs
ABSORBED = frozenset(("pin", "pin-here", "prefetch", "load"))  # changes whose gain a loader in balance takes
STEPS = 20  # the part of a gain that comes is rounded to these, because some ten programs give no more
MIN_GAIN = 0.05  # share of the time; a smaller predicted gain does not show which part of it comes


class MeasuredPair(NamedTuple):
    """A program before and after a change, in ms an iteration; `limit` is that of the program before: host or gpu."""

    change: str
    limit: str
    program: str
    before: float
    predicted: float
    measured: float

    @property
    def names(self) -> list[str]:
        """The names of the changes."""
        return self.change.split("+")


class TimeSpread(NamedTuple):
    """How measured times lie around predicted ones: `low` and `high` are factors of the predicted time.

    `came` is the part of the predicted gain that comes, from 0 to 1; in most programs it is from `least` to `most`.
    """

    low: float
    high: float
    came: float
    least: float
    most: float

    def expected(self, before_ns: int, replayed_ns: int) -> int:
        """Return the expected time in ns after a change that a replay takes from one time to another."""
        gain = before_ns - replayed_ns
        return before_ns - int(gain * self.came) if gain > 0 else replayed_ns

    def around(self, middle: int, replayed_ns: int, margin: float) -> tuple[int, int, int]:
        """Return the expected time after a change, `middle`, and its range in ns, from the replay of the change.

        `margin` is the share of the time by which the replay alone may be wrong.
        """
        low, high = int(replayed_ns * self.low * (1 - margin)), int(replayed_ns * self.high * (1 + margin))
        return middle, min(low, middle), max(high, middle)

    def around_in_run(self, base_ns: int, replayed_ns: int, margin: float) -> tuple[int, int, int]:
        """Return the same for a run without a loop: all pairs are of loops, so that only the gain varies with them."""
        gain = base_ns - replayed_ns
        times = [int(base_ns - gain * part) for part in (self.most, self.came, self.least)]
        return times[1], int(min(times) * (1 - margin)), int(max(times) * (1 + margin))


UNKNOWN = TimeSpread(1.0, 1.0, 1.0, 1.0, 1.0)  # no pair has such a change: a kernel twice as fast


@cache
def measured_pairs() -> tuple[MeasuredPair, ...]:
    """Return all pairs."""
    return tuple(MeasuredPair(*row) for study in read_toml(PAIRS)["study"] for row in study["pairs"])


def loader_may_take(changes: Collection[str]) -> bool:
    """Return whether a loader that is as slow as the step may take what these changes gain.

    Copies that return earlier then wait for the next batch, and batches that are ready earlier for the copies.
    """
    return ABSORBED.issuperset(changes) and not ("load" in changes and len(changes) > 1)


def cost_in_time(finding: Finding, time_ns: int, *, is_run: bool) -> int:
    """Return what a finding costs of an iteration, or of the run without iterations: without the profiler if known."""
    if is_run:
        return min(decisive_cost(finding), time_ns)
    unprofiled, measured = finding.unprofiled_cost_per_iteration_ns, finding.cost_per_iteration_ns
    each = measured if unprofiled is None else unprofiled
    whole = int(finding.decisive_fraction * time_ns)
    return min(whole, time_ns) if each is None else min(each, whole, time_ns)


def cost_of_changes(findings: Sequence[Finding], time_ns: int, *, is_run: bool) -> dict[str, int]:
    """Return what the findings on each change cost together, on the device on which they cost most."""
    costs = Counter[tuple[str, str | None]]()
    for finding in (each for joined in findings for each in joined.by_device):
        for name in (finding.offered or finding.change).split():
            costs[name, finding.device] += cost_in_time(finding, time_ns, is_run=is_run)
    return {name: max(cost for (other, _), cost in costs.items() if other == name) for name, _ in costs}


def spread(changes: Collection[str], limit: str, pairs: tuple[MeasuredPair, ...] | None = None) -> TimeSpread:
    """Return the spread of a change, or of several together, in a program with this limit; by default of all pairs.

    The range of several changes holds that of each.
    """
    pairs = measured_pairs() if pairs is None else pairs
    each = [_spread_of(name.split(":")[0].split("@")[0], limit, pairs) for name in changes]
    of_each = zip(*each, strict=True)
    return TimeSpread(*(combine(values) for combine, values in zip((min, max, min, min, max), of_each, strict=True)))


@cache  # an analysis asks for the same changes many times
def _spread_of(change: str, limit: str, pairs: tuple[MeasuredPair, ...]) -> TimeSpread:
    kinds: Mapping[str, Sequence[str]] = read_toml(PAIRS)["kinds"]
    kind = next((names for names in kinds.values() if change in names), None)
    if kind is None:
        return UNKNOWN
    loaders = read_toml(PAIRS)["loaders"]["programs"]
    known = [pair for pair in pairs if not (pair.program in loaders and loader_may_take(pair.names))]
    groups = list(_groups(change, limit, kind, known))
    times = next(filter(_is_enough, groups), groups[-1])
    gains = next(filter(_is_enough, map(_gaining, groups)), _gaining(groups[-1]))
    low, high = (_quantile([pair.measured / pair.predicted for pair in times], times, part) for part in (LOW, HIGH))
    parts = [(pair.before - pair.measured) / (pair.before - pair.predicted) for pair in gains]
    least, came, most = (_quantile(parts, gains, part) for part in (LOW, 0.5, HIGH))
    usual = min(max(round(came * STEPS) / STEPS, 0.0), 1.0)
    return TimeSpread(min(low, 1.0), max(high, 1.0), usual, min(least, usual), max(most, 1.0))


def _groups(
    change: str, limit: str, kind: Sequence[str], pairs: Sequence[MeasuredPair]
) -> Iterator[list[MeasuredPair]]:
    """Yield the pairs that may stand for a change, the most similar ones first."""
    for similar in ([pair for pair in pairs if pair.change == change], [p for p in pairs if set(p.names) <= set(kind)]):
        yield [pair for pair in similar if pair.limit == limit]
        yield similar
    yield list(pairs)


def _is_enough(pairs: Sequence[MeasuredPair]) -> bool:
    return len({pair.program for pair in pairs}) >= MIN_PROGRAMS


def _gaining(pairs: Sequence[MeasuredPair]) -> list[MeasuredPair]:
    return [pair for pair in pairs if pair.before - pair.predicted >= MIN_GAIN * pair.before]


def _quantile(values: Sequence[float], pairs: Sequence[MeasuredPair], part: float) -> float:
    """Return a quantile of a value of each pair; the programs count alike, however many pairs they have."""
    count = Counter(pair.program for pair in pairs)
    order = np.argsort(values, kind="stable")
    weight = np.array([1 / count[pairs[row].program] for row in order])
    middle = (np.cumsum(weight) - weight / 2) / weight.sum()
    return float(np.interp(part, middle, np.array(values)[order]))
