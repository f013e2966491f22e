"""What the remedy of each finding saves, and the order and severity of findings, which follow from it.

A gain is that of the change that `traceview whatif` replays, if the finding names one that applies. Otherwise it is a
bound: the cost without the profiler. Kernels that become faster give nothing while the host is on the critical path,
so that the bound of a finding on compute is a replay with as much less compute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from traceview.measure.iterations.pace import pace_ns
from traceview.model.analysis import Analysis, Iterations
from traceview.model.findings import HIGH_SHARE, MEDIUM_SHARE, OTHERS_LIMIT, Finding, Gain, severity_from_share
from traceview.model.units import duration
from traceview.model.whatif import Prediction
from traceview.pricing.describe import decisive_cost
from traceview.replay.changes import shorter_compute
from traceview.replay.changes.base import EFFORTS, gain_rank
from traceview.replay.changes.hiding import PREFETCH_COLLECTIVE, REORDER, SEPARATE_STREAM
from traceview.replay.choices import choice_times, choice_words
from traceview.replay.graph import path_times
from traceview.replay.prediction import Changes
from traceview.replay.ranges import cost_in_time

MAX_REPLAYED = 75_000  # operations that an analysis replays, so that 1.0 million kernels take at most 5% longer
REPLAYS = 2  # replays of each change: once more where the clock of a busier GPU falls
NOT_REPLAYED = "the model is large, and its other changes are predicted by `traceview whatif` alone"
NO_CHANGE = "no model of the remedy: at most what it costs without the profiler"
DOES_NOT_APPLY = "does not apply"  # in the reason of a gain; the remedy is then another one
NO_MODEL = "the run has no model that a change could be replayed in"
HOST_ONCE = "without iterations, the host's work on the critical path may occur once: at most what the finding costs"
ONCE = "it occurs once in a run, so that a longer run hides it"
BEHIND = 0.999999  # puts a finding without a known gain behind those that gain as much
NEARLY_ALL = 0.8  # share of the time from which a kernel, or all of them, are what limits a device
MOST_FIRST = 2.0  # above every share of an iteration
AT_ONCE = "pin+load"  # stands for the copies and the loader among what is replayed
WITH_LOADER = {"pin": "pinned host memory", "prefetch": "prefetching", "load": "batches prepared ahead"}
# The changes that say more than the texts of a finding how its collectives are hidden.
HOW_TO_HIDE = {change.name: change.title for change in (REORDER, SEPARATE_STREAM, PREFETCH_COLLECTIVE)}
HOST_TIME, KERNELS = "less host time", "less waiting for kernels"
PATH_WORDS = {
    HOST_TIME: ("host", "call", "launch", "wait"),
    "less waiting for copies": ("copy", "memset"),
    KERNELS: ("compute", "communication"),
    "less time between operations": ("gap",),
}
CLEARLY_LESS = 0.95  # share of a cost; kernels that gain a little less do so because a busier GPU has a lower clock
MOSTLY = 0.5  # share of the run from which what occurs once comes first


def with_gains(analysis: Analysis, findings: Sequence[Finding], changes: Changes | None) -> tuple[Finding, ...]:
    """Return the findings with their gains, the largest first.

    `findings` are those of `analysis`; the changes of the costliest are replayed first.
    `changes` are None if the run has no model.
    """
    pricing = _Gains(analysis, changes)
    gained = [pricing.finding(finding) for finding in sorted(findings, key=lambda each: -decisive_cost(each))]
    computing = {use.id for use in analysis.devices if analysis.compute_share(use) >= NEARLY_ALL}
    iterations = analysis.iterations
    mean = iterations.time_ns if isinstance(iterations, Iterations) else analysis.run.length
    expected = _expected_gain(gained, computing, mean, is_run=analysis.covers_run, is_paced=pricing.pace is not None)

    def rank(finding: Finding) -> tuple[float, ...]:
        return *gain_rank(expected(finding), pricing.effort(finding.change)), -decisive_cost(finding)

    return tuple(pricing.with_choice(each) if not at else each for at, each in enumerate(sorted(gained, key=rank)))


class _Gains:
    """Gives findings their gains, as long as the replays do not take too long."""

    def __init__(self, analysis: Analysis, changes: Changes | None) -> None:
        self._changes = changes
        self._base = base_ns(analysis) if changes is None else changes.model.measured
        self._run, self.pace = max(analysis.run.length, 1), pace_ns(analysis)
        self._is_run = not isinstance(analysis.iterations, Iterations)
        self._devices = {device.id for device in analysis.devices}
        self._left, self._replayed = 0, set[str]()
        if changes is not None:
            operations = changes.model.graph.operations
            self._devices = {device.id for device in analysis.devices if device.device in np.unique(operations.device)}
            self._left = max(REPLAYS, MAX_REPLAYED // max(len(operations.row), 1))

    def finding(self, finding: Finding) -> Finding:
        """Return a finding, and the same on other devices, with its gain and severity."""
        gain, change = self._gain(finding)
        if finding.otherwise and DOES_NOT_APPLY in gain.reason:
            finding = replace(finding, remedy=finding.otherwise, effect="")
        if "+" in change and self._changes is not None and self._changes.with_loader is not None:
            both = self._changes.with_loader
            own = {"load": finding.effect} if finding.change == "load" else {}
            effect = " and ".join((WITH_LOADER | own)[name] for name in change.split("+"))
            title = both.title if finding.id != "host_bound" else "Pin host memory, and use other threads"
            finding = replace(finding, effect=effect, remedy=f"{title}.")
        if change in HOW_TO_HIDE and gain.source == "predicted":
            finding = replace(finding, remedy=f"{HOW_TO_HIDE[change]}.")
        others = tuple(map(self.finding, finding.others))
        severity = severity_from_share(gain.fraction)
        return replace(finding, gain=gain, change=change, offered=finding.change, severity=severity, others=others)

    def with_choice(self, finding: Finding) -> Finding:
        """Return the finding with the words for its change and another one that gains alike, if there is one."""
        alike = () if self._changes is None or finding.once else self._changes.alternatives(finding.change)
        if not alike or finding.gain.source != "predicted":
            return finding
        effect, choice = choice_words(*alike)
        return replace(finding, effect=effect, choice=choice, choice_ns=choice_times(*alike))

    def effort(self, change: str) -> str:
        """Return what a change takes to make; a remedy without a change has that of a few lines."""
        known = {} if self._changes is None else self._changes.known
        efforts = (known[name].effort for name in change.split("+") if name in known)
        return max(efforts, key=EFFORTS.index, default=EFFORTS[1])

    def _gain(self, finding: Finding) -> tuple[Gain, str]:
        """Return the gain of a finding, and the change that gives it or could give it."""
        names, reason = finding.change.split(), NO_CHANGE
        if finding.gain.reason:  # its texts say that nothing is known
            return replace(finding.gain, of_ns=self._base), ""
        if self.pace is not None and not finding.once:
            return Gain(
                0, 0, 0, "bound", f"a source outside the program sets the pace of {duration(self.pace)}", self._base
            ), ""
        if finding.once:
            cost = decisive_cost(finding)
            return Gain(cost, 0, cost, "bound", ONCE, self._run), ""
        if self._changes is None or finding.device not in self._devices:
            return self._bound(finding, NO_MODEL), next(iter(names), "")
        predictions: list[Prediction] = []
        for name in names:
            # What other findings had predicted before counts too, so that the result does not depend on it.
            if name not in self._replayed and not self._may_replay(REPLAYS):
                reason = NOT_REPLAYED
                continue
            self._replayed.add(name)
            prediction = self._changes.prediction(name)
            if isinstance(prediction, Prediction):
                predictions.append(prediction)
            else:
                reason = f"`{name}` {DOES_NOT_APPLY}: {prediction}"
        if not predictions:
            return self._bound(finding, reason), next(iter(names), "")
        best = min(predictions, key=lambda each: each.iteration_ns)
        best = self._with_loader(self._changes, best)
        ns, low, high = (self._base - each for each in (best.iteration_ns, best.high_ns, best.low_ns))
        reason = self._what_else_goes(finding, best) if ns > self._cost(finding) else ""
        if self._is_run and reason.startswith(f"also {HOST_TIME}"):
            return self._bound(finding, HOST_ONCE), best.change
        return Gain(max(ns, 0), min(low, ns), max(high, ns), "predicted", reason, self._base), best.change

    def _with_loader(self, changes: Changes, alone: Prediction) -> Prediction:
        """Return the prediction for the copies and the loader at once, for the change that gains more of these."""
        if alone.change not in WITH_LOADER or not changes.model.waits_for_loader:
            return alone
        if AT_ONCE not in self._replayed and not self._may_replay(REPLAYS):
            return alone
        self._replayed.add(AT_ONCE)
        both = changes.with_loader
        parts = () if both is None else tuple(map(changes.prediction, both.change.split("+")))
        least = min((each.iteration_ns for each in parts if isinstance(each, Prediction)), default=0)
        return both if both is not None and alone.iteration_ns == least else alone

    def _cost(self, finding: Finding) -> int:
        """Return what a finding costs an iteration, or the run without iterations: without the profiler if known."""
        return cost_in_time(finding, self._base, is_run=self._is_run)

    def _what_else_goes(self, finding: Finding, prediction: Prediction) -> str:
        """Return which time on the critical path, besides the finding's, a change shortens: what, then by how much."""
        assert self._changes is not None, "there is a prediction"
        model = self._changes.model
        before, scale = path_times(model.graph, model.base), model.measured / max(model.base.per_iteration, 1)
        falls = {
            words: (int(scale * sum(before[kind] for kind in kinds)), sum(prediction.path[kind] for kind in kinds))
            for words, kinds in PATH_WORDS.items()
        }
        words, (now, then) = max(falls.items(), key=lambda pair: pair[1][0] - pair[1][1])
        words = "less time in other kernels" if finding.claims == "compute" and words == KERNELS else words
        return f"also {words}, from {duration(now)} to {duration(then)} on the critical path"

    def _bound(self, finding: Finding, reason: str) -> Gain:
        """Return the most that a remedy without a replay can give."""
        most = self._cost(finding)
        changes = self._changes if finding.device in self._devices else None
        if finding.claims == "compute" and changes is not None and self._may_replay(1):
            saved = changes.saved_by(shorter_compute(most))
            if saved is not None and saved < most:
                reason = f"{reason}; {OTHERS_LIMIT}" if saved < CLEARLY_LESS * most else reason
                most = saved
        return Gain(most, 0, most, "bound", reason, self._base)

    def _may_replay(self, count: int) -> bool:
        if self._left < count:
            return False
        self._left -= count
        return True


