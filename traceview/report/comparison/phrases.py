"""Sentences and figures of a comparison for all reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceview.model.comparison import (
    CaptureDifference,
    ComparedCapture,
    Comparison,
    FigureChange,
    TimeShape,
)
from traceview.units import duration, durations, plain, share, signed_duration

MAX_NAMED_PARTS = 3
MEAN_WORDS = (
    "The verdict is on the mean time from one iteration to the next. Its interval covers the iterations of these "
    "captures; two captures of the same program can differ by more"
)
MIN_NAMED_SHARE = 0.05  # share of the difference; smaller parts are not named
PART_WORDS = {"other": "d2d copies, memsets", "no_gpu": "host only, no GPU", "twice": "overlap of two parts"}


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


def headline(against: CaptureDifference, cut: str) -> str:
    """Return the verdict as one sentence without file names."""
    what = "the whole capture" if cut == "whole" else "an iteration"
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


def _shares(parts: Sequence[FigureChange], total: int) -> str:
    return ", ".join(
        f"{part_words(part.name)}: {signed_duration(part.difference)} ({share(part.difference, total)})"
        for part in parts
    )


def shown_parts(against: CaptureDifference) -> tuple[FigureChange, ...]:
    """Return the parts of either capture, largest difference first."""
    some = (part for part in against.mean_parts if part.before or part.after or part.difference)
    return tuple(sorted(some, key=lambda part: -abs(part.difference)))


def compared(capture: ComparedCapture, cut: str) -> str:
    """Return the compared iterations of a capture: `9 iterations (range iteration #), 1 skipped`."""
    if cut == "whole":
        return "as a whole"
    skipped = f", {capture.skipped} skipped" if capture.skipped else ""
    name = plain(capture.range or "", 40)
    return f"{capture.count} iterations ({name if capture.iterations.source == 'period' else f'range {name}'}){skipped}"


def median_words(against: CaptureDifference) -> str:
    """Return the change of the median: `median 20.1 ms, now 60.3 ms (faster by the mean, slower by the median)`."""
    wall, time = against.wall, against.time
    opposite = wall.difference * time.difference < 0 and wall.verdict != "noise" and time.verdict != "noise"
    hides = "; the median moved in the opposite direction" if opposite else ""
    return f"median {duration(wall.before)}, now {duration(wall.after)}{hides}"


def shape_words(base: ComparedCapture, against: CaptureDifference) -> str:
    """Return the distributions of iteration times if their forms differ or one has two peaks; else an empty text."""
    before, after = base.shape, against.capture.shape
    if "unknown" in (before.form, after.form) or before.form == after.form == "one peak":
        return ""
    change = "The shape changed" if before.form != after.form else "The times of iterations"
    return f"{change}: {base.file} has {_form(before)}; {plain(against.capture.file, 40)} has {_form(after)}"


def _form(shape: TimeShape) -> str:
    if shape.low_ns is None or shape.high_ns is None or shape.high_fraction is None:
        return f"{shape.form}, at {duration(shape.quantiles['p50'])}"
    upper = f"{share(shape.high_fraction)} of the iterations take {duration(shape.high_ns)}"
    others = "the median is" if shape.form == "tail" else "the others take"
    return f"{'a tail' if shape.form == 'tail' else shape.form}: {upper}, {others} {duration(shape.low_ns)}"


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield the shapes of the distributions, how iterations were cut, and all other notes."""
    for against in comparison.against:
        yield from (note.text for note in against.notes)
        if comparison.cut != "whole" and (text := shape_words(comparison.base, against)):
            yield text
    if comparison.cut != "whole":
        yield MEAN_WORDS
    yield f"Medians: {comparison.cut_why}" if comparison.cut != "whole" else f"Method: {comparison.cut_why}"
    yield from (note.text for note in comparison.notes)
