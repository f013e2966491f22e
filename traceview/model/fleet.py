"""What many reports become: one small result each, and one Fleet of them all.

Times are whole ns. A rank is one GPU of one report. Results travel between processes and machines in the
form that traceview.fleet.serialization defines; nothing here opens a file, measures or prints.
"""

from __future__ import annotations

from dataclasses import dataclass

from traceview.intervals import Times

# What an iteration of a rank is made of, as traceview.measure.iterations.breakdown measures it; ns, but kernels.
STEP_FIGURES = ("wall", "compute", "communication", "exposed_communication", "idle", "blocked", "kernels")


@dataclass(frozen=True, slots=True)
class Steps:
    """The iterations of one rank, one value each; `number` is what their names say, or 0, 1, 2 ...

    `cut` is "gpu" where each lasts from the end of one on the GPU to the end of the next, else "range". `figures`
    holds one array for each of STEP_FIGURES, in that order; `idle` one for each of model.CAUSES.
    """

    name: str
    named: bool  # the numbers stand in the names
    cut: str
    number: Times
    skipped: int  # so many first ones are set aside as warm-up
    figures: tuple[Times, ...]
    idle: tuple[Times, ...]

    def figure(self, name: str) -> Times:
        """Return one figure of every iteration."""
        return self.figures[STEP_FIGURES.index(name)]


@dataclass(frozen=True, slots=True)
class Channel:
    """Where a rank's collectives ran in order: a communicator where the capture names it, or a stream."""

    communicator: str | None
    stream: int


@dataclass(frozen=True, slots=True)
class Collectives:
    """A rank's communication kernels in the order of their launches; `kind` and `channel` index the tuples.

    `step` is the number of the iteration that launched each, or BEFORE_ALL; `hidden` how many ns of it had
    compute beside it on the same GPU.
    """

    kinds: tuple[str, ...]
    channels: tuple[Channel, ...]
    start: Times
    end: Times
    hidden: Times
    step: Times
    kind: Times
    channel: Times
    left_out: int  # so many more were in the report


@dataclass(frozen=True, slots=True)
class RankResult:
    """One GPU of one report; `idle` has one value for each of model.CAUSES."""

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


@dataclass(frozen=True, slots=True)
class ReportResult:
    """What is kept of one report. `epoch` is the time of day at its clock's zero in ns, where it says so."""

    nsys_version: str | None
    epoch: int | None
    notes: tuple[str, ...]
    ranks: tuple[RankResult, ...]


@dataclass(frozen=True, slots=True)
class Skipped:
    """A report that could not be used, by the name that the fleet gives it, and why."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Clock:
    """One report's clock against that of the first report of its component.

    `offset` is what to take from its times; `drift` what more of it for each second, in ns. `uncertainty` is the
    median absolute deviation of what it rests on: `count` collectives. `method` is "reference", "collectives",
    "session start" or "unknown".
    """

    file: str
    method: str
    offset: int
    drift: int
    uncertainty: int | None
    count: int
    session: int | None  # the same offset by the times of day at which the sessions began


@dataclass(frozen=True, slots=True)
class CollectiveGroup:
    """Ranks that ran the same collectives together, and how their arrivals differed.

    `ranks` are rows of Fleet.ranks. `how` is "communicator" or "order". Skew is last less first arrival;
    `transfer` the median of the shortest kernel of each collective; `last` the rank that came last most often.
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
    """How long one rank waited in collectives to which another came last; both are rows of Fleet.ranks."""

    waiter: int
    last: int
    waited: int
    count: int


@dataclass(frozen=True, slots=True)
class Rank:
    """One row of the fleet: means of its steady iterations, or sums of the whole window where it has none.

    `own` is wall less exposed communication: what the rank takes on its own account. `lag` is the median, over
    iterations, of its own less the median own of the other ranks, `noise` what of that scatter explains; None where
    there are too few. `wait` is waiting in collectives, `bare_wait` at least how much of it had no compute beside it;
    `caused` and `bare_caused` are what all others together waited for this rank. Of all `matched` collectives it
    came last to `last_count`.
    """

    label: str
    file: str
    report: int
    device: str
    gpu: str
    iterations: int
    wall: int
    compute: int
    exposed_communication: int
    copies: int  # copies and memsets with nothing else beside them
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
    set: int  # ranks that share collectives, from 0; lags are those within a set
    typical: int | None  # median own time of an iteration of its set, ns


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank whose own time is longer than the others' beyond margin and noise, what of, and what it cost.

    `part` is one of "compute", "copies" or a cause of model.CAUSES; `part_lag` how much longer that part is than the
    median of the others. `cost` is what the others waited for it in an iteration with nothing else to do, all
    together; `cost_each` the same for each of the `waiting` ranks that run collectives with it.
    """

    rank: int
    lag: int
    share: float  # of a typical iteration's own time, of its set
    part: str
    part_lag: int
    more_kernels: int
    cost: int
    cost_each: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What to change, dearest first.

    `cost` is waiting in ns, of an iteration where there are some, of all ranks; `each` the same for each of the
    `waiting` ranks: those that wait for the one at fault, or all that run collectives where it is not one. `wall` is
    how long an iteration of those takes, their median.
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
    """Figures of every rank in every iteration: one row a rank, -1 where it has no such iteration."""

    steps: Times
    steady: Times  # 1 where an iteration counts, 0 where it is set aside
    wall: Times
    own: Times
    compute: Times
    wait: Times


@dataclass(frozen=True, slots=True)
class Fleet:
    """Many reports in one result; the same reports give the same bytes, wherever they were read."""

    reports: tuple[str, ...]
    ranks: tuple[Rank, ...]
    typical: int | None  # median own time of an iteration, ns
    margin: float
    stragglers: tuple[Straggler, ...]
    advice: tuple[Advice, ...]
    groups: tuple[CollectiveGroup, ...]
    pairs: tuple[Pair, ...]
    pair_count: int
    clocks: tuple[Clock, ...]
    heat: Heat | None
    unmatched: int  # collectives without a counterpart
    notes: tuple[str, ...]
    skipped: tuple[Skipped, ...]
