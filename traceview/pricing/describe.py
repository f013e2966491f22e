"""The finding of a draft that costs enough: its price, texts, places and doubts, and equal ones of several devices.

A place in idle time is where the host was: a source line or a system call, with what helps there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.measure.exposure import COMMUNICATION_WORK
from traceview.model.analysis import Analysis, DeviceUse, Gaps, HostStates, Iterations, NotMeasured
from traceview.model.catalogue import read_toml
from traceview.model.findings import NO_GAIN, Finding, Place, severity_from_share
from traceview.model.names import title_name, with_title_names
from traceview.model.rows import SourceLine, place_text
from traceview.model.stacks import SYSTEM_FUNCTION, SYSTEM_MODULE, HostEvidence, HostPlace
from traceview.model.trace import Note
from traceview.model.units import SIZES, TIMES, duration, quantity, share
from traceview.pricing.base import MIN_SHARE, FindingDraft, GpuWork
from traceview.pricing.ledger import Claim, GapClaim, Grant, KernelClaim
from traceview.pricing.packages import AnyRule, entry_of
from traceview.pricing.texts import PRICED, FindingTexts, texts_for

MIN_LINE_SHARE, MIN_WAIT_SHARE = 0.1, 0.3  # share of the idle time from which a line or a call is named
MOSTLY = 0.5
MAX_GAPS = 30_000  # gaps of a finding that are looked at
MOST_TIME = 0.9  # share of the idle time with which the longest gaps stand for all
NOT_OF_THE_HOST = {"profiler", "queued", "unknown"}  # causes of idle time that no line of the program explains
_TEXTS = read_toml(Path(__file__).with_name("host_advice.toml"))
ADVICE: list[tuple[str, str]] = _TEXTS["advice"]
CALLS: list[tuple[str, str]] = _TEXTS["calls"]
STATES: Mapping[str, Mapping[str, str]] = _TEXTS["states"]
# The program's own functions that make batches, by name.
MAKES_BATCHES = re.compile(r"(?:^|[_.])(?:batch|collate|load_|__getitem__|next_)|batch$", re.IGNORECASE)
BATCHES_AHEAD = "The loop makes its next batch here: make it in worker processes or a thread while the GPU works. "
LISTED = "See the table of lines that made the GPU wait."
UNSEEN = "nsys takes no stack while a thread holds the lock: look at what runs between these lines. "

# The idle time of a line that a finding can be about: outside CUDA calls, inside them, or both.
LINE_TIMES: Mapping[str, Callable[[SourceLine], int]] = {
    "host": lambda line: line.host_ns,
    "calls": lambda line: line.idle_ns - line.host_ns,
    "both": lambda line: line.idle_ns,
}


class FindingPlace(NamedTuple):
    """Words at the end of a title, advice on the place (also in one line), and the place; all may be empty."""

    where: str = ""
    advice: str = ""
    place: HostPlace | None = None
    remedy: str = ""


NOWHERE = FindingPlace()


class IdleHost(NamedTuple):
    """What the host did in the idle time of a finding: its ns, and those that were looked at, by source line.

    `states` returns the states of threads in the looked-at time with the cause `host`, or in that at a line.
    """

    idle_ns: int
    looked_ns: int
    lines: tuple[SourceLine, ...]
    states: Callable[[SourceLine | None], HostStates]


def ask_for_host(claims: Sequence[Claim]) -> bool:
    """Return whether a finding claims idle time that lines of the program can explain."""
    return not claimed_causes(claims) <= NOT_OF_THE_HOST


def claimed_causes(claims: Sequence[Claim]) -> set[str]:
    """Return the causes of idle time that a finding claims."""
    return {cause for claim in claims if isinstance(claim, GapClaim) for cause in claim.causes}


def granted_gaps(device: GpuWork, grant: Grant) -> tuple[pl.DataFrame, int]:
    """Return the gaps of a grant to look at, rows of Gaps.frame, and the ns that are granted of them."""
    positions = _sample_gaps(grant.idle)
    rows = positions + grant.rows.start if isinstance(grant.rows, slice) else grant.rows[positions]
    return device.gaps.frame[rows], int(grant.idle[positions].sum())


def name_place(evidence: HostEvidence, claims: Sequence[Claim], host: IdleHost | None) -> FindingPlace:
    """Return where the host was in the idle time of a finding, if the capture shows it.

    A place that has less than MOSTLY of the time is in no title, and its remedy is that of several places.
    """
    if host is None:
        return NOWHERE
    place = _likely_place(evidence, claims, host)
    if place.place is None or place.place.time_ns > MOSTLY * host.idle_ns:
        return place
    return place._replace(where="", remedy=LISTED if place.place.stack else "")


def _likely_place(evidence: HostEvidence, claims: Sequence[Claim], host: IdleHost) -> FindingPlace:
    total, scale = host.looked_ns, host.idle_ns / host.looked_ns
    first, causes = next(claim for claim in claims if isinstance(claim, GapClaim)), claimed_causes(claims)
    share = LINE_TIMES["host" if causes == {"host"} else "calls" if "host" not in first.causes else "both"]
    line = max(filter(_names_who, host.lines), key=share, default=None)
    if line is not None and share(line) >= MIN_LINE_SHARE * total:
        time_ns = int(min(share(line), total) * scale)
        if causes == {"host"}:
            return _host_line(line, time_ns, host.states(line), evidence, _part(time_ns, host.idle_ns))
        return FindingPlace(f", mostly at {_words(line)}", _advice(line.stack), _host_place(line, time_ns, evidence))
    return NOWHERE if causes != {"host"} else _state_place(host.states(None), total, scale)


def _part(time_ns: int, idle_ns: int) -> str:
    """Return how much of the idle time is at a place: "3.10 ms "; "" for all of it."""
    return "" if duration(time_ns) == duration(idle_ns) else f"{duration(time_ns)} "


def _sample_gaps(idle: Times) -> Times:
    """Return the positions of at most MAX_GAPS gaps: the longest ones if they have MOST_TIME, else every n-th one."""
    positions = np.flatnonzero(idle)
    if len(positions) <= MAX_GAPS:
        return positions
    longest = np.argpartition(idle[positions], -MAX_GAPS)[-MAX_GAPS:]
    if idle[positions[longest]].sum() >= MOST_TIME * idle.sum():
        return positions[np.sort(longest)]
    return positions[:: -(-len(positions) // MAX_GAPS)]


def _names_who(line: SourceLine) -> bool:
    """Return whether a line shows more than a runtime, the system, or an unknown function."""
    unknown = line.function.startswith("(") or re.search(SYSTEM_FUNCTION, line.function)
    return bool(line.line) or not (unknown or re.search(SYSTEM_MODULE, line.file))


def _host_line(line: SourceLine, time_ns: int, states: HostStates, evidence: HostEvidence, part: str) -> FindingPlace:
    """Return a line with the state that the thread has there; `part` says how much of the time is there."""
    state = max(states.ns, key=states.ns.__getitem__)
    if state == "unattributed" or states.ns[state] < MOSTLY * sum(states.ns.values()):
        state = ""
    call = max(states.waits, key=states.waits.__getitem__, default="") if state == "waiting" else ""
    awaited = _awaited(states) if call else ""
    waiting = f", waiting in `{call}`" + (f" for {awaited}" if awaited else "") if call else ""
    where = f", {part}at {_words(line)}{waiting}"
    makes_batches = BATCHES_AHEAD if MAKES_BATCHES.search(line.function) else ""
    advice = UNSEEN if line.until else _advice(line.stack) or _advice(call or state) or makes_batches
    place = replace(_host_place(line, time_ns, evidence), state=state, waits_in=call, waits_for=awaited)
    return FindingPlace(where, advice, place, "" if state == "off_cpu" else _remedy(state, call, awaited))


def _awaited(states: HostStates) -> str:
    """Return the thread or process for which the host waits most of the time that it waits; "" if none is."""
    awaited = max(states.waits_for, key=states.waits_for.__getitem__, default="")
    return awaited if states.waits_for.get(awaited, 0) >= MOSTLY * sum(states.waits.values()) else ""


def _host_place(line: SourceLine, time_ns: int, evidence: HostEvidence) -> HostPlace:
    stack = evidence.stack(line.node)
    keys = [(frame.file, frame.line, line.line or frame.function) for frame in stack]
    own = [at for at, key in enumerate(keys) if key == (line.file, line.line, line.line or line.function)]
    return HostPlace(time_ns, stack, own[-1] if own else 0)


def _words(line: SourceLine) -> str:
    if line.until:
        return f"code that holds the interpreter lock between {place_text(line.file, line.line)} and {line.until}"
    return f"{line.place} ({line.function})" if line.line else line.place


def _state_place(states: HostStates, total: int, scale: float) -> FindingPlace:
    """Return the longest system call or another state that explains the time, if one does."""
    longest = max(states.waits, key=states.waits.__getitem__, default="")
    times = {longest: states.waits.get(longest, 0), **{name: states.ns[name] for name in STATES}}
    name = max(times, key=times.__getitem__)
    if times[name] < MIN_WAIT_SHARE * total:
        return NOWHERE
    time_ns = int(min(times[name], total) * scale)
    where = STATES[name]["words"] if name in STATES else f"in `{name}`"
    state, call = (name, "") if name in STATES else ("waiting", name)
    awaited = _awaited(states) if call else ""
    where += f" for {awaited}" if awaited else ""
    place = HostPlace(time_ns, state=state, waits_in=call, waits_for=awaited)
    part = _part(time_ns, int(total * scale))
    return FindingPlace(f", {part}{where}", _advice(name), place, _remedy(state, call, awaited))


def _remedy(state: str, call: str, awaited: str) -> str:
    """Return the advice on a state of the host in one line; "" if the place needs none of its own."""
    if "autograd" in awaited:
        return "Make the backward pass launch faster: compile it, or launch less."
    if awaited:
        return f"Start the work of {awaited} earlier, or make it faster."
    if call:
        known = (text for pattern, text in CALLS if re.search(pattern, call))
        return next(known, f"Find what ends the wait in `{call}`.")
    return STATES[state]["remedy"] if state in STATES else ""


def _advice(place: str) -> str:
    """Return what helps at library functions, as SourceLine.stack has them, in a call or in a state; or ""."""
    return next((f"{text} " for pattern, text in ADVICE if re.search(pattern, place)), "")


ALIKE = 0.5  # share of the highest cost; a device with less has another problem, such as a slow rank
UNITS = "|".join(unit for _, unit in (*TIMES, *SIZES))
FIGURE = re.compile(rf"\d[\d.,]*(?: ?(?:{UNITS}|%)(?!\w))?")  # a number with its unit in a title


class Price(NamedTuple):
    """The price of a grant in ns, its gaps, what of it is in the steady part, and its share of the device's time.

    `profiler` is what of the price a run without the profiler does not pay, None if it is unknown.
    `unprofiled_share` is the share in that run, or `share`.
    """

    total: int
    gaps: int
    steady: int
    share: float
    profiler: int | None
    unprofiled_share: float

    @classmethod
    def from_grant(cls, analysis: Analysis, use: DeviceUse, draft: FindingDraft, grant: Grant) -> Price:
        """Price the grant of a draft on a device with these figures."""
        whole, gaps = _priced_time(analysis, use, draft), analysis.covered(use).gaps
        total, profiler = grant.total + draft.outside_ns, _profiler_ns(gaps, grant)
        left = whole - sum((gaps.profiler or {}).values())
        return cls(
            total=total,
            gaps=grant.gaps,
            steady=grant.total_inside(draft.device.steady_gaps, draft.device.steady),
            share=total / whole if whole else 0.0,
            profiler=profiler,
            unprofiled_share=(total - (profiler or 0)) / left if left else 0.0,
        )

    def is_enough_for(self, draft: FindingDraft) -> bool:
        """Return whether the price makes a draft a finding."""
        return self.share >= MIN_SHARE and self.gaps >= draft.min_gaps and self.total >= draft.min_ns


def _priced_time(analysis: Analysis, use: DeviceUse, draft: FindingDraft) -> int:
    """Return the time of which the price of a draft on a device is a share."""
    return analysis.run.length if draft.of_run else analysis.covered_ns(use)


def _profiler_ns(gaps: Gaps, grant: Grant) -> int | None:
    """Return the ns of a grant that a run without the profiler does not lose; None if it is unknown."""
    if gaps.profiler is None:
        return None
    return sum(ns * gaps.profiler[cause] // max(gaps.causes[cause], 1) for cause, ns in grant.causes)


class Details(NamedTuple):
    """What shows a finding: the places with the most time, what the host did, and whether compute is claimed."""

    places: tuple[Place, ...]
    host: IdleHost | None
    computes: bool


def describe(analysis: Analysis, draft: FindingDraft, texts: FindingTexts, price: Price, details: Details) -> Finding:
    """Return the finding of a draft that costs enough."""
    # The place explains some of the cost. A title without it has another figure, which can be less.
    in_gaps = draft.outside_ns <= MOSTLY * price.total  # else the place says nothing of most of it
    place = name_place(analysis.trace.evidence, draft.claims, details.host if in_gaps else None)
    texts = texts.at_known_place() if place.where else texts
    at_place = place.remedy if texts.templates.get("known") else ""
    window = draft.device.steady.length if price.gaps else 0  # without gaps, it is work: all iterations have theirs
    is_hidden = draft.once and price.share <= MOSTLY  # a longer run hides it
    return Finding(
        id=draft.id,
        severity="low" if texts["no_gain"] or is_hidden else severity_from_share(price.unprofiled_share),
        title=with_title_names(texts["title"] + place.where),
        evidence=draft.evidence or details.places,
        cost_ns=price.total,
        advice=place.advice + texts["advice"],
        code=texts.code,
        device=draft.device.use.id,
        cost_fraction=price.share,
        cost_per_iteration_ns=_cost_per_iteration(analysis, price, window),
        unprofiled_cost_ns=None if price.profiler is None else price.total - price.profiler,
        unprofiled_cost_per_iteration_ns=_unprofiled_cost_per_iteration(analysis, price, window),
        unprofiled_cost_fraction=None if price.profiler is None else price.unprofiled_share,
        claims="compute" if details.computes else "waiting",
        host=place.place,
        change=texts["change"],
        loss=texts["loss"],
        effect="" if at_place and place.where else texts["effect"],
        remedy=at_place or texts["remedy"].strip(),
        otherwise=texts["otherwise"],
        gain=replace(NO_GAIN, reason=texts["no_gain"]),
        once=draft.once,
    )


def _cost_per_iteration(analysis: Analysis, price: Price, window: int) -> int | None:
    """Return the mean cost in an iteration, at most the time of an iteration; None without iterations or cost.

    `window` is the time from the GPU's first work in the iterations to its last, in ns. Idle time has a price only
    there. 0 stands for all iterations.
    """
    iterations = analysis.iterations
    if isinstance(iterations, NotMeasured) or not iterations.counted or not price.steady:
        return None
    each = iterations.time_ns * price.steady // window if window else price.steady // iterations.counted
    return min(each, iterations.time_ns)


def _unprofiled_cost_per_iteration(analysis: Analysis, price: Price, window: int) -> int | None:
    """Return the mean cost in an iteration without the profiler, at most the time of an iteration then."""
    iterations, each = analysis.iterations, _cost_per_iteration(analysis, price, window)
    if isinstance(iterations, NotMeasured) or iterations.unprofiled is None or price.profiler is None or each is None:
        return None
    return min(each * (price.total - price.profiler) // max(price.total, 1), iterations.unprofiled.mean_ns)


def texts_of_draft(rule: AnyRule, draft: FindingDraft, analysis: Analysis, price: Price) -> FindingTexts | None:
    """Return the texts of a draft at a price; None if its remedy does not apply to the program."""
    words = zip(PRICED, (duration(price.total), share(price.share, 1), f"{price.gaps:,}"), strict=True)
    values = {**draft.values, **dict(words)}
    repeats = not isinstance(analysis.iterations, NotMeasured)
    entry, profiler = entry_of(rule, draft.id), analysis.info.profiler
    return texts_for(entry, draft.case, analysis.program, values, profiler, repeats=repeats)


class PricedFinding(NamedTuple):
    """A finding, and FindingDraft.same_everywhere."""

    finding: Finding
    same_everywhere: bool


def join_devices(priced: Sequence[PricedFinding]) -> Iterator[Finding]:
    """Join findings that differ in the device and in figures alone, and cost at least ALIKE of the costliest one.

    The words and the place may differ too if the remedy is the same everywhere. What occurs once in a run is one
    finding, whatever it costs on each device: a run starts and ends once.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding, same_everywhere in priced:
        place = finding.host and finding.host.stack and finding.host.stack[finding.host.own]
        base: tuple[object, ...] = (finding.id, finding.once)
        if not finding.once:
            base += (finding.remedy,) if same_everywhere else (FIGURE.sub("#", finding.title), place)
        number = 0
        while not _joins(finding, groups.get((*base, number), ())):
            number += 1
        groups.setdefault((*base, number), []).append(finding)
    for first, *others in groups.values():
        yield replace(first, others=tuple(others))


