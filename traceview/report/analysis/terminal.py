"""An analysis on a terminal: what to change first in 30 lines, or all tables (`--verbose`).

The brief form has the answer, a bar of each device and the largest findings. The long form has the answer, the use of
each device, findings, notes and tables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from traceview.model.analysis import ITERATION_FIGURES, Analysis, DeviceFigures, DeviceUse, Iterations, NotMeasured
from traceview.model.columns import Table
from traceview.model.findings import Finding
from traceview.model.program import program_words
from traceview.model.rows import CALLS
from traceview.model.stacks import HostPlace
from traceview.model.trace import Note
from traceview.model.units import duration, durations, plain, quantity, share
from traceview.report.analysis.answer import OUTSIDE, base_line, basis_lines, covered, gain_words, price, speed_lines
from traceview.report.screen import (
    CAUSE_WORDS,
    MAX_LINES,
    PAGE_LINES,
    PLAIN,
    WIDTH,
    Screen,
    bulleted,
    code_lines,
    confidence_word,
    figures,
    fitting_notes,
    left,
    middle,
    note_lines,
    part_lines,
    short_names,
    width,
    wrap,
)

BAR = 60
ANSWERS = 3
SHOWN_CALLS = 4  # functions of a finding's stack
WHOLE = ("no_gpu_work", "no_cuda_calls")  # notes that end with the command that captures what is missing
SENTENCE = re.compile(r"\. (?=[A-Z`])")
TOP = 10  # rows of a list or table
COLUMN_GAP = 2
MAX_NAME_WIDTH = 34
MAX_CANDIDATES = 4
MAX_WAITS = 2  # named system calls


def render(analysis: Analysis, screen: Screen = PLAIN, *, top: int | None = None) -> str:
    """Return everything that the terminal shows, as text; `top` bounds every list, by default to TOP."""
    return screen.text(_parts(analysis, screen.columns, top))


def _parts(analysis: Analysis, columns: int, chosen: int | None) -> Iterator[list[str]]:
    top = chosen or TOP
    lines = filter(None, (plain(analysis.answer.text, 600), *basis_lines(analysis)))
    yield [heading(analysis), *(f"  {line}" for text in lines for line in wrap(text, "", "  ", columns - 2))]
    for device in analysis.devices[:top]:
        yield _device(analysis, device)
    yield _findings(analysis, columns, top)
    yield from _notes(analysis, columns, top)
    if any(analysis.covered(device).window != device.window for device in analysis.devices):
        yield ["Streams, calls and ranges cover the whole window, other tables the bars' time"]
    yield from tables(analysis, chosen, columns)


def heading(analysis: Analysis) -> str:
    """Return the capture, the profiler and the kind of program."""
    info = analysis.info
    known = f"nsys {plain(info.nsys_version, 20)}" if info.nsys_version else "nsys of unknown version"
    version = known if info.profiler == "nsys" else info.profiler
    return f"{middle(plain(info.file, 200), 46)} · {version} · {program_words(analysis.program)}"


def shares(use: DeviceFigures) -> tuple[tuple[str, int, str], ...]:
    """Return the parts that add up to a device's window or steady part: (label, ns, character of the bar)."""
    communication = use.communication.exposed_ns
    rest = use.busy_ns - use.compute_ns - communication
    return (
        ("compute", use.compute_ns, "█"),
        ("exposed communication", communication, "▓"),
        ("exposed copies and memsets", rest, "▒"),
        ("idle", use.idle_ns, "░"),
    )


def _device(analysis: Analysis, device: DeviceUse) -> list[str]:
    use = analysis.covered(device)
    whole = use.window.length
    name = f" · {middle(plain(device.name, 100), 24)}" if device.name else ""
    head = f"{middle(plain(device.id, 100), 24)}{name}"
    if not whole:
        return [f"{head} · no work in the counted iterations"]
    parts = [(f"{mark} {words}", ns) for words, ns, mark in shares(use) if ns]
    return [
        f"{head} · {duration(whole)} {covered(analysis, device)}",
        f"  {bar(use, BAR)}",
        *part_lines(parts, whole, 30, 12),
    ]


def bar(use: DeviceFigures, columns: int) -> str:
    """Return the parts of a device's time as a bar. Borders are rounded, not parts, so the bar is always full."""
    drawn, at, whole = "", 0, use.window.length
    for _, ns, mark in shares(use):
        at += ns
        drawn += mark * (round(columns * at / whole) - len(drawn)) if whole else ""
    return drawn


