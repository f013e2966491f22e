"""A fleet as text: advice, ranks, collectives, waits and clocks.

A wide terminal has more columns and longer names. The page shows some of the sentences, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceview.model.fleet import Advice, Clock, CollectiveGroup, Fleet, Heat, Rank
from traceview.model.units import duration, durations, plain, quantity, share
from traceview.report.screen import (
    MAX_LINES,
    PAGE_LINES,
    PLAIN,
    WIDTH,
    Screen,
    bulleted,
    fitting_notes,
    left,
    room,
    short_names,
    width,
    wrap,
)


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
        return f"{quantity(len(fleet.stragglers), 'straggler')} of {quantity(len(fleet.ranks), 'rank')}{_nodes(fleet)}."
    if not any(rank.lag is not None for rank in fleet.ranks):
        return "Stragglers are unknown: this needs two ranks with three iterations in common."
    least = f"{100 * fleet.margin:g}%"
    return f"No straggler: no rank's own time exceeds the others' by more than {least} and its own scatter."


def _nodes(fleet: Fleet) -> str:
    """Return on which nodes the stragglers are, where there are several: ", on node 1 of 4"."""
    known = {rank.node for rank in fleet.ranks if rank.node is not None}
    slow = sorted({node for each in fleet.stragglers if (node := fleet.ranks[each.rank].node) is not None})
    if len(known) < 2 or not slow:
        return ""
    more = f" and {len(slow) - MAX_NODES} more" if len(slow) > MAX_NODES else ""
    return f", on node{'s' * (len(slow) > 1)} {', '.join(map(str, slow[:MAX_NODES]))}{more} of {len(known)}"


def _places(fleet: Fleet, most: int) -> list[str]:
    """Return the node and GPU of each straggler, where nodes are known, the slowest first."""
    slow = [(each, fleet.ranks[each.rank]) for each in fleet.stragglers if fleet.ranks[each.rank].node is not None]
    lines = [
        f"  {plain(rank.label, 60)}: node {rank.node}, {rank.device} ({plain(rank.gpu, 40)}): own time "
        f"{each.share:+.1%}, most of it {each.part.replace('_', ' ')}"
        for each, rank in slow[:most]
    ]
    return [*lines, *([f"  and {len(slow) - most} more"] if len(slow) > most else [])]


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
        f"{ranks} waits at least {duration(advice.each)} of {whole} of "
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
    return f"aligned by {quantity(clock.count, 'collective')}, ± {duration(clock.uncertainty or 0)}{drift}"


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


NAME = 22
LAST = 13  # width of the column with the rank that is last most often
CELL = 8  # one more on a wide terminal
SHOWN_AT_80 = 7
# Heading and field of a rank, as many as fit: SHOWN_AT_80 on 80 columns.
COLUMNS = (
    *(("wall", "wall"), ("own", "own"), ("lag", "lag"), ("compute", "compute"), ("copies", "copies")),
    *(("idle", "idle"), ("wait", "wait"), ("caused", "caused"), ("comm", "exposed_communication")),
)
MAX_RANKS = 12  # shown one by one; also bounds the notes
BRIEF_RANKS, BRIEF_ADVICE, MAX_NODES = 8, 3, 4  # without --verbose
DOUBTS = ("repeated_capture", "left_out", "matching")  # notes that are always shown
MAX_AT_ENDS = 4  # slowest and fastest ranks that are shown of more ranks


def render(fleet: Fleet, screen: Screen = PLAIN, *, top: int = 10) -> str:
    """Return the fleet as text; `top` bounds lists."""
    columns = screen.columns
    parts = (
        wrap(headline(fleet), columns=columns),
        _advice(fleet, columns),
        _ranks(fleet, columns),
        _groups(fleet, columns, top),
        _pairs(fleet, columns, top),
        _clocks(fleet, columns, top),
        _notes(fleet, columns),
    )
    return screen.text(parts)


def render_brief(fleet: Fleet, screen: Screen = PLAIN, *, top: int = BRIEF_ADVICE) -> str:
    """Return the verdict, what to change first, and the slowest ranks as text, in 30 lines."""
    columns = screen.columns
    advice = [f"{verdict(fleet)}", *_places(fleet, MAX_NODES)]
    for number, first in enumerate(fleet.advice[: min(top, BRIEF_ADVICE)], 1):
        advice += wrap(plain(first.title, 400), f"{number}. ", "   ", columns)
        for text in (price(fleet, first), plain(first.text, 2000).partition(". ")[0].removesuffix(".") + "."):
            advice += wrap(text, "   ", "   ", columns)
    counts = ((fleet.pair_count, "wait between ranks", "waits between ranks"), (len(fleet.notes), "note", "notes"))
    more = ", ".join(["all ranks", "collectives", "clocks", *(quantity(*words) for words in counts if words[0])])
    parts = (wrap(headline(fleet), columns=columns), advice, _ranks(fleet, columns, BRIEF_RANKS))
    most = MAX_LINES - PAGE_LINES
    free = most - sum(len(part) + 1 for part in parts) - 3
    doubts = [_first_part(note.text) for note in fleet.notes if note.id in DOUBTS]
    others = [_first_part(note.text) for note in fleet.notes if note.id not in DOUBTS]
    return screen.brief(parts, more, most, fitting_notes(doubts, others, free, columns))


def _first_part(text: str) -> str:
    return plain(text, 2000).partition("; ")[0]


def _ranks(fleet: Fleet, columns: int, most: int = MAX_RANKS) -> list[str]:
    what = "means per steady iteration" if fleet.heat is not None else "whole captures"
    cell = CELL + int(columns > WIDTH)
    shown = COLUMNS[: (columns - 2 - NAME) // cell]
    cells, unit = _cells(fleet.ranks, [field for _, field in shown])
    cell = max(cell, 1 + max(len(text) for row in cells for text in row))  # a space between the longest cells
    least = min(NAME, max(width(plain(rank.label, 200)) for rank in fleet.ranks))
    shown = shown[: (columns - 2 - least) // cell]
    least = min(NAME, columns - 2 - cell * len(shown))
    names, name = _labels(fleet, least, WIDTH + columns - 2 - least - cell * len(shown))
    late = {straggler.rank for straggler in fleet.stragglers}
    lines = [
        f"Ranks, {what}{f' in {unit}' if unit else ''}, slowest first",
        f"  {'':<{name}}" + "".join(f"{head:>{cell}}" for head, _ in shown),
    ]
    for before, row in _listed_ranks(fleet, most):
        if before:
            lines.append(f"  ... {before:,} between")
        figures = "".join(f"{text:>{cell}}" for text in cells[row][: len(shown)])
        lines.append(f"{'!' if row in late else ' '} {left(names[row], name)}{figures}")
    waits = "; caused = waits of the others for it" if len(shown) > SHOWN_AT_80 else ""
    return [*lines, f"  own = wall - exposed communication; lag = own - median own of the others{waits}"]


def _listed_ranks(fleet: Fleet, most: int) -> Iterator[tuple[int, int]]:
    """Yield the listed ranks, slowest first, as (number of ranks left out before it, rank).

    Of more than `most` ranks, list the slowest, the fastest, the median and the first stragglers.
    """
    order = sorted(range(len(fleet.ranks)), key=lambda row: (-_lag_or_own_time(fleet.ranks[row]), row))
    places = set(range(len(order)))
    if len(order) > most:
        stragglers = {straggler.rank for straggler in fleet.stragglers[:most]}
        places = {place for place, row in enumerate(order) if row in stragglers}
        ends = min(MAX_AT_ENDS, most // 3)
        places |= {*range(ends), (len(order) - 1) // 2, *range(len(order) - ends, len(order))}
    last = -1
    for place in sorted(places):
        yield place - last - 1, order[place]
        last = place


def _lag_or_own_time(rank: Rank) -> int:
    return rank.own if rank.lag is None else rank.lag


def _labels(fleet: Fleet, least: int, columns: int) -> tuple[list[str], int]:
    """Return the labels of the ranks, shortened, and their width."""
    labels = [plain(rank.label, 200) for rank in fleet.ranks]
    name = room(labels, least, columns)
    return short_names(labels, name), name


def _cells(ranks: Sequence[Rank], fields: Sequence[str]) -> tuple[list[list[str]], str]:
    """Return the cells of each rank, and the unit that all of them share, which the cells omit; "" if they differ."""
    texts = durations([getattr(rank, field) for rank in ranks for field in fields])
    units = {text.partition(" ")[2] for text in texts} - {""}
    unit = units.pop() if len(units) == 1 else ""
    cells = [text.removesuffix(f" {unit}") for text in texts]
    return [cells[at : at + len(fields)] for at in range(0, len(cells), len(fields))], unit


def _advice(fleet: Fleet, columns: int) -> list[str]:
    lines = ["What to change first", *wrap(verdict(fleet), "  ", "  ", columns)]
    for number, advice in enumerate(fleet.advice, 1):
        lines += wrap(plain(advice.title, 400), f"{number}. ", "   ", columns)
        for text in (price(fleet, advice), plain(advice.text, 2000)):
            lines += wrap(text, "   ", "   ", columns)
    return lines


def _groups(fleet: Fleet, columns: int, top: int) -> list[str]:
    if not fleet.groups:
        return []
    chosen = sorted(fleet.groups, key=lambda group: -group.waited)[:top]
    names, _ = _labels(fleet, LAST, columns)
    return [
        _title_with_limit(f"Collectives, longest wait first, {_covered_time(fleet)}", len(fleet.groups), top),
        f"  {'':<13}{'ranks':>6}{'count':>7}{'skew':>10}{'95%':>10}{'transfer':>10}  most often last",
        *(_group(group, names[group.last]) for group in chosen),
    ]


def _group(group: CollectiveGroup, last: str) -> str:
    often = f"{share(group.last_count, group.count)} {last}"
    times = "".join(f"{duration(ns):>10}" for ns in (group.skew_median, group.skew_p95, group.transfer))
    return f"  {left(plain(group.kind, 100), 13)}{len(group.ranks):>6}{group.count:>7,}{times}  {often}"


def _pairs(fleet: Fleet, columns: int, top: int) -> list[str]:
    if not fleet.pairs:
        return []
    names, name = _labels(fleet, NAME, WIDTH + (columns - WIDTH) // 2)
    return [
        _title_with_limit(f"Waits between ranks, {_covered_time(fleet)}", fleet.pair_count, top),
        *(
            f"  {left(names[pair.waiter], name)} {duration(pair.waited):>9} for {left(names[pair.last], name)} "
            f"in {quantity(pair.count, 'collective')}"
            for pair in fleet.pairs[:top]
        ),
    ]


def _clocks(fleet: Fleet, columns: int, top: int) -> list[str]:
    lines = wrap(clocks_line(fleet), "", "  ", columns)
    if len(fleet.clocks) < 2:
        return lines
    whole = [plain(clock.file, 200) for clock in fleet.clocks]
    name = room(whole, NAME, columns)
    for file, clock in zip(short_names(whole, name)[:top], fleet.clocks, strict=False):
        words = ", ".join(part for part in (clock_line(clock), session_line(clock)) if part)
        lines += wrap(words, f"  {left(file, name)} {duration(clock.offset):>10}  ", " " * (name + 15), columns)
    more = len(fleet.clocks) - top
    return [*lines, f"  and {more:,} more in the page and the JSON"] if more > 0 else lines


def _notes(fleet: Fleet, columns: int) -> list[str]:
    skipped = [f"{plain(report.file, 200)}: SKIPPED, {plain(report.reason, 400)}" for report in fleet.skipped]
    texts = skipped[:MAX_RANKS]
    if len(skipped) > MAX_RANKS:
        texts.append(f"and {len(skipped) - MAX_RANKS:,} more skipped")
    texts += [plain(note.text, 2000) for note in fleet.notes[:MAX_RANKS]]
    if len(fleet.notes) > MAX_RANKS:
        texts.append(f"and {len(fleet.notes) - MAX_RANKS:,} more notes in the page and the JSON")
    return ["Notes", *bulleted(texts, columns)] if texts else []


def _covered_time(fleet: Fleet) -> str:
    return "in steady iterations" if fleet.heat is not None and fleet.heat.steady.any() else "in the whole capture"


def _title_with_limit(title: str, count: int, top: int) -> str:
    return title if count <= top else f"{title} (first {top} of {count:,})"