def _joins(finding: Finding, group: Sequence[Finding]) -> bool:
    """Return whether a finding can join a group, whose first finding is the costliest."""
    if any(other.device == finding.device for other in group):
        return False
    return finding.once or not group or decisive_cost(finding) >= ALIKE * decisive_cost(group[0])


def decisive_cost(finding: Finding) -> int:
    """Return the cost of a finding: without the profiler if that is known."""
    return finding.cost_ns if finding.unprofiled_cost_ns is None else finding.unprofiled_cost_ns


def affected_words(draft: FindingDraft) -> set[str]:
    """Return the words of Note.affects that affect a finding or the time that it claims."""
    words = {draft.id, "findings"}
    for claim in draft.claims:
        if isinstance(claim, GapClaim):
            words |= {"idle", *(f"idle.{cause}" for cause in claim.causes)}
        elif isinstance(claim, KernelClaim):
            words.add("compute")
        else:
            words |= {COMMUNICATION_WORK if key == COMMUNICATION_WORK else "copies" for key in claim.keys}
    return words


def stated_doubt(words: set[str], doubts: Sequence[Note]) -> str | None:
    """Return the first statement of a note that affects one of these words (see affected_words); None without one."""
    text = next((note.text for note in doubts if not words.isdisjoint(note.affects)), None)
    return None if text is None else re.split(r"[:;.] ", text, maxsplit=1)[0]


