"""Sentences, figures and tables of a comparison, for the terminal and for Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from traceview.model.analysis import kinds_words
from traceview.model.comparison import (
    STATUSES,
    CaptureDifference,
    ComparedCapture,
    Comparison,
    FigureChange,
    KernelChange,
    LineChange,
    PredictedTime,
)
from traceview.model.rows import place_text, size_text
from traceview.model.units import duration, durations, number, plain, quantity, share, signed_duration, time_range
from traceview.report.screen import WORDS

MAX_NAMED_PARTS = 3
MEAN_WORDS = (
    "The verdict is on the mean time from one iteration to the next. Its interval covers the iterations of these "
    "captures; two captures of the same program can differ by more"
)
MIN_NAMED_SHARE = 0.05  # share of the difference; smaller parts are not named
MAX_NAMED_CAUSES = 3
HOST_WORDS, PART_WORDS, EXPOSED_WORDS = WORDS["host"], WORDS["parts"], WORDS["exposed"]


def part_words(name: str) -> str:
    """Return the label of a part: `idle: host`, `exposed h2d`."""
    if name in PART_WORDS:
        return PART_WORDS[name]
    return name.replace("idle.", "idle: ").replace("_", " ")


def sentence(text: str) -> str:
    """Return a text with a capital letter and a full stop; an empty text stays empty."""
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def span(low: int, high: int) -> str:
    """Return an interval of differences in one unit: `-12.5 to -11.3 ms`."""
    ends = (low, high)
    first, last = (f"{'+' if value > 0 else ''}{text}" for value, text in zip(ends, durations(ends), strict=True))
    return f"{first.removesuffix(last[last.index(' ') :])} to {last}"


def interval(change: FigureChange) -> str:
    """Return the confidence interval of a time, or an empty text."""
    return "" if change.low is None or change.high is None else span(change.low, change.high)


def relative(ratio: float | None) -> str:
    """Return a ratio as a change: `-51.5%`, or `x 12` from tenfold on."""
    if ratio is None:
        return "-"
    return f"x{ratio:,.0f}" if ratio >= 10 else f"{100 * (ratio - 1):+.1f}%"


def own_share(change: FigureChange) -> str:
    """Return the relative change of a figure: `-83%`; `new`, `~` for noise, empty where the figure is now 0."""
    if change.verdict == "noise" or not change.difference or not change.after:
        return "~" if change.verdict == "noise" and change.difference else ""
    if not change.before:
        return "new"
    ratio = change.after / change.before
    if ratio >= 10:
        return f"x{ratio:,.0f}"
    return f"{100 * (ratio - 1):+.{1 if abs(ratio - 1) < 0.01 else 0}f}%"


def difference(against: CaptureDifference) -> str:
    """Return the change of an iteration: `-51.5% (95% interval -51.9% to -49.5%)`."""
    if against.ratio_low is None or against.ratio_high is None:
        return relative(against.ratio)
    return f"{relative(against.ratio)} (95% interval {relative(against.ratio_low)} to {relative(against.ratio_high)})"


def unprofiled_words(base: ComparedCapture, against: CaptureDifference) -> str:
    """Return the change without the profiler; empty where it is unknown."""
    before, after = base.unprofiled_ns, against.capture.unprofiled_ns
    if before is None or after is None or against.unprofiled_ratio is None:
        return ""
    times = f"about {duration(before['mean'])}, now {duration(after['mean'])}"
    return f"without the profiler {times}, {relative(against.unprofiled_ratio)}"


def predicted_words(against: CaptureDifference) -> str:
    """Return what was predicted for a change, and what came; empty without a prediction."""
    predicted = against.predicted
    if predicted is None:
        return ""
    scale = " without the profiler" if predicted.without_profiler else ""
    time, between = duration(predicted.iteration_ns), time_range(predicted.low_ns, predicted.high_ns)
    where = {True: ", inside the range", False: ", outside the range", None: ""}[predicted.is_inside]
    came = "what came is not known" if predicted.result_ns is None else f"{duration(predicted.result_ns)} came"
    return f"predicted for {predicted.change}: {time}{scale} ({between}); {came}{where}"


def headline(against: CaptureDifference) -> str:
    """Return the verdict as one sentence without file names."""
    what = "the whole capture" if against.capture.range is None else "an iteration"
    times = f"{what} took {duration(against.time.before)}, now {duration(against.time.after)}"
    why = f"; {against.why}" if against.verdict in ("noise", "unjudged") else ""
    return f"{against.verdict}: {times}, {difference(against)}{why}"


def accounts(against: CaptureDifference) -> str:
    """Return the parts that cause most of the difference, and those that oppose it; empty for noise."""
    total = against.time.difference
    if against.verdict == "noise" or not against.work.is_same or not total:
        return ""
    large = [
        part
        for part in against.mean_parts
        if abs(part.difference) >= MIN_NAMED_SHARE * abs(total) and part.verdict != "noise"
    ]
    ordered = sorted(large, key=lambda part: -abs(part.difference))
    contributing = [part for part in ordered if part.difference * total > 0][:MAX_NAMED_PARTS]
    opposing = [part for part in ordered if part.difference * total < 0][:MAX_NAMED_PARTS]
    most = abs(sum(part.difference for part in contributing)) >= abs(total) / 2
    texts = (
        f"{'most' if most else 'a part'} of the {signed_duration(total)} comes from {_shares(contributing, total)}"
        if contributing
        else "",
        f"in the opposite direction: {_shares(opposing, total)}" if opposing else "",
    )
    return "; ".join(text for text in texts if text)


def overlap_words(against: CaptureDifference) -> Iterator[str]:
    """Yield a text for each kind of work whose causes of exposed time changed beyond the noise."""
    for change in against.overlap:
        changed = [cause for cause in change.causes if cause.verdict != "noise"]
        largest = sorted(changed, key=lambda cause: -abs(cause.difference))[:MAX_NAMED_CAUSES]
        causes = ", ".join(f"{EXPOSED_WORDS[cause.name]} {_from_to(cause)}" for cause in largest)
        shares = (change.hidden_before, change.hidden_after)
        old, new = ("-" if part is None else f"{100 * part:.0f}%" for part in shares)
        price = change.price_after_ns or 0
        pays = f"; kernels beside pay {duration(price)}" if price > MIN_NAMED_SHARE * against.time.after else ""
        if changed:
            yield f"{work_words(change.work)} hidden {old.rstrip('%')} → {new}; exposed: {causes}{pays}"


def _from_to(change: FigureChange) -> str:
    before, after = durations((change.before, change.after))
    return f"{before.removesuffix(after[after.index(' ') :])} → {after}"


def work_words(work: str) -> str:
    """Return copies, collectives or communication in words: `all-gathers`, `copies (h2d)`."""
    return WORDS["collectives"].get(work) or f"copies ({work})"


def _shares(parts: Sequence[FigureChange], total: int) -> str:
    return ", ".join(
        f"{part_words(part.name)}: {signed_duration(part.difference)} ({share(part.difference, total)})"
        for part in parts
    )


def shown_parts(against: CaptureDifference) -> tuple[FigureChange, ...]:
    """Return the parts of either capture, largest difference first."""
    some = (part for part in against.mean_parts if part.before or part.after or part.difference)
    return tuple(sorted(some, key=lambda part: -abs(part.difference)))


def compared(capture: ComparedCapture) -> str:
    """Return the compared iterations of a capture: `9 iterations (range iteration #), 1 skipped`."""
    if capture.range is None:
        return "as a whole"
    skipped = f", {capture.skipped} skipped" if capture.skipped else ""
    name = plain(capture.range, 40)
    kinds = kinds_words(capture.iterations.kinds)
    source = name if capture.iterations.source == "period" else f"range {name}"
    return f"{quantity(capture.count, 'iteration')} ({source}){skipped}{f': {kinds}' if kinds else ''}"


def median_words(base: ComparedCapture, against: CaptureDifference) -> str:
    """Return the change of the median: `median 20.1 ms, now 60.3 ms (faster by the mean, slower by the median)`."""
    before, after = (capture.quantiles_ns["p50"] for capture in (base, against.capture))
    opposite = (after - before) * against.time.difference < 0 and against.time.verdict != "noise"
    hides = "; the median moved in the opposite direction" if opposite else ""
    return f"median {duration(before)}, now {duration(after)}{hides}"


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield what puts a difference in doubt, what is compared, and all other notes."""
    for against in comparison.against:
        yield from (note.text for note in against.notes)
    yield f"Method: {comparison.whole_because}" if comparison.whole_because else MEAN_WORDS
    yield from (note.text for note in comparison.notes)


