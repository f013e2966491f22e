"""Findings: symptoms with their cost, their places in the capture, and what to change."""

from __future__ import annotations

from traceview.model.frozen import dataclass
from traceview.model.stacks import HostPlace


def gaining_part(low_ns: int, high_ns: int) -> float:
    """Return the part above 0 of the range of a gain: a change that may lose does not lead over a certain one."""
    return 1.0 if low_ns >= 0 else max(high_ns, 0) / (high_ns - low_ns)


OF_PROCESS = " (process "  # in the id of a device whose ordinal other processes have too (Trace.devices)
# Runs of an unchanged program differ by 3 to 15% of their wall time on a quiet H200. So a single run shows a loss of a
# tenth, and the mean of several runs shows a loss of 3%.
HIGH_SHARE, MEDIUM_SHARE = 0.10, 0.03
WIDE = 0.75  # share of the time
OTHERS_LIMIT = "then other work limits"  # why a bound is below what the finding costs
MIN_GAIN = 0.02  # share of an iteration; captures of one program differ by as much


def severity_from_share(share: float) -> str:
    """Return high, medium or low for a share of the time that findings cover."""
    return "high" if share >= HIGH_SHARE else "medium" if share >= MEDIUM_SHARE else "low"


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

    Attributes:
        ns: The time that it saves, in ns.
        low_ns: The least that it saves, in ns; below 0 if it may lose time.
        high_ns: The most that it saves, in ns.
        source: "predicted" for a replay of the change, the one that `traceview whatif` shows, "bound" for the most that
            the remedy can give, and "none" if nothing is known of it.
        reason: Why there is no replay, or what else goes where a replay saves more than the finding costs.
        of_ns: The time of an iteration today, in ns.
    """

    ns: int
    low_ns: int
    high_ns: int
    source: str
    reason: str
    of_ns: int

    @property
    def fraction(self) -> float:
        """The share of the time that the remedy saves."""
        return self.ns / max(self.of_ns, 1)

    @property
    def after_ns(self) -> tuple[int, int]:
        """The shortest and the longest time of an iteration with the remedy."""
        return self.of_ns - self.high_ns, self.of_ns - self.low_ns

    @property
    def gaining_part(self) -> float:
        """The part of the range that saves time: 1 for a remedy that cannot lose."""
        return gaining_part(self.low_ns, self.high_ns)

    @property
    def is_at_most(self) -> bool:
        """Whether reports state only the most that it saves: a bound, or a range that says little more than that.

        Such a range is nearly as wide as the time, or loses more than it saves.
        """
        is_wide = self.high_ns - self.low_ns > WIDE * self.of_ns or -self.low_ns > self.high_ns
        return self.source == "bound" or (self.source == "predicted" and self.ns != 0 and is_wide)

    @property
    def stated_fraction(self) -> float:
        """The share of the time that reports state: the most of a wide range, else the expected one."""
        return self.high_ns / max(self.of_ns, 1) if self.is_at_most else self.fraction

    @property
    def is_little(self) -> bool:
        """Whether captures of one program differ by more than the gain."""
        return self.fraction < MIN_GAIN


NO_GAIN = Gain(0, 0, 0, "none", "", 0)


@dataclass(frozen=True, slots=True)
class Finding:
    """A symptom, its cost, and what to change.

    Attributes:
        id: The name of its kind, an entry of traceview/rules/texts.
        severity: "high", "medium" or "low".
        title: The symptom in one sentence.
        evidence: Places in the capture that show it.
        cost_ns: What it costs, in ns. Each ns counts once: the findings of a device do not exceed its idle and exposed
            time.
        advice: What to change.
        code: Example code.
        device: The id of the GPU, or None.
        cost_fraction: The share of the device's time that findings cover, from 0 to 1.
        cost_per_iteration_ns: The cost of an iteration in ns, or None without iterations.
        claims: "waiting" for idle and exposed time, "compute" for compute time that a change makes shorter.
        unprofiled_cost_ns: An estimate of the cost without the profiler, in ns.
        unprofiled_cost_per_iteration_ns: The same for an iteration, in ns.
        unprofiled_cost_fraction: The same as a share of the device's time without the profiler, from 0 to 1.
        unsure_because: What the capture lacks that the finding rests on.
        host: Where the host was in the idle time that the finding costs, if known.
        change: The change of `traceview whatif` that predicts what the remedy gives; "" for none.
        offered: The changes that the remedy may be, separated by spaces; `change` is the one that gains most of these.
        remedy: The advice in one line.
        otherwise: The advice in one line where the change does not apply to the program; "" if it is the same.
        loss: Words for its time in the answer: "gaps between small kernels".
        effect: Words for its remedy in the answer: "a CUDA graph"; "" if the remedy in one line stands there.
        choice: Which of two changes that gain alike to try first: "TF32 first: one line"; "" for none.
        choice_ns: The shortest and the longest time of an iteration with either of them, in ns.
        once: Whether it occurs once in a run, so that a longer run hides it.
        gain: What the remedy saves, in ns; findings are ordered by it.
        others: The same on other devices, each with a lower cost.
    """

    id: str
    severity: str
    title: str
    evidence: tuple[Place, ...]
    cost_ns: int
    advice: str
    code: str = ""
    device: str | None = None
    cost_fraction: float = 0.0
    cost_per_iteration_ns: int | None = None
    claims: str = "waiting"
    unprofiled_cost_ns: int | None = None
    unprofiled_cost_per_iteration_ns: int | None = None
    unprofiled_cost_fraction: float | None = None
    unsure_because: str | None = None
    host: HostPlace | None = None
    change: str = ""
    offered: str = ""
    remedy: str = ""
    otherwise: str = ""
    loss: str = ""
    effect: str = ""
    choice: str = ""
    choice_ns: tuple[int, int] = (0, 0)
    once: bool = False
    gain: Gain = NO_GAIN
    others: tuple[Finding, ...] = ()

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
        """The device, or the number of devices: "GPU 0", "4 GPUs"; None if it belongs to no device.

        Devices that are known by their processes may be one GPU: "2 processes".
        """
        if not self.others:
            return self.device
        shared = any(OF_PROCESS in (each.device or "") for each in self.by_device)
        return f"{len(self.by_device)} {'processes' if shared else 'GPUs'}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the program is, where its time goes, and the change that gains most; `gain` is that of the first finding."""

    text: str
    change: str  # the change of `traceview whatif`, or the id of a finding without one; "" without findings
    gain: Gain


NO_ANSWER = Answer("", "", NO_GAIN)
