"""`fleet --fail-if 'straggler > 5%'`: the quantities of a fleet.

A condition on a quantity of ranks holds when it holds for any rank. `%` refers to the rank's wall time, for straggler
and own to the own time of a typical iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal

from traceview.cli.conditions import Condition, parse_condition
from traceview.errors import RequestError
from traceview.model.fleet import Fleet, Rank
from traceview.units import exact_duration

RANK_TIMES: Mapping[str, Callable[[Rank], int | None]] = {
    "straggler": lambda rank: rank.lag,
    "own": lambda rank: rank.own,
    "wait": lambda rank: rank.bare_wait,
    "caused": lambda rank: rank.bare_caused,
    "wall": lambda rank: rank.wall,
    "compute": lambda rank: rank.compute,
    "exposed_communication": lambda rank: rank.exposed_communication,
    "idle": lambda rank: rank.idle,
}
SHARES_OF_TYPICAL = ("straggler", "own")
FLEET_TIMES: Mapping[str, Callable[[Fleet], int]] = {
    "skew.median": lambda fleet: max((group.skew_median for group in fleet.groups), default=0),
    "skew.p95": lambda fleet: max((group.skew_p95 for group in fleet.groups), default=0),
    "clock.uncertainty": lambda fleet: max((clock.uncertainty or 0 for clock in fleet.clocks), default=0),
}
COUNTS: Mapping[str, Callable[[Fleet], int]] = {
    "stragglers": lambda fleet: len(fleet.stragglers),
    "ranks": lambda fleet: len(fleet.ranks),
    "reports": lambda fleet: len(fleet.reports),
    "skipped": lambda fleet: len(fleet.skipped),
    "unmatched": lambda fleet: fleet.unmatched,
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
        if condition.holds(Decimal(figure)):
            text = str(figure) if quantity in COUNTS else exact_duration(figure)
            yield f"{condition.text}: {quantity} is {text}"


def _rank_failures(condition: Condition, fleet: Fleet) -> Iterator[str]:
    values = [(value, rank) for rank in fleet.ranks if (value := RANK_TIMES[condition.quantity](rank)) is not None]
    if not values:
        raise RequestError(
            f"--fail-if {condition.text}: {condition.quantity} was not measured; "
            "it needs two ranks with three iterations each"
        )
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
    total = rank.typical if condition.quantity in SHARES_OF_TYPICAL else rank.wall
    return Decimal(100 * value) / total if total else Decimal(0)