PER_CALL = {"slower": "slower per call", "faster": "faster per call"}


CHANGE = ("before", "after", "difference", "95% interval", "")
PREDICTION = ("", "before", "predicted", "at least", "at most", "came", "range")
HOST = ("", "before", "after", "difference")
KERNEL = ("", "", "calls before", "calls after", "per call before", "per call after", "cost per iteration")


class ComparisonTable(NamedTuple):
    """A table of texts; the first cell of a row names it, in code if `is_code`."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_code: bool = False


def every_table(against: CaptureDifference, top: int) -> Iterator[ComparisonTable]:
    """Yield the tables of parts, the prediction, the host, lines if they are known, and kernels.

    `top` bounds the last two.
    """
    yield part_table(against)
    if against.predicted is not None:
        yield prediction_table(against.predicted)
    if rows := _rows(*exposed_changes(against)):
        yield ComparisonTable("Exposed time by cause (means)", ("", *CHANGE), rows)
    yield ComparisonTable("Host (means)", HOST, list(host_rows(against)))
    if against.lines:
        yield line_table(against, top)
    yield kernel_table(against, top)


def part_table(against: CaptureDifference) -> ComparisonTable:
    """Return the parts of the mean time."""
    names = [*(part_words(part.name) for part in shown_parts(against)), "time"]
    rows = _rows(names, [*shown_parts(against), against.time])
    return ComparisonTable("Difference by part (means)", ("", *CHANGE), rows)


def exposed_changes(against: CaptureDifference) -> tuple[list[str], list[FigureChange]]:
    """Return the causes of exposed time that changed beyond the noise, by name."""
    changed = [
        (f"{change.work.replace('_', '-')}: {EXPOSED_WORDS[cause.name]}", cause)
        for change in against.overlap
        for cause in change.causes
        if cause.verdict != "noise"
    ]
    return [name for name, _ in changed], [cause for _, cause in changed]


def prediction_table(predicted: PredictedTime) -> ComparisonTable:
    """Return a row with what was predicted for the change, and what came."""
    times = (predicted.before_ns, predicted.iteration_ns, predicted.low_ns, predicted.high_ns, predicted.result_ns)
    inside = {True: "inside", False: "outside", None: "not known"}[predicted.is_inside]
    texts = ("-" if ns is None else duration(ns) for ns in times)
    title = f"Prediction of whatif{' without the profiler' if predicted.without_profiler else ''}"
    return ComparisonTable(title, PREDICTION, [(predicted.change, *texts, inside)])


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
    return ComparisonTable(title, ("", *CHANGE), rows, is_code=True)


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
    rows = [
        (kernel_name(kernel), kernel.status, *calls(kernel), *per_call(kernel), signed_duration(kernel.cost_ns))
        for kernel in shown_kernels(against)[:top]
    ]
    return ComparisonTable(f"Kernels: {kernel_counts(against)}", KERNEL, rows, is_code=True)


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


def per_call(kernel: KernelChange) -> list[str]:
    """Return the mean GPU time of a call in both captures; "-" where a capture has no call."""
    means = (kernel.per_call.mean_before, kernel.per_call.mean_after)
    absent = (kernel.status == "appeared", kernel.status == "vanished")
    return ["-" if missing else duration(int(ns)) for ns, missing in zip(means, absent, strict=True)]