def _findings(analysis: Analysis, columns: int, top: int) -> list[str]:
    several = len(analysis.devices) > 1
    if not analysis.findings:
        return _no_findings(analysis)
    lines = ["What to change first, and what it cost"]
    numbers: dict[tuple[str, str], int] = {}
    for number, finding in enumerate(analysis.findings[:ANSWERS], 1):
        lines += _heading(number, f"{plain(finding.title, 600)}{device_words(finding, several)}", finding, columns)
        same = numbers.setdefault((finding.id, finding.code), number)
        lines += _remedy(finding, columns) if same == number else [f"   The remedy is the same as for {same}."]
    more = analysis.findings[ANSWERS : max(top, ANSWERS)]
    if more:
        lines.append("Further findings")
        for finding in more:
            title = f"{plain(finding.title, 600)}{device_words(finding, several)}"
            lines += wrap(title, f"  {duration(finding.cost_ns):>10}  ", " " * 14, columns)
    hidden = len(analysis.findings) - ANSWERS - len(more)
    return [*lines, f"  and {hidden} more in the page and the JSON"] if hidden > 0 else lines


def _no_findings(analysis: Analysis) -> list[str]:
    return ["No findings: no known problem cost GPU time."] if analysis.devices and not analysis.findings else []


def _notes(analysis: Analysis, columns: int, top: int) -> Iterator[list[str]]:
    """Yield the first sentence of each note, and the WHOLE ones; the page has all texts whole."""
    notes = [note for note in analysis.notes if note.id not in OUTSIDE]
    if notes:
        lines = bulleted(map(first_sentence, notes[:top]), columns)
        more = [f"  and {len(notes) - top} more in the page and the JSON"] if len(notes) > top else []
        yield ["About this capture", *lines, *more]


def first_sentence(note: Note) -> str:
    """Return the first sentence of a note; all of one that ends with the command that captures what is missing."""
    text = plain(note.text, 2000)
    end = SENTENCE.search(text)
    return text if end is None or note.id in WHOLE else text[: end.start() + 1]


def device_words(finding: Finding, several: bool) -> str:
    """Return the devices of a finding if the capture has several: " [GPU 0]"."""
    device = finding.device_words
    return f" [{middle(plain(device, 100), 24)}]" if device and several else ""


def _heading(number: int, title: str, finding: Finding, columns: int) -> list[str]:
    return [
        *wrap(title, f"{number}. ", "   ", columns),
        *wrap(f"{finding.severity}: {price(finding)}", "   ", "   ", columns),
        *_host_stack(finding.host, columns),
        *(
            wrap(f"Unsure: {plain(finding.unsure_because, 400)}", "   ", "   ", columns)
            if finding.unsure_because
            else ()
        ),
    ]


def _host_stack(place: HostPlace | None, columns: int) -> list[str]:
    """Return the program's innermost function and the library's functions below it; [] if there are none."""
    if place is None or not place.calls:
        return []
    texts = [plain(frame.text, 200) for frame in place.stack[place.own :]]
    shown = texts if len(texts) <= SHOWN_CALLS else [*texts[:2], "…", texts[-1]]
    return wrap(CALLS.join(shown), "   ", "   ", columns)


def _remedy(finding: Finding, columns: int) -> list[str]:
    return [
        *wrap(plain(finding.advice, 4000), "   ", "   ", columns),
        *code_lines("\n".join(plain(line, 600) for line in finding.code.splitlines()), "       ", columns),
    ]


def tables(analysis: Analysis, top: int | None, columns: int = WIDTH) -> Iterator[list[str]]:
    """Yield each table as lines, its heading first; `top` bounds the rows of each, by default as the table says."""
    for device in analysis.devices[: top or TOP]:
        name = middle(plain(device.id, 100), 24)
        part = analysis.covered(device)
        for table in {**device.tables, **part.tables}.values():
            yield text_table(table, top, columns, f" on {name}")
        yield _idle_causes(part, name, columns)
    for table in analysis.tables.values():
        yield text_table(table, top, columns)
    if not isinstance(analysis.iterations, NotMeasured):
        yield _iterations(analysis.iterations, columns)