# A stall is a single iteration that holds much of the cost of a finding (docs/definitions.md "Iterations").
MIN_STALL_SHARE = 0.1  # share of the cost
MIN_RATIO = 5  # the cost of the iteration over that of each other one
MIN_COUNTED = 4


def with_stall(finding: Finding, iterations: Iterations | NotMeasured) -> Finding:
    """Return a finding that names the iteration with a tenth or more of its cost, and says what the others cost."""
    each = finding.cost_per_iteration_ns
    if isinstance(iterations, NotMeasured) or each is None or iterations.counted < MIN_COUNTED:
        return finding
    costs = _costs_by_iteration(finding, iterations)
    if not costs:
        return finding
    [(number, cost)] = costs.most_common(1)
    others = max(each * iterations.counted - cost, 0) // (iterations.counted - 1)
    if cost < MIN_STALL_SHARE * finding.cost_ns or cost < MIN_RATIO * others:
        return finding
    if _ends_loop(number, iterations):
        title = f"{finding.title}; {duration(cost)} between two loops"
        if cost <= MOSTLY * finding.cost_ns:
            return replace(finding, title=title)
        effect = "a shorter pause between the loops"
        return replace(finding, title=title, loss="the pause between two loops", effect=effect)
    name = f"`{title_name(iterations.per_iteration[number].name)}`"
    rest = quantity(iterations.counted - 1, "other iteration")
    return replace(
        finding,
        title=f"{finding.title}; {duration(cost)} in one iteration",
        advice=f"{name} stalls: the {rest} cost {duration(others)} each. {finding.advice}",
    )


def _ends_loop(number: int, iterations: Iterations) -> bool:
    """Return whether a loop ends with an iteration, and all kinds of iterations after it begin with the next one."""
    before = [kind.count for kind in iterations.kinds if kind.first <= number]
    begins = any(kind.first == number + 1 for kind in iterations.kinds)
    return begins and sum(before) == number + 1 - iterations.skipped


def _costs_by_iteration(finding: Finding, iterations: Iterations) -> Counter[int]:
    """Return what the costliest places of a finding cost in ns, by the number of the counted iteration."""
    start = np.array([iteration.start_ns for iteration in iterations.per_iteration], np.int64)
    costs = Counter[int]()
    for place in finding.evidence if finding.claims == "waiting" else ():
        number = int(np.searchsorted(start, place.start_ns, side="right")) - 1
        if number >= iterations.skipped and place.start_ns < iterations.steady.end:
            costs[number] += place.cost_ns
    return costs
