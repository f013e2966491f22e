"""Findings: symptoms with their cost, their places in the capture, and what to change."""

from __future__ import annotations

from dataclasses import dataclass

from traceview.model.stacks import HostPlace

SEVERITIES = ("high", "medium", "low")
MIN_GAIN = 0.02  # share of an iteration; captures of one program differ by as much


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the capture that shows a finding; a click opens it in the timeline."""

    text: str
    start_ns: int
    end_ns: int
    device: str | None = None
    stream: int | None = None  # row of Trace.streams
    thread: int | None = None  # row of Trace.threads
    cost_ns: int = 0  # what the finding is granted there


@dataclass(frozen=True, slots=True)
class Gain:
    """What a remedy saves of an iteration, or of the run without iterations: without the profiler where that is known.

    `source` is "predicted" for a replay of the change, the one that `traceview whatif` shows, "bound" for the most that
    the remedy can give, and "none" if nothing is known of it. `reason` says why there is no replay.
    """

    ns: int
    low_ns: int
    high_ns: int
    source: str
    reason: str
    of_ns: int  # the time of an iteration today

    @property
    def fraction(self) -> float:
        """The share of the time that the remedy saves."""
        return self.ns / max(self.of_ns, 1)

    @property
    def after_ns(self) -> tuple[int, int]:
        """The shortest and the longest time of an iteration with the remedy."""
        return self.of_ns - self.high_ns, self.of_ns - self.low_ns

    @property
    def is_little(self) -> bool:
        """Whether captures of one program differ by more than the gain."""
        return self.fraction < MIN_GAIN


NO_GAIN = Gain(0, 0, 0, "none", "", 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """A symptom, its cost, and what to change."""

    id: str
    severity: str
    title: str
    evidence: tuple[Place, ...]
    cost_ns: int  # each ns counts once: the findings of a device do not exceed its idle plus exposed time
    advice: str
    code: str = ""  # example code
    device: str | None = None
    cost_fraction: float = 0.0  # part of the device's time that findings cover
    cost_per_iteration_ns: int | None = None
    claims: str = "waiting"  # "waiting": idle and exposed time; "compute": compute time that a change makes shorter
    unprofiled_cost_ns: int | None = None  # the cost without the profiler, an estimate
    unprofiled_cost_per_iteration_ns: int | None = None
    unprofiled_cost_fraction: float | None = None  # that cost, of the device's time without the profiler
    unsure_because: str | None = None  # what the capture lacks that the finding rests on
    host: HostPlace | None = None  # where the host was in the idle time that the finding costs, if known
    change: str = ""  # the change of `traceview whatif` that predicts what the remedy gives; "" for none
    remedy: str = ""  # the advice in one line
    once: bool = False  # it occurs once in a run, so that a longer run hides it
    gain: Gain = NO_GAIN  # what the remedy saves; findings are ordered by it
    others: tuple[Finding, ...] = ()  # the same on other devices, each with a lower cost

    @property
    def by_device(self) -> tuple[Finding, ...]:
        """The finding on each of its devices, the costliest first."""
        return (self, *self.others)

    @property
    def decisive_fraction(self) -> float:
        """The share of the cost: without the profiler if that is known."""
        return self.cost_fraction if self.unprofiled_cost_fraction is None else self.unprofiled_cost_fraction

    @property
    def device_words(self) -> str | None:
        """The device, or the number of devices: "GPU 0", "4 GPUs"; None if it belongs to no device."""
        return f"{len(self.by_device)} GPUs" if self.others else self.device


@dataclass(frozen=True, slots=True)
class Answer:
    """What the program is, where its time goes, and the change that gains most; `gain` is that of the first finding."""

    text: str
    change: str  # name of the change in `traceview whatif`, or id of the finding without one; "" without findings
    gain: Gain


NO_ANSWER = Answer("", "", NO_GAIN)
