"""What the terminal shows by default: the answer, a bar of each device, and what to change first, in 25 lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from traceview.model.analysis import Analysis, NotMeasured
from traceview.model.devices import DeviceFigures
from traceview.model.findings import Finding
from traceview.model.trace import Note
from traceview.report.analysis.answer import OUTSIDE, covered, iteration_line, speed_lines
from traceview.report.analysis.terminal import WHOLE, bar, device_words, first_sentence, heading, shares
from traceview.report.format import CAUSE_WORDS
from traceview.report.screen import MAX_LINES, PAGE_LINES, PLAIN, Screen, cut, left, width, wrap
from traceview.units import duration, plain, quantity, share, time_range

MAX_FINDINGS = 5
MAX_DEVICES = 4
MAX_NOTES = 2
MAX_CAUSES = 3
MIN_CAUSE = 0.05  # share of the idle time; smaller causes are not named
MAX_BAR = 60


def render(analysis: Analysis, screen: Screen = PLAIN, *, top: int | None = None) -> str:
    """Return the summary as text: at most MAX_LINES with the line that names the page."""
    columns, most = screen.columns, MAX_LINES - PAGE_LINES
    first = [_heading(analysis), *wrap(plain(analysis.answer, 600), columns=columns), _basis(analysis)]
    bars, notes = _bars(analysis, columns), _notes(analysis, columns)
    free = most - 1 - sum(len(part) + 1 for part in (first, bars, notes) if part)
    findings = _findings(analysis, columns, min(top or MAX_FINDINGS, MAX_FINDINGS), free)
    return screen.brief((first, bars, findings, notes), _rest(analysis), most)


def _heading(analysis: Analysis) -> str:
    """Return the capture, the profiler, the kind of program and the GPUs."""
    names = Counter(plain(device.name, 40) for device in analysis.devices if device.name)
    gpus = [name if count == 1 else f"{count} x {name}" for name, count in names.items()]
    return " · ".join([heading(analysis), *gpus])


def _basis(analysis: Analysis) -> str:
    """Return the time of an iteration, and the speed of the first device if it is known."""
    known = analysis.iterations
    if isinstance(known, NotMeasured):
        return f"  {iteration_line(known)}"
    without = f" (about {duration(known.unprofiled.mean_ns)} without the profiler)" if known.unprofiled else ""
    skipped = f", {known.skipped} skipped" if known.skipped else ""
    counted = f"{known.count - known.skipped} counted{skipped}"
    time = f"Iteration: {duration(known.time_ns)}{without}"
    return "  " + " · ".join((time, counted, plain(known.range, 40), *list(speed_lines(analysis))[:1]))


def _bars(analysis: Analysis, columns: int) -> list[str]:
    """Return a bar for each device, what its characters mean, and the causes of idle time."""
    devices = [device for device in analysis.devices if analysis.part(device).window.length]
    if not devices:
        return []
    names = [cut(plain(device.id, 100), 16) for device in devices[:MAX_DEVICES]]
    margin = max(map(width, names))
    lines = []
    for device, name in zip(devices, names, strict=False):
        use = analysis.part(device)
        end = f"{share(use.compute_ns, use.window.length):>6} compute"
        if len(devices) == 1:
            end = f" {duration(use.window.length)} {covered(analysis, device)}"
        lines.append(f"  {left(name, margin)} {bar(use, min(MAX_BAR, columns - margin - width(end) - 4))}{end}")
    if len(devices) > MAX_DEVICES:
        lines.append(f"  and {len(devices) - MAX_DEVICES} more GPUs: -v")
    uses = [analysis.part(device) for device in devices]
    return [*lines, _legend(uses), *_causes(uses[0], "" if len(uses) == 1 else f" of {names[0]}", columns)]


def _legend(uses: Sequence[DeviceFigures]) -> str:
    """Return what the characters of the bars mean, with the shares of a single device."""
    words = dict.fromkeys((mark, what) for use in uses for what, ns, mark in shares(use) if ns)
    known = {mark: f" {share(ns, uses[0].window.length)}" for _, ns, mark in shares(uses[0]) if len(uses) == 1}
    parts = (f"{mark} {what.removesuffix(' and memsets')}{known.get(mark, '')}" for mark, what in words)
    return f"  {'  '.join(parts)}"


def _causes(use: DeviceFigures, where: str, columns: int) -> list[str]:
    """Return the largest causes of idle time in one line; [] without any."""
    causes = sorted(use.gaps.causes.items(), key=lambda pair: -pair[1])[:MAX_CAUSES]
    words = [
        f"{share(ns, use.idle_ns)} {CAUSE_WORDS[cause].partition(' (')[0].removeprefix('launched, ')}"
        for cause, ns in causes
        if ns > MIN_CAUSE * use.idle_ns
    ]
    while words and width(line := f"  Idle time{where}: {', '.join(words)}") > columns:
        words.pop()
    return [line] if words else []


def _findings(analysis: Analysis, columns: int, most: int, free: int) -> list[str]:
    """Return the costliest findings, each with a line on its share and remedy, in at most `free` lines."""
    if not analysis.findings:
        return ["No findings: no known problem cost GPU time."] if analysis.devices else []
    several = len(analysis.devices) > 1
    shown = analysis.findings[: max(1, min(most, (free - 1) // 2))]
    titles = [
        wrap(f"{plain(finding.title, 600)}{device_words(finding, several)}", f"{number}. ", "   ", columns)
        for number, finding in enumerate(shown, 1)
    ]
    spare = free - 1 - 2 * len(shown)  # lines for titles that need a second one
    lines: list[str] = []
    numbers: dict[str, int] = {}  # remedy -> its first finding
    for number, (finding, title) in enumerate(zip(shown, titles, strict=True), 1):
        same = numbers.setdefault(finding.remedy or finding.advice, number)
        more = min(len(title) - 1, spare, 1)
        spare -= more
        lines += [
            *_first_lines(title, 1 + more),
            cut(f"   {_advice(finding, same if same < number else None)}", columns),
        ]
    return lines


def _advice(finding: Finding, same: int | None) -> str:
    """Return the severity of a finding, its share, and its remedy in one line, or which finding has the same one."""
    remedy = (finding.remedy or plain(finding.advice, 400)).removesuffix(".")
    if (time := finding.prediction) is not None and not time.is_little:
        remedy += f" ({time_range(time.before_ns, time.after_ns).replace(' to ', ' → ')})"
    remedy = remedy if same is None else f"as {same}"
    size = share(finding.decisive_fraction)
    unprofiled = "" if size == share(finding.cost_fraction) else " unprofiled"
    return f"{finding.severity}, {size}{unprofiled}: {remedy}"


def _notes(analysis: Analysis, columns: int) -> list[str]:
    """Return the most important notes; in full lines if there are few findings."""
    notes = sorted(filter(_is_shown, analysis.notes), key=lambda note: (not note.affects, note.id not in OUTSIDE))
    most = 4 if not analysis.devices else 2 if len(analysis.findings) < MAX_FINDINGS - 1 else 1
    lines = [
        line
        for note in notes[:MAX_NOTES]
        for line in _first_lines(wrap(first_sentence(note), "  Note: ", "    ", columns), most)
    ]
    if more := [note for note in notes[MAX_NOTES:] if note.affects]:
        ids = ", ".join(dict.fromkeys(note.id for note in more))
        lines.append(cut(f"  {quantity(len(more), 'more note')} on figures in doubt: {plain(ids, 200)} (-v)", columns))
    return lines


def _first_lines(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1]}…"]


def _rest(analysis: Analysis) -> str:
    """Return what --verbose adds."""
    counts = ((len(analysis.findings) - MAX_FINDINGS, "more finding"), (len(analysis.notes), "note"))
    return ", ".join(
        [
            *(quantity(count, what) for count, what in counts if count > 0),
            "tables of kernels, copies, streams, ranges and calls",
        ]
    )


def _is_shown(note: Note) -> bool:
    """Return whether a note is one of the summary: doubts about figures, time that is left out, and what computes."""
    doubts = bool(note.affects) and not note.id.startswith("no_") and note.id != "profiler_overhead"
    return doubts or note.id in (*OUTSIDE, *WHOLE, "dominant_kernel")
