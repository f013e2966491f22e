"""The tables of a comparison, for Markdown, the page and notebooks, and their rows for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from traceview.model.comparison import STATUSES, CaptureDifference, FigureChange, KernelChange, LineChange
from traceview.model.rows import place_text, size_text
from traceview.report.comparison.phrases import interval, own_share, part_words, shown_parts
from traceview.units import duration, durations, number, plain, signed_duration

HOST_WORDS = {
    "sync.count": "synchronizations",
    "sync.blocked": "  host blocked",
    "sync.cost": "  cost to the GPU",
    "implicit_sync.count": "implicit synchronizations",
    "implicit_sync.blocked": "  host blocked",
    "implicit_sync.cost": "  cost to the GPU",
    "launches": "launches",
    "kernels": "kernels",
    "copies": "copies",
}
PER_CALL = {"slower": "slower per call", "faster": "faster per call"}


CHANGE = (("before", "ns"), ("after", "ns"), ("difference", "signed_ns"), ("95% interval", "text"), ("change", "text"))
HOST = (("call", "text"), ("before", "text"), ("after", "text"), ("difference", "text"))
KERNEL = (
    *(("kernel", "code"), ("change", "text"), ("calls before", "text"), ("calls after", "text")),
    *(("per call before", "ns"), ("per call after", "ns"), ("cost per iteration", "signed_ns")),
)
WITHOUT_HEADING = ("part", "call", "line", "kernel", "change")  # titles that only the page shows


class Time(NamedTuple):
    """A time in a table: a number for the page, a text for other reports."""

    ns: int | None
    text: str


@dataclass(frozen=True, slots=True)
class ComparisonTable:
    """A table with the title and unit of each column; the first cell of a row names it.

    `events` are the names of the kernels whose events a click on a row marks in the page, by row.
    """

    title: str
    columns: tuple[tuple[str, str], ...]
    rows: list[tuple[str | Time, ...]]
    events: list[str] | None = None

    @property
    def head(self) -> list[str]:
        """The headings as texts."""
        return ["" if title in WITHOUT_HEADING else title for title, _ in self.columns]

    @property
    def texts(self) -> list[list[str]]:
        """The rows as texts."""
        return [[cell.text if isinstance(cell, Time) else cell for cell in row] for row in self.rows]


def tables(against: CaptureDifference, top: int) -> Iterator[ComparisonTable]:
    """Yield the tables of parts, of the host, of lines if they are known, and of kernels; `top` bounds the last two."""
    yield part_table(against)
    yield ComparisonTable("Host (means)", HOST, list(host_rows(against)))
    if against.lines:
        yield line_table(against, top)
    yield kernel_table(against, top)


def part_table(against: CaptureDifference) -> ComparisonTable:
    """Return the parts of the mean time."""
    names = [*(part_words(part.name) for part in shown_parts(against)), "time", "median iteration"]
    rows = _rows(names, [*shown_parts(against), against.time, against.wall])
    return ComparisonTable("Difference by part (means)", (("part", "text"), *CHANGE), rows)


def _rows(names: Iterable[str], changes: Sequence[FigureChange]) -> list[tuple[str | Time, ...]]:
    """Return a row for each change: name, both times, difference, interval, relative change."""
    return [
        (
            name,
            Time(change.before, before),
            Time(change.after, after),
            Time(change.difference, signed_duration(change.difference)),
            interval(change),
            _relative_words(change),
        )
        for name, change, (before, after) in zip(names, changes, time_pairs(changes), strict=True)
    ]


def time_pairs(changes: Sequence[FigureChange]) -> list[tuple[str, str]]:
    """Return the times before and after of the rows of a table, all in one unit."""
    times = durations([ns for change in changes for ns in (change.before, change.after)])
    return list(zip(times[::2], times[1::2], strict=True))


def _relative_words(change: FigureChange) -> str:
    return "now 0" if change.before and not change.after else own_share(change).replace("~", "noise")


def host_rows(against: CaptureDifference) -> Iterator[tuple[str, ...]]:
    """Yield the host figures of either capture, without starved and refill, which are in the cost."""
    for change in against.host:
        if change.name in HOST_WORDS and (change.mean_before or change.mean_after):
            write: Callable[[float], str] = number if change.unit == "count" else duration
            difference = change.mean_after - change.mean_before
            sign = "+" if difference > 0 else "-" if difference < 0 else ""
            figures = (write(change.mean_before), write(change.mean_after), sign + write(abs(difference)))
            yield (HOST_WORDS[change.name].replace("  ", "· "), *figures)


def line_table(against: CaptureDifference, top: int) -> ComparisonTable:
    """Return the source lines whose idle time changed beyond the noise, the largest change first."""
    lines = shown_lines(against)[:top]
    rows = _rows(map(line_name, lines), [line.idle for line in lines])
    title = f"Lines that made the GPU wait (means): {line_counts(against)}"
    return ComparisonTable(title, (("line", "code"), *CHANGE), rows)


def shown_lines(against: CaptureDifference) -> tuple[LineChange, ...]:
    """Return the lines whose idle time changed beyond the noise."""
    return tuple(line for line in against.lines if line.idle.verdict != "noise")


def line_counts(against: CaptureDifference) -> str:
    """Return how many lines changed: `1 more, 2 less, 12 within noise`."""
    tally = Counter(line.idle.verdict for line in against.lines)
    words = {"more": "more", "less": "less", "unjudged": "not judged", "noise": "within noise"}
    return ", ".join(f"{tally[verdict]} {word}" for verdict, word in words.items() if tally[verdict])


def line_name(line: LineChange) -> str:
    """Return a line as `train.py:20 (step)`, or as `train.py:18 → 20 (step)` if it moved; native code has no lines."""
    known = [number for number in dict.fromkeys((line.line_before, line.line)) if number]
    if not known:
        return plain(f"{line.function} ({line.file})", 300)
    return plain(
        f"{place_text(line.file, known[0])}{''.join(f' → {number}' for number in known[1:])} ({line.function})", 300
    )


def kernel_table(against: CaptureDifference, top: int) -> ComparisonTable:
    """Return the kernels that appeared, vanished or changed, the costliest first."""
    shown = shown_kernels(against)[:top]
    rows: list[tuple[str | Time, ...]] = [
        (
            kernel_name(kernel),
            kernel.status,
            *calls(kernel),
            *per_call(kernel),
            Time(kernel.cost_ns, signed_duration(kernel.cost_ns)),
        )
        for kernel in shown
    ]
    events = [plain(kernel.name, 300) for kernel in shown]
    return ComparisonTable(f"Kernels: {kernel_counts(against)}", KERNEL, rows, events)


def shown_kernels(against: CaptureDifference) -> tuple[KernelChange, ...]:
    """Return the kernels that appeared, vanished or changed."""
    return tuple(kernel for kernel in against.kernels if kernel.status != "same")


def kernel_counts(against: CaptureDifference) -> str:
    """Return how many kernels changed: `2 appeared, 1 slower per call, 40 unchanged`."""
    tally = Counter(kernel.status for kernel in against.kernels)
    counts = [f"{tally[status]} {PER_CALL.get(status, status)}" for status in STATUSES if tally[status]]
    return ", ".join(counts).replace(" same", " unchanged") or "none"


def kernel_name(kernel: KernelChange) -> str:
    """Return a kernel with its grid, where it is compared by launch shape."""
    return plain(kernel.label if kernel.grid is None else f"{kernel.label} [{size_text(kernel.grid)}]", 300)


def calls(kernel: KernelChange) -> tuple[str, ...]:
    """Return the mean number of calls in an iteration of both captures, with three digits."""
    means = (kernel.count.mean_before, kernel.count.mean_after)
    return tuple(map(number, means))


def per_call(kernel: KernelChange) -> list[Time]:
    """Return the mean GPU time of a call in both captures; "-" where a capture has no call."""
    means = (kernel.per_call.mean_before, kernel.per_call.mean_after)
    absent = (kernel.status == "appeared", kernel.status == "vanished")
    return [
        Time(None, "-") if missing else Time(int(ns), duration(int(ns)))
        for ns, missing in zip(means, absent, strict=True)
    ]
