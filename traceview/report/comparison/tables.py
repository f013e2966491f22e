"""The tables of a comparison as texts, for Markdown and for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from traceview.frozen import frozen
from traceview.model.comparison import STATUSES, CaptureDifference, FigureChange, KernelChange, LineChange
from traceview.model.kernels import size_text
from traceview.model.rows import place_text
from traceview.report.comparison.phrases import interval, own_share, part_words, shown_parts, signed
from traceview.report.format import microseconds, milliseconds, plain

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


@frozen
class TextTable:
    """A table of texts. The first cell of a row names it; `code` says that it is a name from a capture."""

    id: str
    title: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    code: bool = False


def part_table(against: CaptureDifference) -> TextTable:
    """Return the parts of the mean time."""
    rows = [(part_words(part.name), part) for part in shown_parts(against)]
    rows += [("time", against.time), ("median iteration", against.wall)]
    head = ("", "before", "after", "difference", "95% interval", "")
    return TextTable("parts", "Difference by part (means)", head, [(name, *_change(change)) for name, change in rows])


def _change(change: FigureChange) -> tuple[str, ...]:
    share = "now 0" if change.before and not change.after else {"~": "noise"}.get(own_share(change), own_share(change))
    figures = (milliseconds(change.before), milliseconds(change.after), signed(change.difference))
    return (*figures, interval(change), share)


def host_table(against: CaptureDifference) -> TextTable:
    """Return the figures of the host."""
    return TextTable("host", "Host (means)", ("", "before", "after", "difference"), list(host_rows(against)))


def host_rows(against: CaptureDifference) -> Iterator[tuple[str, ...]]:
    """Yield the host figures of either capture, without starved and refill, which are in the cost."""
    for change in against.host:
        if change.name in HOST_WORDS and (change.mean_before or change.mean_after):
            write: Callable[[float], str] = count_text if change.unit == "count" else _whole_milliseconds
            difference = change.mean_after - change.mean_before
            sign = "+" if difference > 0 else "-" if difference < 0 else ""
            figures = (write(change.mean_before), write(change.mean_after), sign + write(abs(difference)))
            yield (HOST_WORDS[change.name].replace("  ", "· "), *figures)


def _whole_milliseconds(ns: float) -> str:
    return milliseconds(int(ns))


def count_text(value: float) -> str:
    """Return a mean number of events: `300`, `1.10`."""
    return f"{value:,.{0 if value == int(value) else 2}f}"


def line_table(against: CaptureDifference, top: int) -> TextTable:
    """Return the source lines whose idle time changed beyond the noise, the largest change first."""
    rows = [(line_name(line), *_change(line.idle)) for line in shown_lines(against)[:top]]
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
            signed(kernel.cost_ns),
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
    """Return the mean number of calls in an iteration of both captures, with three digits or more."""
    means = (kernel.count.mean_before, kernel.count.mean_after)
    return tuple(f"{mean:,.3g}" if mean < 1000 else f"{mean:,.0f}" for mean in means)


def per_call(kernel: KernelChange) -> tuple[str, str]:
    """Return the mean GPU time of a call in both captures; "-" where a capture has no call."""
    before, after = (int(ns) for ns in (kernel.per_call.mean_before, kernel.per_call.mean_after))
    return (
        "-" if kernel.status == "appeared" else microseconds(before),
        "-" if kernel.status == "vanished" else microseconds(after),
    )