def base_ns(analysis: Analysis) -> int:
    """Return the time that gains are shares of: that of an iteration, or of the run, without the profiler if known."""
    iterations = analysis.iterations
    if isinstance(iterations, Iterations):
        return iterations.time_ns if iterations.unprofiled is None else iterations.unprofiled.mean_ns
    return analysis.run.length


def _expected_gain(
    findings: Sequence[Finding], computing: Collection[str], mean_ns: int, *, is_run: bool, is_paced: bool
) -> Callable[[Finding], float]:
    """Return the share by which findings are ordered: the gain, times the part of its range that gains.

    A finding of which no gain is known, or that occurs once and takes less than most of the run, comes before those
    that gain less than captures of a program differ by, and after the others. What occurs once and takes most of the
    run, or of the iterations, whose mean is `mean_ns`, comes first; so does the source of the pace (`is_paced`). A
    kernel that takes nearly all of the time comes before what gains less than HIGH_SHARE. So do the kernels of a device
    that computes nearly all of the time (`computing`), if no change of them gains MEDIUM_SHARE. In a run without
    iterations (`is_run`) what occurs once has its gain, as the others do.
    """
    gaining = [each for each in findings if each.claims == "compute" and each.gain.fraction >= MEDIUM_SHARE]
    faster = {place.device for each in gaining for place in each.by_device}

    def expected(finding: Finding) -> float:
        gain = finding.gain
        is_most = gain.fraction > MOSTLY or (finding.cost_per_iteration_ns or 0) > MOSTLY * mean_ns
        if (finding.once and is_most) or (is_paced and finding.id == "host_bound"):
            return MOST_FIRST
        if gain.source != "none" and (is_run or not finding.once):
            return gain.fraction * gain.gaining_part
        limits = finding.claims == "compute" and finding.device in computing and finding.device not in faster
        limit = HIGH_SHARE if limits or finding.decisive_fraction >= NEARLY_ALL else MEDIUM_SHARE
        behind = BEHIND if gain.source != "none" or finding.claims == "compute" else BEHIND**2
        return min(limit, finding.decisive_fraction) * behind

    return expected