def text_table(table: Table, chosen: int | None, screen_columns: int = WIDTH, place: str = "") -> list[str]:
    """Return a declared table as lines: the first column on the left, as many of the others as fit."""
    rows, top = table.shown_rows, chosen or table.first or TOP
    if not rows or not table.listed:
        return []
    title = f"{table.title}{place}"
    more = "" if len(rows) <= top else f" (first {top} of {len(rows)})"
    columns = table.columns
    texts = [
        [plain(text, 200) for text in figures([getattr(row, column.name) for row in rows[:top]], column.unit)]
        for column in columns
    ]
    first = [""] * len(rows[:top])
    if columns[0].unit in ("text", "code"):
        first, columns, texts = texts[0], columns[1:], texts[1:]
    margin = min(max(map(width, first)), MAX_NAME_WIDTH)
    heads, body = "  " + " " * margin, ["  " + left(name, margin) for name in short_names(first, margin)]
    for column, values in zip(columns, texts, strict=True):
        needed = COLUMN_GAP + max(width(column.title), *map(width, values))
        if width(heads) + needed > screen_columns:
            break
        heads += column.title.rjust(needed)
        body = [line + " " * (needed - width(value)) + value for line, value in zip(body, values, strict=True)]
    return [f"{title}{more}", heads, *body]


def _idle_causes(use: DeviceFigures, name: str, columns: int) -> list[str]:
    if not use.idle_ns:
        return []
    causes = sorted(((cause, ns) for cause, ns in use.gaps.causes.items() if ns), key=lambda pair: -pair[1])
    lines = part_lines(causes, use.idle_ns, 14)
    return [
        f"Idle time of {name} by cause: {duration(use.idle_ns)} in {quantity(use.gaps.count, 'gap')}",
        *_explained(((line, CAUSE_WORDS[cause]) for line, (cause, _) in zip(lines, causes, strict=True)), columns),
        *_host_states(use, columns),
    ]


def _explained(lines: Iterable[tuple[str, str]], columns: int) -> Iterator[str]:
    """Yield lines with their explanations, which wrap in a column of their own."""
    for line, words in lines:
        yield from wrap(words, f"{line}  ", " " * (width(line) + 2), columns)


def _host_states(use: DeviceFigures, columns: int) -> list[str]:
    """Return the states of the host in its idle time, if they are known; system calls by name."""
    states, host = use.gaps.host_states, use.gaps.causes["host"]
    known = {name: ns for name, ns in states.ns.items() if ns}
    if not set(known) - {"unattributed"}:
        return []
    waits = ", ".join(f"{plain(name, 40)} {duration(ns)}" for name, ns in list(states.waits.items())[:MAX_WAITS])
    lines = part_lines([(f"  {name.replace('_', ' ')}", ns) for name, ns in known.items()], host, 21)
    return [
        "  of `host`:",
        *_explained(
            ((line, waits if name == "waiting" else "") for line, name in zip(lines, known, strict=True)), columns
        ),
    ]


def _iterations(iterations: Iterations, columns: int) -> list[str]:
    skipped = f"; {iterations.skipped} skipped ({plain(iterations.skipped_why, 200)})" if iterations.skipped else ""
    spreads = {name: iterations.spreads.get(f"{name}_ns") for name in ITERATION_FIGURES}
    name = plain(iterations.range, 200)
    origin = f"range {name}" if iterations.source == "range" else f"{name}, found without ranges"
    time = f"{iterations.count} of {duration(iterations.time_ns)}"
    confidence = f"confidence {confidence_word(iterations.confidence)}"
    also = ", ".join(
        f"{plain(other.name, 40)} ({other.count} of {duration(other.time_ns)})"
        for other in iterations.candidates[:MAX_CANDIDATES]
    )
    return [
        *wrap(f"Iterations: {time} ({origin}; {confidence}){skipped}", "", "  ", columns),
        *(wrap(f"also repeating: {also}", "  ", "  ", columns) if also else []),
        f"  {'':<24}{'median':>12}{'5%':>12}{'95%':>12}",
        *(
            f"  {name.replace('_', ' '):<24}"
            + "".join(f"{text:>12}" for text in durations((spread.median, spread.p5, spread.p95)))
            for name, spread in spreads.items()
            if spread is not None and spread.p95
        ),
    ]


MAX_FINDINGS, MIN_FINDINGS = 5, 3
MAX_DEVICES = 4
MAX_NOTES = 2
MAX_CAUSES = 3
MIN_CAUSE = 0.05  # share of the idle time; smaller causes are not named
MAX_BAR = 60


def render_brief(analysis: Analysis, screen: Screen = PLAIN, *, top: int | None = None) -> str:
    """Return the summary as text: at most MAX_LINES with the line that names the page."""
    columns, most = screen.columns, MAX_LINES - PAGE_LINES
    answer = wrap(plain(analysis.answer.text, 600), columns=columns)
    first = [*wrap(_brief_heading(analysis), columns=columns), *answer, *wrap(_basis(analysis), "  ", "  ", columns)]
    bars = _bars(analysis, columns)
    free = most - 2 - sum(len(part) + 1 for part in (first, bars) if part)
    findings = _brief_findings(analysis, columns)[: top or MAX_FINDINGS]
    least = sum(map(len, findings[:MIN_FINDINGS]))
    notes = _brief_notes(analysis, columns, free - least - 1)
    used = len(note_lines(notes, columns))
    free -= used + bool(used)
    fitting = [number for number, used in enumerate(accumulate(map(len, findings)), 1) if used <= free]
    shown = findings[: fitting[-1] if fitting else 1]
    lines = [line for finding in shown for line in finding] or _no_findings(analysis)
    return screen.brief((first, bars, lines), _rest(analysis, len(shown)), most, notes)


