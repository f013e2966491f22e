"""A fleet on a terminal of 80 columns: advice, ranks, collectives, waits and clocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceview.model.fleet import CollectiveGroup, Fleet, Rank
from traceview.report.fleet.phrases import clock_line, clocks_line, headline, price, session_line, verdict
from traceview.report.format import plain
from traceview.report.layout import left, short_names, wrap
from traceview.report.screen import MAX_LINES, PAGE_LINES, PLAIN, Screen
from traceview.units import duration, durations, quantity, share

NAME = 22
LAST = 13  # width of the column with the rank that is last most often
CELL = 8
COLUMNS = ("wall", "own", "lag", "compute", "copies", "idle", "wait")
MAX_RANKS = 12  # shown one by one; also bounds the notes
BRIEF_RANKS, BRIEF_ADVICE = 8, 3  # without --verbose
MAX_AT_ENDS = 4  # slowest and fastest ranks that are shown of more ranks


def render(fleet: Fleet, screen: Screen = PLAIN, *, top: int = 10) -> str:
    """Return the fleet as text; `top` bounds lists."""
    parts = (
        wrap(headline(fleet)),
        _advice(fleet),
        _ranks(fleet),
        _groups(fleet, top),
        _pairs(fleet, top),
        _clocks(fleet, top),
        _notes(fleet),
    )
    return screen.text(parts)


def render_brief(fleet: Fleet, screen: Screen = PLAIN, *, top: int = BRIEF_ADVICE) -> str:
    """Return the verdict, what to change first, and the slowest ranks as text, in 25 lines."""
    columns = screen.columns
    advice = [f"{verdict(fleet)}"]
    for number, first in enumerate(fleet.advice[: min(top, BRIEF_ADVICE)], 1):
        advice += [*wrap(plain(first.title, 400), f"{number}. ", "   ", columns), f"   {price(fleet, first)}"]
        advice += wrap(_first_sentence(plain(first.text, 2000)), "   ", "   ", columns)
    more = [
        "all ranks",
        quantity(fleet.pair_count, "wait between ranks", "waits between ranks"),
        "collectives",
        "clocks",
    ]
    notes = [quantity(len(fleet.notes), "note")] if fleet.notes else []
    head = wrap(headline(fleet), columns=columns)
    return screen.brief((head, advice, _ranks(fleet, BRIEF_RANKS)), ", ".join([*more, *notes]), MAX_LINES - PAGE_LINES)


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].removesuffix(".") + "."


def _ranks(fleet: Fleet, most: int = MAX_RANKS) -> list[str]:
    what = "means per steady iteration" if fleet.heat is not None else "whole captures"
    names = _labels(fleet, NAME)
    cells, unit = _cells(fleet.ranks)
    late = {straggler.rank for straggler in fleet.stragglers}
    lines = [
        f"Ranks, {what}{f' in {unit}' if unit else ''}, slowest first",
        f"  {'':<{NAME}}" + "".join(f"{name:>{CELL}}" for name in COLUMNS),
    ]
    for before, row in _listed_ranks(fleet, most):
        if before:
            lines.append(f"  ... {before:,} between")
        lines.append(("! " if row in late else "  ") + left(names[row], NAME) + "".join(cells[row]))
    return [*lines, "  own = wall - exposed communication; lag = own - median own of the others"]


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


def _labels(fleet: Fleet, columns: int) -> list[str]:
    return short_names([plain(rank.label, 200) for rank in fleet.ranks], columns)


def _cells(ranks: Sequence[Rank]) -> tuple[list[list[str]], str]:
    """Return the cells of each rank, and the unit that all of them share, which the cells omit; "" if they differ."""
    times = [(rank.wall, rank.own, rank.lag, rank.compute, rank.copies, rank.idle, rank.wait) for rank in ranks]
    texts = durations([ns for row in times for ns in row])
    units = {text.partition(" ")[2] for text in texts} - {""}
    unit = units.pop() if len(units) == 1 else ""
    cells = [f"{text.removesuffix(f' {unit}'):>{CELL}}" for text in texts]
    return [cells[at : at + len(COLUMNS)] for at in range(0, len(cells), len(COLUMNS))], unit


def _advice(fleet: Fleet) -> list[str]:
    lines = ["What to change first", *wrap(verdict(fleet), "  ", "  ")]
    for number, advice in enumerate(fleet.advice, 1):
        lines += wrap(plain(advice.title, 400), f"{number}. ", "   ")
        lines += wrap(price(fleet, advice), "   ", "   ")
        lines += wrap(plain(advice.text, 2000), "   ", "   ")
    return lines


def _groups(fleet: Fleet, top: int) -> list[str]:
    if not fleet.groups:
        return []
    chosen = sorted(fleet.groups, key=lambda group: -group.waited)[:top]
    names = _labels(fleet, LAST)
    return [
        _title_with_limit(f"Collectives, longest wait first, {_covered_time(fleet)}", len(fleet.groups), top),
        f"  {'':<13}{'ranks':>6}{'count':>7}{'skew':>10}{'95%':>10}{'transfer':>10}  most often last",
        *(_group(group, names[group.last]) for group in chosen),
    ]


def _group(group: CollectiveGroup, last: str) -> str:
    often = f"{share(group.last_count, group.count)} {last}"
    times = "".join(f"{duration(ns):>10}" for ns in (group.skew_median, group.skew_p95, group.transfer))
    return f"  {left(plain(group.kind, 100), 13)}{len(group.ranks):>6}{group.count:>7,}{times}  {often}"


def _pairs(fleet: Fleet, top: int) -> list[str]:
    if not fleet.pairs:
        return []
    names = _labels(fleet, NAME)
    return [
        _title_with_limit(f"Waits between ranks, {_covered_time(fleet)}", fleet.pair_count, top),
        *(
            f"  {left(names[pair.waiter], NAME)} {duration(pair.waited):>9} for {left(names[pair.last], NAME)} "
            f"in {pair.count:,} collectives"
            for pair in fleet.pairs[:top]
        ),
    ]


def _clocks(fleet: Fleet, top: int) -> list[str]:
    lines = wrap(clocks_line(fleet), "", "  ")
    if len(fleet.clocks) < 2:
        return lines
    files = short_names([plain(clock.file, 200) for clock in fleet.clocks], NAME)
    for file, clock in zip(files[:top], fleet.clocks, strict=False):
        words = ", ".join(part for part in (clock_line(clock), session_line(clock)) if part)
        lines += wrap(words, f"  {left(file, NAME)} {duration(clock.offset):>10}  ", " " * (NAME + 15))
    more = len(fleet.clocks) - top
    return [*lines, f"  and {more:,} more in the page and the JSON"] if more > 0 else lines


def _notes(fleet: Fleet) -> list[str]:
    skipped = [f"{plain(report.file, 200)}: SKIPPED, {plain(report.reason, 400)}" for report in fleet.skipped]
    texts = [
        *skipped[:MAX_RANKS],
        *([f"and {len(skipped) - MAX_RANKS:,} more skipped"] if len(skipped) > MAX_RANKS else []),
    ]
    texts += [plain(note.text, 2000) for note in fleet.notes[:MAX_RANKS]]
    if len(fleet.notes) > MAX_RANKS:
        texts.append(f"and {len(fleet.notes) - MAX_RANKS:,} more notes in the page and the JSON")
    return ["Notes", *(line for text in texts for line in wrap(text, "  - ", "    "))] if texts else []


def _covered_time(fleet: Fleet) -> str:
    return "in steady iterations" if fleet.heat is not None and fleet.heat.steady.any() else "in the whole capture"


def _title_with_limit(title: str, count: int, top: int) -> str:
    return title if count <= top else f"{title} (first {top} of {count:,})"
