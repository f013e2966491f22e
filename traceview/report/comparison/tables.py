"""The tables of a comparison as texts, for Markdown and for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from traceview.model.comparison import STATUSES, CaptureDifference, FigureChange, KernelChange, LineChange
from traceview.model.rows import place_text, size_text
from traceview.report.comparison.phrases import interval, own_share, part_words, shown_parts
from traceview.report.format import plain
from traceview.units import duration, durations, number, signed_duration

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


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of texts. The first cell of a row names it; `code` says that it is a name from a capture."""

    id: str
    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    code: bool = False


def part_table(against: CaptureDifference) -> TextTable:
    """Return the parts of the mean time."""
    names = [*(part_words(part.name) for part in shown_parts(against)), "time", "median iteration"]
    rows = _rows(names, [*shown_parts(against), against.time, against.wall])
    head = ("", "before", "after", "difference", "95% interval", "")
    return TextTable("parts", "Difference by part (means)", head, rows)


def _rows(names: Iterable[str], changes: Sequence[FigureChange]) -> list[tuple[str, ...]]:
    """Return a row for each change: name, both times, difference, interval, relative change."""
    return [
        (name, before, after, signed_duration(change.difference), interval(change), _relative_words(change))
        for name, change, (before, after) in zip(names, changes, time_pairs(changes), strict=True)
    ]


def time_pairs(changes: Sequence[FigureChange]) -> list[tuple[str, str]]:
    """Return the times before and after of the rows of a table, all in one unit."""
    times = durations([ns for change in changes for ns in (change.before, change.after)])
    return list(zip(times[::2], times[1::2], strict=True))


def _relative_words(change: FigureChange) -> str:
    return "now 0" if change.before and not change.after else own_share(change).replace("~", "noise")


def host_table(against: CaptureDifference) -> TextTable:
    """Return the figures of the host."""
    return TextTable("host", "Host (means)", ("", "before", "after", "difference"), list(host_rows(against)))


def host_rows(against: CaptureDifference) -> Iterator[tuple[str, ...]]:
    """Yield the host figures of either capture, without starved and refill, which are in the cost."""
    for change in against.host:
        if change.name in HOST_WORDS and (change.mean_before or change.mean_after):
            write: Callable[[float], str] = number if change.unit == "count" else duration
            difference = change.mean_after - change.mean_before
            sign = "+" if difference > 0 else "-" if difference < 0 else ""
            figures = (write(change.mean_before), write(change.mean_after), sign + write(abs(difference)))
            yield (HOST_WORDS[change.name].replace("  ", "· "), *figures)


def line_table(against: CaptureDifference, top: int) -> TextTable:
    """Return the source lines whose idle time changed beyond the noise, the largest change first."""
    lines = shown_lines(against)[:top]
    rows = _rows(map(line_name, lines), [line.idle for line in lines])
    head = ("", "before", "after", "difference", "95% interval", "")
    return TextTable("lines", f"Lines that made the GPU wait (means): {line_counts(against)}", head, rows, code=True)


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


def kernel_table(against: CaptureDifference, top: int) -> TextTable:
    """Return the kernels that appeared, vanished or changed, the costliest first."""
    head = ("", "", "calls before", "calls after", "per call before", "per call after", "cost per iteration")
    rows = [
        (
            kernel_name(kernel),
            kernel.status,
            *calls(kernel),
            *per_call(kernel),
            signed_duration(kernel.cost_ns),
        )
        for kernel in shown_kernels(against)[:top]
    ]
    return TextTable("kernels", f"Kernels: {kernel_counts(against)}", head, rows, code=True)


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


def per_call(kernel: KernelChange) -> tuple[str, str]:
    """Return the mean GPU time of a call in both captures; "-" where a capture has no call."""
    before, after = (int(ns) for ns in (kernel.per_call.mean_before, kernel.per_call.mean_after))
    return (
        "-" if kernel.status == "appeared" else duration(before),
        "-" if kernel.status == "vanished" else duration(after),
    )
