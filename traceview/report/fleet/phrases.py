"""Sentences about a fleet for the terminal and the page."""

from __future__ import annotations

from traceview.model.collectives import Clock
from traceview.model.fleet import Advice, Fleet, Heat
from traceview.units import duration, quantity, share


def headline(fleet: Fleet) -> str:
    """Return one line on the reports, the ranks and the iterations."""
    parts = [f"{quantity(len(fleet.reports), 'report')}, {quantity(len(fleet.ranks), 'rank')}"]
    if fleet.heat is not None and fleet.typical is not None:
        parts.append(_iterations(fleet.heat))
        parts.append(f"one takes {duration(max(rank.time or 0 for rank in fleet.ranks))} on the slowest rank")
        parts.append(f"median own time {duration(fleet.typical)} per iteration")
    if fleet.skipped:
        parts.append(f"{len(fleet.skipped):,} SKIPPED")
    return " · ".join(parts)


def _iterations(heat: Heat) -> str:
    steady = heat.steps[heat.steady == 1]
    if not len(steady):
        return "no steady iterations"
    skipped = len(heat.steps) - len(steady)
    return f"iterations {steady[0]} to {steady[-1]}" + (f" ({skipped} skipped)" if skipped else "")


def title(fleet: Fleet) -> str:
    """Return the title of the page: the number of stragglers, where it is known."""
    ranks = quantity(len(fleet.ranks), "rank")
    if fleet.stragglers:
        return verdict(fleet).removesuffix(".")
    return f"{ranks}, no straggler" if any(rank.lag is not None for rank in fleet.ranks) else ranks


def verdict(fleet: Fleet) -> str:
    """Return one sentence on whether there are stragglers."""
    if fleet.stragglers:
        return f"{quantity(len(fleet.stragglers), 'straggler')} of {len(fleet.ranks):,} ranks."
    if not any(rank.lag is not None for rank in fleet.ranks):
        return "Stragglers are unknown: this needs two ranks with three iterations in common."
    least = f"{100 * fleet.margin:g}%"
    return f"No straggler: no rank's own time exceeds the others' by more than {least} and its own scatter."


def answer(fleet: Fleet) -> str:
    """Return one sentence on stragglers, and what the first of them costs the others."""
    first = f" {price(fleet, fleet.advice[0])}." if fleet.advice else ""
    return f"{verdict(fleet)}{first}"


def price(fleet: Fleet, advice: Advice) -> str:
    """Return the cost that the advice would save."""
    whole = "an iteration" if fleet.heat is not None else "the capture"
    if not fleet.groups:
        return "Cost to the other ranks unknown: no collective was matched"
    if advice.cost == 0:
        return "No other rank was seen to wait for it in a collective"
    ranks = "The other rank" if advice.waiting == 1 else f"Each of {advice.waiting:,} ranks"
    return (
        f"{ranks} loses at least {duration(advice.each)} of {whole} of "
        f"{duration(advice.wall)} ({share(advice.each, advice.wall)}); {duration(advice.cost)} in total"
    )


def clock_line(clock: Clock) -> str:
    """Return how the clock of one report was aligned."""
    if clock.method == "reference":
        return "reference clock"
    if clock.method == "unknown":
        return "not aligned: no collective in common with the reports above, and no session start time"
    if clock.method == "session start":
        return "aligned by session start time, which is as exact as the hosts' clocks"
    drift = f", drifting {clock.drift:+,} ns per second" if clock.drift else ""
    return f"aligned by {clock.count:,} collectives, ± {duration(clock.uncertainty or 0)}{drift}"


def session_line(clock: Clock) -> str:
    """Return the difference between the alignment by session start and the alignment by collectives."""
    if clock.session is None or clock.method != "collectives":
        return ""
    return f"{duration(abs(clock.session - clock.offset))} from the alignment by session start time"


def clocks_line(fleet: Fleet) -> str:
    """Return one sentence on the alignment of all clocks."""
    if len(fleet.clocks) < 2:
        return "Clocks: one report needs no alignment."
    measured = [clock for clock in fleet.clocks if clock.method == "collectives"]
    by_day = sum(clock.method == "session start" for clock in fleet.clocks)
    unknown = sum(clock.method == "unknown" for clock in fleet.clocks)
    parts = []
    if measured:
        unsure = max(clock.uncertainty or 0 for clock in measured)
        parts.append(f"{len(measured):,} aligned by shared collectives (at most ± {duration(unsure)})")
    apart = [abs(clock.session - clock.offset) for clock in measured if clock.session is not None]
    if apart:
        parts.append(f"session start times agree within {duration(max(apart))}")
    if by_day:
        parts.append(f"{by_day:,} aligned by session start time only")
    if unknown:
        parts.append(f"{unknown:,} not aligned")
    return f"Clocks of {len(fleet.clocks):,} reports: {'; '.join(parts)}."
