"""The results of a fleet analysis: one ReportResult for each report, and one Fleet for all.

Times are whole ns. A rank is one GPU of one report.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceview.intervals import Times
from traceview.model.collectives import Clock, Collectives, CollectiveTimes, PackedColumn
from traceview.model.display import Drawn
from traceview.model.program import Program
from traceview.model.trace import Note

# The figures of a rank's iteration (traceview.measure.iterations.times), in ns except kernels.
STEP_FIGURES = ("wall", "compute", "communication", "exposed_communication", "idle", "blocked", "kernels")


@dataclass(frozen=True, slots=True)
class Steps:
    """The iterations of one rank, one value each. `number` is the number in their names, or 0, 1, 2 ...

    `source` is that of model.Iterations, and `time` its mean time from one iteration to the next, ns. `cut` is "gpu"
    if each iteration lasts from the end of the previous one on the GPU to its own end, else "range". `figures` has one
    column for each of STEP_FIGURES, `idle` one for each of model.CAUSES.
    """

    name: str
    source: str
    time: int
    named: bool  # `number` comes from the names
    cut: str
    number: Times
    skipped: int  # number of warm-up iterations
    figures: tuple[PackedColumn, ...]
    idle: tuple[PackedColumn, ...]

    def figure(self, name: str) -> Times:
        """Return one figure of every iteration."""
        return self.figures[STEP_FIGURES.index(name)].values()


@dataclass(frozen=True, slots=True)
class RankWork:
    """The work of one GPU from `start` on, in bins of `width` ns.

    `compute`, `copies` and `communication` are the ns of each bin in which such work runs, which may overlap. `kernel`
    is the compute kernel that runs longest in each bin, an index into `names`, or -1.
    """

    start: int
    width: int
    compute: PackedColumn
    copies: PackedColumn
    communication: PackedColumn
    kernel: PackedColumn
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankResult:
    """One GPU of one report. `idle` has one value for each of model.CAUSES."""

    device: str
    gpu: str
    processes: tuple[int, ...]
    start: int
    end: int
    compute: int
    communication: int
    exposed_communication: int
    idle: tuple[int, ...]
    kernels: int
    steps: Steps | None
    collectives: Collectives
    work: RankWork | None = None  # the steady iterations, or everything without iterations


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The figures of one report. `epoch` is the Unix time at its clock's zero in ns, if known."""

    nsys_version: str | None
    program: Program
    epoch: int | None
    notes: tuple[str, ...]
    ranks: tuple[RankResult, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A report that cannot be used, by its name in the fleet, and the reason."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """Ranks that take part in the same collectives, and how their arrivals differ.

    `ranks` are rows of Fleet.ranks. `how` is "communicator" or "order". Skew is the last minus the first arrival.
    `transfer` is the median of the shortest kernel of each collective. `last` is the rank that is last most often.
    """

    name: str
    how: str
    kind: str
    ranks: tuple[int, ...]
    count: int
    skew_median: int
    skew_p95: int
    transfer: int
    waited: int
    last: int
    last_count: int


@dataclass(frozen=True, slots=True)
class Pair:
    """How long one rank waits in collectives in which another is last; both are rows of Fleet.ranks."""

    waiter: int
    last: int
    waited: int
    count: int


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank: means over its steady iterations, or sums over the window if it has none.

    `own` is wall minus exposed communication: the time that the rank itself takes. `lag` is the median over iterations
    of its `own` minus the median `own` of the other ranks, and `noise` the part of it that scatter explains; both are
    None for too few iterations. `wait` is the time in collectives before the last rank arrives, and `bare_wait` a lower
    bound of the part without compute. `caused` and `bare_caused` are the sums over all other ranks of their waits for
    this rank. It is last in `last_count` of `matched` collectives.
    """

    label: str
    file: str
    report: int
    device: str
    gpu: str
    iterations: int
    time: int | None  # the mean time from one iteration to the next, as analyze states it
    wall: int
    compute: int
    exposed_communication: int
    copies: int  # copies and memsets while nothing else runs
    idle: int
    causes: tuple[int, ...]
    kernels: int
    own: int
    lag: int | None
    noise: int | None
    wait: int
    bare_wait: int
    caused: int
    bare_caused: int
    last_count: int
    matched: int
    set: int  # number of its set of ranks that share collectives; lags are within a set
    typical: int | None  # median `own` of an iteration of its set, ns


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank whose own time exceeds that of the others by more than margin and noise, the reason, and the cost.

    `part` is "compute", "copies" or a cause of model.CAUSES, and `part_lag` its excess over the median of the others.
    `cost` is the idle time per iteration that all others wait for this rank, and `cost_each` the mean over the
    `waiting` ranks that share collectives with it.
    """

    rank: int
    lag: int
    share: float  # part of the own time of a typical iteration of the rank's set
    part: str
    part_lag: int
    more_kernels: int
    cost: int
    cost_each: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Advice:
    """A remedy. The most expensive problem comes first.

    `cost` is the waiting time of all ranks in ns, per iteration if there are iterations, and `each` the mean over the
    `waiting` ranks: those that wait for the rank at fault, or all that take part in collectives if no single rank is.
    `wall` is the median length of their iterations.
    """

    title: str
    text: str
    cost: int
    each: int
    waiting: int
    wall: int
    rank: int


@dataclass(frozen=True, slots=True)
class Heat:
    """Figures of every rank in every iteration, one row per rank; -1 if it does not have the iteration."""

    steps: Times
    steady: Times  # 1 if an iteration counts, 0 if it is warm-up
    wall: Times
    own: Times
    compute: Times
    wait: Times


@dataclass(frozen=True, slots=True)
class Fleet(Drawn):
    """Many reports in one result. The same reports give the same bytes on any machine."""

    reports: tuple[str, ...]
    ranks: tuple[Rank, ...]
    typical: int | None  # median `own` of an iteration, ns
    margin: float
    stragglers: tuple[Straggler, ...]
    advice: tuple[Advice, ...]
    groups: tuple[CollectiveGroup, ...]
    pairs: tuple[Pair, ...]
    pair_count: int
    clocks: tuple[Clock, ...]
    heat: Heat | None
    unmatched: int  # collectives that no other rank has
    notes: tuple[Note, ...]
    skipped: tuple[Skipped, ...]
    times: tuple[CollectiveTimes, ...] = ()  # for a timeline of all ranks
    work: tuple[RankWork | None, ...] = ()  # what each rank's GPU does, on the common clock, for the same timeline