def _brief_heading(analysis: Analysis) -> str:
    """Return the capture, the profiler, the kind of program and the GPUs."""
    names = Counter(plain(device.name, 40) for device in analysis.devices if device.name)
    gpus = [name if count == 1 else f"{count} x {name}" for name, count in names.items()]
    return " · ".join([heading(analysis), *gpus])


def _basis(analysis: Analysis) -> str:
    """Return what gains are parts of, the iterations, and the speed of the first device if it is known."""
    known = analysis.iterations
    if isinstance(known, NotMeasured):
        return f"{base_line(analysis)} Iterations are unknown.".strip()
    skipped = f", {known.skipped} skipped" if known.skipped else ""
    counted = f"{quantity(known.count - known.skipped, 'iteration')} counted{skipped}"
    kinds = known.time_words if known.kinds else ""
    lines = (base_line(analysis), kinds, f"{counted} ({plain(known.range, 120)})", *list(speed_lines(analysis))[:1])
    return " · ".join(line.removesuffix(".") for line in lines if line)


def _bars(analysis: Analysis, columns: int) -> list[str]:
    """Return a bar for each device, what its characters mean, and the causes of idle time."""
    devices = [device for device in analysis.devices if analysis.covered(device).window.length]
    if not devices:
        return []
    names = [middle(plain(device.id, 100), 16) for device in devices[:MAX_DEVICES]]
    margin = max(map(width, names))
    lines = []
    for device, name in zip(devices, names, strict=False):
        use = analysis.covered(device)
        end = f"{share(use.compute_ns, use.window.length):>6} compute"
        if len(devices) == 1:
            end = f" {duration(use.window.length)} {covered(analysis, device)}"
        lines.append(f"  {left(name, margin)} {bar(use, min(MAX_BAR, columns - margin - width(end) - 4))}{end}")
    if len(devices) > MAX_DEVICES:
        lines.append(f"  and {len(devices) - MAX_DEVICES} more GPUs: -v")
    uses = [analysis.covered(device) for device in devices]
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


def _brief_findings(analysis: Analysis, columns: int) -> list[list[str]]:
    """Return the lines of the largest findings, each with its gain and remedy."""
    several = len(analysis.devices) > 1
    shown: list[list[str]] = []
    numbers: dict[str, int] = {}  # remedy -> its first finding
    for number, finding in enumerate(analysis.findings[:MAX_FINDINGS], 1):
        same = numbers.setdefault(finding.remedy or finding.advice, number)
        title = f"{plain(finding.title, 600)}{device_words(finding, several)}"
        advice = _advice(finding, same if same < number else None)
        shown.append([*wrap(title, f"{number}. ", "   ", columns), *wrap(advice, "   ", "   ", columns)])
    return shown


def _advice(finding: Finding, same: int | None) -> str:
    """Return the severity of a finding, its gain, and its remedy in one line, or which finding has the same one."""
    remedy = (finding.remedy or plain(finding.advice, 400)).removesuffix(".") if same is None else f"as {same}"
    return f"{finding.severity}, {gain_words(finding.gain)}: {remedy}"


def _brief_notes(analysis: Analysis, columns: int, free: int) -> list[str]:
    """Return all notes that put figures in doubt, and of two others those that fit into `free` lines."""
    doubts = [first_sentence(note) for note in analysis.notes if is_doubt(note)]
    others = [first_sentence(note) for note in analysis.notes if note.id in (*OUTSIDE, *WHOLE) and not is_doubt(note)]
    return fitting_notes(doubts, others[: max(MAX_NOTES - len(doubts), 0)], free, columns)


def _rest(analysis: Analysis, shown: int) -> str:
    """Return what --verbose adds to the findings that are shown."""
    counts = ((len(analysis.findings) - shown, "more finding"), (len(analysis.notes), "note"))
    return ", ".join([*(quantity(count, what) for count, what in counts if count > 0), "tables"])


def is_doubt(note: Note) -> bool:
    """Return whether a note says that a figure is not to be trusted: rows were left out, or the capture is cut."""
    return bool(note.affects) and not note.id.startswith("no_") and note.id != "profiler_overhead"
