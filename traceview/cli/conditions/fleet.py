"""`--fail-if 'straggler > 5%'` for a fleet: the grammar of grammar, these quantities."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal

from traceview.cli.conditions import grammar
from traceview.cli.conditions.grammar import Bound
from traceview.errors import RequestError
from traceview.model.fleet import Fleet, Rank

OfRank = Callable[[Rank], int | None]
OfFleet = Callable[[Fleet], int]

# Of each rank, in ns; % of its wall, but of a typical iteration's own time for the first two.
TIMES: Mapping[str, OfRank] = {
    "straggler": lambda rank: rank.lag,
    "own": lambda rank: rank.own,
    "wait": lambda rank: rank.bare_wait,
    "caused": lambda rank: rank.bare_caused,
    "wall": lambda rank: rank.wall,
    "compute": lambda rank: rank.compute,
    "exposed_communication": lambda rank: rank.exposed_communication,
    "idle": lambda rank: rank.idle,
}
OF_TYPICAL = ("straggler", "own")
SKEWS: Mapping[str, OfFleet] = {
    "skew.median": lambda fleet: max((group.skew_median for group in fleet.groups), default=0),
    "skew.p95": lambda fleet: max((group.skew_p95 for group in fleet.groups), default=0),
    "clock.uncertainty": lambda fleet: max((clock.uncertainty or 0 for clock in fleet.clocks), default=0),
}
COUNTS: Mapping[str, OfFleet] = {
    "stragglers": lambda fleet: len(fleet.stragglers),
    "ranks": lambda fleet: len(fleet.ranks),
    "reports": lambda fleet: len(fleet.reports),
    "skipped": lambda fleet: len(fleet.skipped),
    "unmatched": lambda fleet: fleet.unmatched,
}
KNOWN = (*TIMES, *SKEWS, *COUNTS)


def parse(text: str) -> Bound:
    """Read one comparison; raises RequestError that says what would be understood."""
    check = grammar.read(
        text,
        signed=False,
        expected="is not a comparison; write QUANTITY > NUMBER with %, ns, us, ms or s, as in 'straggler > 5%'",
    )
    if check.quantity not in KNOWN:
        hint = grammar.like(check.quantity, KNOWN) or f"known are {', '.join(KNOWN)}"
        raise RequestError(f"--fail-if {text!r}: no quantity of a fleet is called {check.quantity!r}; {hint}")
    if check.quantity in COUNTS and check.unit:
        raise RequestError(f"--fail-if {text!r}: {check.quantity} is a count; compare it with a plain number")
    if check.quantity in SKEWS and check.unit == "%":
        raise RequestError(f"--fail-if {text!r}: {check.quantity} is a time; compare it with ns, us, ms or s")
    return check


def failures(checks: tuple[Bound, ...], fleet: Fleet) -> Iterator[str]:
    """Yield one line for each comparison that holds: for a quantity of ranks, of the rank where it is largest.

    Raises RequestError where a quantity was not measured.
    """
    for check in checks:
        if check.quantity in COUNTS:
            count = COUNTS[check.quantity](fleet)
            if check.holds(Decimal(count)):
                yield f"{check.text}: {check.quantity} is {count}"
        elif check.quantity in SKEWS:
            figure = SKEWS[check.quantity](fleet)
            if check.holds(Decimal(figure)):
                yield f"{check.text}: {check.quantity} is {figure / 1e6:.3f} ms"
        else:
            yield from _of_ranks(check, fleet)


def _of_ranks(check: Bound, fleet: Fleet) -> Iterator[str]:
    values = [(value, rank) for rank in fleet.ranks if (value := TIMES[check.quantity](rank)) is not None]
    if not values:
        raise RequestError(
            f"--fail-if {check.text}: {check.quantity} was not measured; it needs three iterations on two ranks"
        )
    held = [(value, rank) for value, rank in values if check.holds(_comparable(check, fleet, value, rank))]
    if held:
        value, rank = max(held, key=lambda one: one[0])
        share = f"{_comparable(check, fleet, value, rank):.3f}% ({value / 1e6:.3f} ms)"
        shown = share if check.unit == "%" else f"{value / 1e6:.3f} ms"
        more = f", and it holds on {len(held) - 1} more" if len(held) > 1 else ""
        yield f"{check.text}: {check.quantity} is {shown} on {rank.label}{more}"


def _comparable(check: Bound, fleet: Fleet, value: int, rank: Rank) -> Decimal:
    if check.unit != "%":
        return Decimal(value)
    whole = rank.typical if check.quantity in OF_TYPICAL else rank.wall
    return Decimal(100 * value) / whole if whole else Decimal(0)
