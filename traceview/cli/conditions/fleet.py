"""`fleet --fail-if 'straggler > 5%'`: the quantities of a fleet.

A condition on a quantity of ranks holds when it holds for any rank. `%` refers to the rank's wall time, for straggler
and own to the own time of a typical iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from traceview.cli.conditions import Condition, parse_condition
from traceview.errors import RequestError
from traceview.model.fleet import Fleet, Rank
from traceview.model.units import exact_duration


def _uncertainty(of_clocks: Sequence[int | None]) -> int | None:
    """Return the largest uncertainty of clocks; None if fewer than two are known: a single clock is the reference."""
    known = [ns for ns in of_clocks if ns is not None]
    return max(known) if len(known) > 1 else None


RANK_TIMES: Mapping[str, Callable[[Rank], int | None]] = {
    "straggler": lambda rank: rank.lag,
    "own": lambda rank: rank.own,
    "wait": lambda rank: rank.bare_wait if rank.matched else None,
    "caused": lambda rank: rank.bare_caused if rank.matched else None,
    "wall": lambda rank: rank.wall,
    "compute": lambda rank: rank.compute,
    "exposed_communication": lambda rank: rank.exposed_communication,
    "idle": lambda rank: rank.idle,
}
SHARES_OF_TYPICAL = ("straggler", "own")
# None: not measured.
FLEET_TIMES: Mapping[str, Callable[[Fleet], int | None]] = {
    "skew.median": lambda fleet: max((group.skew_median for group in fleet.groups), default=None),
    "skew.p95": lambda fleet: max((group.skew_p95 for group in fleet.groups), default=None),
    "clock.uncertainty": lambda fleet: _uncertainty([clock.uncertainty for clock in fleet.clocks]),
}
COUNTS: Mapping[str, Callable[[Fleet], int | None]] = {
    "stragglers": lambda fleet: len(fleet.stragglers) if any(rank.lag is not None for rank in fleet.ranks) else None,
    "ranks": lambda fleet: len(fleet.ranks),
    "reports": lambda fleet: len(fleet.reports),
    "skipped": lambda fleet: len(fleet.skipped),
    "unmatched": lambda fleet: fleet.unmatched if fleet.unmatched or fleet.groups else None,
}
TWO_RANKS = "it needs two ranks with three iterations each"
COLLECTIVES = "it needs collectives that two ranks take part in"
NEEDS = {
    **dict.fromkeys((*RANK_TIMES, "stragglers"), TWO_RANKS),
    **dict.fromkeys(("wait", "caused", *FLEET_TIMES, "unmatched"), COLLECTIVES),
}
QUANTITIES = (*RANK_TIMES, *FLEET_TIMES, *COUNTS)


def parse(text: str) -> Condition:
    """Parse one condition. Raises RequestError."""
    condition = parse_condition(text, QUANTITIES, example="straggler > 5%")
    if condition.quantity in COUNTS and condition.unit:
        condition.refuse(f"{condition.quantity} is a count; compare it with a plain number")
    if condition.quantity in FLEET_TIMES and condition.unit == "%":
        condition.refuse(f"{condition.quantity} is a time; compare it with ns, us, ms or s")
    return condition


def failures(conditions: Iterable[Condition], fleet: Fleet) -> Iterator[str]:
    """Yield one line for each condition that holds; for a quantity of ranks, the line names the rank with the most.

    Raises RequestError where a quantity was not measured.
    """
    for condition in conditions:
        quantity = condition.quantity
        if quantity in RANK_TIMES:
            yield from _rank_failures(condition, fleet)
            continue
        figure = COUNTS[quantity](fleet) if quantity in COUNTS else FLEET_TIMES[quantity](fleet)
        if figure is None:
            raise _not_measured(condition)
        if condition.holds(Decimal(figure)):
            text = str(figure) if quantity in COUNTS else exact_duration(figure)
            yield f"{condition.text}: {quantity} is {text}"


def _rank_failures(condition: Condition, fleet: Fleet) -> Iterator[str]:
    values = [
        (value, rank)
        for rank in fleet.ranks
        if (value := RANK_TIMES[condition.quantity](rank)) is not None
        if condition.unit != "%" or _total(condition, rank)
    ]
    if not values:
        raise _not_measured(condition)
    failing = [(value, rank) for value, rank in values if condition.holds(_comparable(condition, value, rank))]
    if failing:
        value, rank = max(failing, key=lambda pair: pair[0])
        time = exact_duration(value)
        text = f"{_comparable(condition, value, rank):.3f}% ({time})" if condition.unit == "%" else time
        more = f" and on {len(failing) - 1} more" if len(failing) > 1 else ""
        yield f"{condition.text}: {condition.quantity} is {text} on {rank.label}{more}"


def _comparable(condition: Condition, value: int, rank: Rank) -> Decimal:
    """Return a time in the unit of the condition: a percentage or ns."""
    if condition.unit != "%":
        return Decimal(value)
    return Decimal(100 * value) / (_total(condition, rank) or 1)


def _total(condition: Condition, rank: Rank) -> int | None:
    """Return the time of a rank that is 100%."""
    return rank.typical if condition.quantity in SHARES_OF_TYPICAL else rank.wall


def _not_measured(condition: Condition) -> RequestError:
    return RequestError(
        f"--fail-if {condition.text}: {condition.quantity} was not measured; {NEEDS[condition.quantity]}"
    )
