"""The results of a fleet analysis: one ReportResult for each report, and one Fleet for all.

Times are whole ns. A rank is one GPU of one report.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.model.columns import Paged
from traceview.model.frozen import dataclass
from traceview.model.program import Program
from traceview.model.trace import Note

SECOND = 10**9


@dataclass(frozen=True, slots=True)
class Channel:
    """A sequence of a rank's collectives: a communicator if the capture names it, else a stream."""

    communicator: str | None
    stream: int


@dataclass(frozen=True, slots=True)
class Collectives:
    """A rank's communication kernels in launch order, a value for each in every column.

    `step` is the number of the iteration that launched the collective, or BEFORE_ALL; `kind` is an index into `kinds`,
    `channel` into `channels`. `start` and `end` are ns of the report's clock, `hidden` the ns in which compute runs on
    the same GPU.
    """

    kinds: tuple[str, ...]
    channels: tuple[Channel, ...]
    step: Times
    kind: Times
    channel: Times
    start: Times
    end: Times
    hidden: Times
    left_out: int  # collectives of the report that exceed the limit

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class Clock:
    """One report's clock relative to the clock of the first report of its component.

    Subtract `offset` from its times, and `drift` more for each second after `origin`, in ns. `scatter` is the median
    absolute deviation over `count` collectives. `uncertainty` bounds the error of the offset, because no collective
    ends on one rank before all have begun it. `method` is "reference", "collectives", "session start" or "unknown".
    """

    file: str
    method: str
    offset: int
    drift: int
    uncertainty: int | None
    count: int
    session: int | None  # the offset according to the start times of the sessions
    scatter: int = 0
    origin: int = 0

    def to_common(self, times: Times) -> Times:
        """Return times of the report on the common clock."""
        moved: Times = times - self.offset - (times - self.origin) * self.drift // SECOND
        return moved


@dataclass(frozen=True, slots=True)
class CollectiveTimes:
    """Collectives that several ranks ran together, on the common clock; `left_out` counts those that are not here.

    `ranks` are rows of Fleet.ranks; `start` and `end` have a row for each of them, with a value for each collective.
    `kind` has a name for each collective. `first` is the first arrival at any, also at those left out.
    """

    ranks: Times
    kind: tuple[str, ...]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    first: int
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Steps:
    """The iterations of one rank, one value each. `number` is the number in their names, or 0, 1, 2 ...

    `source` is that of model.Iterations, and `time` its mean time from one iteration to the next, ns. `cut` is "gpu"
    if each iteration lasts from the end of the previous one on the GPU to its own end, else "range". The other columns
    are those of model.Iteration, in ns except `kernels`; `idle` has a row for each of model.CAUSES.
    """

    source: str
    time: int
    named: bool  # `number` comes from the names
    cut: str
    skipped: int  # number of warm-up iterations
    number: Times
    wall: Times
    compute: Times
    exposed_communication: Times
    kernels: Times
    idle: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RankWork:
    """The work of one GPU from `start` on, in bins of `width` ns.

    `compute`, `copies` and `communication` are the ns of each bin in which such work runs, which may overlap. `kernel`
    is the compute kernel that runs longest in each bin, an index into `names`, or -1.
    """

    start: int
    width: int
    compute: Times
    copies: Times
    communication: Times
    kernel: Times
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankResult:
    """One GPU of one report. `idle` has one value for each of model.CAUSES."""

    device: str
    gpu: str
    start: int
    end: int
    compute: int
    exposed_communication: int
    idle: tuple[int, ...]
    kernels: int
    steps: Steps | None
    collectives: Collectives
    work: RankWork | None = None  # the steady iterations, or everything without iterations


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The figures of one report, at most 1 MB for each GPU: the limits of ranks/ bound them.

    `epoch` is the Unix time at its clock's zero in ns, if known. `node` is a digest of the name of its host, if known.
    """

    program: Program
    epoch: int | None
    notes: tuple[str, ...]
    ranks: tuple[RankResult, ...]
    node: str | None = None


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
    of its `own` minus the median `own` of the other ranks, and `noise` what of it scatter explains; both are
    None for too few iterations. `wait` is the time in collectives before the last rank arrives, and `bare_wait` a lower
    bound of the time without compute. `caused` and `bare_caused` are the sums over all other ranks of their waits for
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
    node: int | None = None  # number of its host among those of the fleet; None if unknown


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank whose own time exceeds that of the others by more than margin and noise, the reason, and the cost.

    `part` is "compute", "copies" or a cause of model.CAUSES, and `part_lag` its excess over the median of the others.
    `cost` is the idle time per iteration that all others wait for this rank, and `cost_each` the mean over the
    `waiting` ranks that share collectives with it.
    """

    rank: int
    lag: int
    share: float  # share of the own time of a typical iteration of the rank's set
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


@dataclass(frozen=True, slots=True, repr=False)
class Fleet(Paged):
    """Many reports in one result. The same reports give the same bytes on any machine.

    Attributes:
        reports: The files that are read.
        ranks: The figures of each rank, in ns per iteration.
        typical: The median `own` time of an iteration in ns, or None.
        margin: A rank is a straggler if its own time exceeds the others' by this share, from 0 to 1.
        stragglers: The ranks that the others wait for, with their cost in ns.
        advice: What to change, the most expensive problem first, in ns.
        groups: Ranks that take part in the same collectives, with their skew in ns.
        pairs: How long ranks wait for each other, in ns.
        pair_count: The number of all such pairs.
        clocks: The offset of each report's clock, in ns.
        heat: The figures of every rank in every iteration in ns, or None.
        unmatched: The number of collectives that no other rank has.
        notes: What weakens the figures.
        skipped: The reports that cannot be used, with the reason.
        times: Collectives on the common clock in ns, for a timeline of all ranks.
        work: What each rank's GPU does, in ns of bins on the common clock, for the same timeline.
    """

    reports: tuple[str, ...]
    ranks: tuple[Rank, ...]
    typical: int | None
    margin: float
    stragglers: tuple[Straggler, ...]
    advice: tuple[Advice, ...]
    groups: tuple[CollectiveGroup, ...]
    pairs: tuple[Pair, ...]
    pair_count: int
    clocks: tuple[Clock, ...]
    heat: Heat | None
    unmatched: int
    notes: tuple[Note, ...]
    skipped: tuple[Skipped, ...]
    times: tuple[CollectiveTimes, ...] = ()
    work: tuple[RankWork | None, ...] = ()
