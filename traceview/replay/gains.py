"""What the remedy of each finding saves, and the order and severity of findings, which follow from it.

A gain is that of the change that `traceview whatif` replays, if the finding names one that applies. Otherwise it is a
bound: the cost without the profiler. Kernels that become faster give nothing while the host is on the critical path,
so that the bound of a finding on compute is a replay with as much less compute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np

from traceview.model.analysis import Analysis, Iterations
from traceview.model.findings import Finding, Gain
from traceview.model.whatif import Prediction
from traceview.pricing.base import HIGH_SHARE, MEDIUM_SHARE, severity_from_share
from traceview.pricing.describe import decisive_cost
from traceview.replay.changes import shorter_compute
from traceview.replay.prediction import Changes

MAX_REPLAYED = 75_000  # operations that an analysis replays, so that 1.0 million kernels take at most 5% longer
REPLAYS = 3  # replays of each change: the prediction and its range
NOT_REPLAYED = "the model is large, and its other changes are predicted by `traceview whatif` alone"
NO_CHANGE = "no model of the remedy: at most what it costs without the profiler"
NO_MODEL = "the run has no model that a change could be replayed in"
ONCE = "it occurs once in a run, so that a longer run hides it"
BEHIND = 0.999999  # puts a finding without a known gain behind those that gain as much
NEARLY_ALL = 0.8  # share of the time from which a kernel, or all of them, are what limits a device
MOST_FIRST = 2.0  # above every share of an iteration
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
    return tuple(sorted(gained, key=_rank(gained, computing, mean)))


class _Gains:
    """Gives findings their gains, as long as the replays do not take too long."""

    def __init__(self, analysis: Analysis, changes: Changes | None) -> None:
        self._changes = changes
        self._base = base_ns(analysis) if changes is None else changes.model.measured
        self._run = max(analysis.run.length, 1)
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
        others = tuple(map(self.finding, finding.others))
        severity = severity_from_share(gain.fraction)
        return replace(finding, gain=gain, change=change, severity=severity, others=others)

    def _gain(self, finding: Finding) -> tuple[Gain, str]:
        """Return the gain of a finding, and the change that gives it or could give it."""
        names, reason = finding.change.split(), NO_CHANGE
        if finding.gain.reason:  # its texts say that nothing is known
            return replace(finding.gain, of_ns=self._base), ""
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
                reason = f"`{name}` does not apply: {prediction}"
        if not predictions:
            return self._bound(finding, reason), next(iter(names), "")
        best = min(predictions, key=lambda each: each.iteration_ns)
        ns, low, high = (max(self._base - each, 0) for each in (best.iteration_ns, best.high_ns, best.low_ns))
        return Gain(ns, min(low, ns), max(high, ns), "predicted", "", self._base), best.change

    def _bound(self, finding: Finding, reason: str) -> Gain:
        """Return the most that a remedy without a replay can give."""
        cost = decisive_cost(finding)
        most = min(cost if self._is_run else int(finding.decisive_fraction * self._base), self._base)
        changes = self._changes if finding.device in self._devices else None
        if finding.claims == "compute" and changes is not None and self._may_replay(1):
            saved = changes.saved_by(shorter_compute(most))
            if saved is not None and saved < most:
                most, reason = saved, f"{reason}; while the host is on the critical path, faster kernels give less"
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


def _rank(
    findings: Sequence[Finding], computing: Collection[str], mean_ns: int
) -> Callable[[Finding], tuple[float, float]]:
    """Return the key of the order: findings of one kind on one device, which split one cause, count as one.

    A finding of which no gain is known, or that occurs once and takes less than most of the run, comes before those
    that gain less than captures of a program differ by, and after the others. What occurs once and takes most of the
    run, or of the iterations, whose mean is `mean_ns`, comes first. A kernel that takes nearly all of the time comes
    before what gains less than HIGH_SHARE. So do the kernels of a device that computes nearly all of the time
    (`computing`), if no change of them gains MEDIUM_SHARE.
    """
    whole: dict[tuple[str, str | None], float] = {}
    faster = [each.device for each in findings if each.claims == "compute" and each.gain.fraction >= MEDIUM_SHARE]
    for finding in findings:
        key, gain = (finding.id, finding.device), finding.gain
        is_most = gain.fraction > MOSTLY or (finding.cost_per_iteration_ns or 0) > MOSTLY * mean_ns
        behind = gain.source == "none" or (finding.once and not is_most)
        limits = finding.claims == "compute" and finding.device in computing and finding.device not in faster
        limit = HIGH_SHARE if limits or finding.decisive_fraction >= NEARLY_ALL else MEDIUM_SHARE
        own = min(limit, finding.decisive_fraction) * BEHIND if behind else gain.fraction
        own *= BEHIND if gain.source == "none" and finding.claims != "compute" else 1
        own = MOST_FIRST if finding.once and not behind else own
        joined = gain.source == "predicted" or behind
        whole[key] = max(whole.get(key, 0.0), own) if joined else whole.get(key, 0.0) + own
    return lambda finding: (-whole[finding.id, finding.device], -decisive_cost(finding))
