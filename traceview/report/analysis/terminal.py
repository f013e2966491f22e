"""An analysis on a terminal: what to change first in BRIEF_LINES, or the first rows of all tables (`--verbose`).

The brief form has the answer, a bar of each device and the largest findings. The long form has the answer, the use of
each device, findings, notes and tables.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

import polars as pl

from traceview.model.analysis import (
    ITERATION_FIGURES,
    MUCH_MORE,
    Analysis,
    DeviceFigures,
    DeviceUse,
    Iterations,
    NotMeasured,
)
from traceview.model.columns import Table
from traceview.model.composition import OUTSIDE, PROFILER, Composition, composition
from traceview.model.findings import OF_PROCESS, Finding
from traceview.model.names import fold_numbers, title_name
from traceview.model.program import program_words
from traceview.model.rows import CALLS
from traceview.model.stacks import HostPlace
from traceview.model.trace import Note
from traceview.model.units import duration, durations, plain, quantity
from traceview.report.analysis.answer import (
    LITTLE_GAIN,
    OUTSIDE_NOTES,
    bar_words,
    basis_lines,
    covered,
    finding_lists,
    gain_words,
    outside_notes,
    price,
    speed_lines,
)
from traceview.report.screen import (
    PAGE_LINES,
    PLAIN,
    WIDTH,
    Screen,
    bulleted,
    cause_words,
    code_lines,
    confidence_word,
    figures,
    fitting_notes,
    left,
    middle,
    more_lines,
    note_lines,
    part_lines,
    short_names,
    width,
    wrap,
)

BAR = 60
ANSWERS = 3
SHOWN_CALLS = 4  # functions of a finding's stack
MENDED = ("cut_work", "doubled_work")  # notes on rows that count otherwise than they are written
# notes on figures that the answer states with a range, or that have a cost of their own
STATED = ("profiler_overhead", "drift", "unprofiled_range", "price_of_overlap", "unknown_messages")
WHOLE = ("no_gpu_work", "no_cuda_calls")  # notes that end with the command that captures what is missing
SENTENCE = re.compile(r"\. (?=[A-Z`])")
TOP = 10  # rows of a list or table
COLUMN_GAP = 2
MAX_NAME_WIDTH = 34
MAX_CANDIDATES = 4
MAX_WAITS = 2  # named system calls
MIN_WORDS = 24  # columns of a column of explanations


def render(analysis: Analysis, screen: Screen = PLAIN, *, top: int | None = None) -> str:
    """Return everything that the terminal shows, as text; `top` bounds every list, by default to TOP."""
    return screen.text(_parts(analysis, screen.columns, top))


def _parts(analysis: Analysis, columns: int, chosen: int | None) -> Iterator[list[str]]:
    top = chosen or TOP
    lines = filter(None, (plain(analysis.answer.text, 600), *basis_lines(analysis)))
    yield [heading(analysis), *(f"  {line}" for text in lines for line in wrap(text, "", "  ", columns - 2))]
    for device in analysis.devices[:top]:
        yield _device(analysis, device, columns)
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


# The parts of a bar: the words of each, and its character.
BAR_PARTS = {
    "compute": ("compute", "█"),
    "communication": ("exposed communication", "▓"),
    "copies": ("exposed copies", "▒"),
    PROFILER: ("profiler (estimated)", "▞"),
    "idle": ("idle", "░"),
    OUTSIDE: ("no GPU work yet, or any more", "·"),
}


def _device(analysis: Analysis, device: DeviceUse, columns: int) -> list[str]:
    whole = composition(analysis, device)
    name = f" · {middle(plain(device.name, 100), 24)}" if device.name else ""
    head = f"{middle(plain(device.id, 100), 24)}{name}"
    if not analysis.covered(device).window.length:
        return [f"{head} · no work in the counted iterations"]
    parts = [(f"{mark} {words}", whole.parts[look]) for look, (words, mark) in BAR_PARTS.items() if whole.parts[look]]
    return [
        f"{head} · {duration(whole.whole_ns)} {bar_words(analysis, whole, covered(analysis, device))}",
        f"  {bar(whole, min(BAR, columns - 2))}",
        *part_lines(parts, whole.whole_ns, min(32, columns - 22), 12),
    ]


def bar(whole: Composition, columns: int) -> str:
    """Return the parts of a device's time as a bar. Borders are rounded, not parts, so the bar is always full."""
    drawn, at = "", 0
    for look, (_, mark) in BAR_PARTS.items():
        at += whole.parts[look]
        drawn += mark * (round(columns * at / whole.whole_ns) - len(drawn)) if whole.whole_ns else ""
    return drawn


def _findings(analysis: Analysis, columns: int, top: int) -> list[str]:
    """Return the first findings of the answer's list with their remedies, and the titles of others by list."""
    several = len(analysis.devices) > 1
    if not analysis.findings:
        return _no_findings(analysis)
    lines = ["What to change first, and what it cost"]
    (_, leading), *others = finding_lists(analysis).items()
    numbers: dict[tuple[str, str], int] = {}
    for number, finding in enumerate(leading[:ANSWERS], 1):
        lines += _heading(number, f"{plain(finding.title, 600)}{device_words(finding, several)}", finding, columns)
        same = numbers.setdefault((finding.id, finding.code), number)
        lines += _remedy(finding, columns) if same == number else [f"   The remedy is the same as for {same}."]
    hidden = 0
    for words, findings in [("Further findings", leading[ANSWERS:]), *others]:
        shown = findings[: max(top - ANSWERS, 0)]
        lines += [words] if shown else []
        for finding in shown:
            title = f"{plain(finding.title, 600)}{device_words(finding, several)}"
            lines += wrap(title, f"  {duration(finding.cost_ns):>10}  ", " " * 14, columns)
        hidden += len(findings) - len(shown)
    return [*lines, f"  and {hidden} more in the page and the JSON"] if hidden else lines


def _no_findings(analysis: Analysis) -> list[str]:
    if not analysis.devices or analysis.findings:
        return []
    if analysis.info.trust.lost_everything:
        return ["No findings: the capture lacks most GPU work."]
    return ["No findings: no known problem cost GPU time."]


def _notes(analysis: Analysis, columns: int, top: int) -> Iterator[list[str]]:
    """Yield the first sentence of each note, and the WHOLE ones; the page has all texts whole."""
    notes = [note for note in analysis.notes if note.id not in OUTSIDE_NOTES]
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
        yield _idle_causes(part, name, cause_words(analysis.program), columns)
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
    margin = min(max(map(width, first)), MAX_NAME_WIDTH, screen_columns // 2 - 6)
    heads, body = "  " + " " * margin, ["  " + left(name, margin) for name in short_names(first, margin)]
    for column, values in zip(columns, texts, strict=True):
        needed = COLUMN_GAP + max(width(column.title), *map(width, values))
        if width(heads) + needed > screen_columns:
            break
        heads += column.title.rjust(needed)
        body = [line + " " * (needed - width(value)) + value for line, value in zip(body, values, strict=True)]
    if columns and not heads.strip():
        return [title, "  is wider than this terminal"]
    return [f"{title}{more}", heads, *body]


def _idle_causes(use: DeviceFigures, name: str, words: Mapping[str, str], columns: int) -> list[str]:
    if not use.idle_ns:
        return []
    causes = sorted(((cause, ns) for cause, ns in use.gaps.causes.items() if ns), key=lambda pair: -pair[1])
    lines = part_lines(causes, use.idle_ns, 14)
    return [
        f"Idle time of {name} by cause: {duration(use.idle_ns)} in {quantity(use.gaps.count, 'gap')}",
        *_explained(((line, words[cause]) for line, (cause, _) in zip(lines, causes, strict=True)), columns),
        *_host_states(use, columns),
    ]


def _explained(lines: Iterable[tuple[str, str]], columns: int) -> Iterator[str]:
    """Yield lines with their explanations, which wrap in a column of their own, or below where that is too narrow."""
    for line, words in lines:
        if width(line) + MIN_WORDS > columns:
            yield from [line, *wrap(words, "    ", "    ", columns)] if words else [line]
        else:
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
    skipped = f"; {iterations.skipped:,} skipped ({plain(iterations.skipped_why, 200)})" if iterations.skipped else ""
    spreads = {name: iterations.spreads.get(f"{name}_ns") for name in ITERATION_FIGURES}
    name = plain(iterations.range, 200)
    origin = f"range {name}" if iterations.source == "range" else f"{name}, found without ranges"
    time = f"{iterations.count} of {duration(iterations.time_ns)}"
    cell = 12 if columns > 62 else 9
    first = min(24, columns - 2 - 3 * cell)
    confidence = f"confidence {confidence_word(iterations.confidence)}"
    also = ", ".join(
        f"{plain(other.name, 40)} ({other.count} of {duration(other.time_ns)})"
        for other in iterations.candidates[:MAX_CANDIDATES]
    )
    return [
        *wrap(f"Iterations: {time} ({origin}; {confidence}){skipped}", "", "  ", columns),
        *(wrap(f"also repeating: {also}", "  ", "  ", columns) if also else []),
        f"  {'':<{first}}{'median':>{cell}}{'5%':>{cell}}{'95%':>{cell}}",
        *(
            f"  {name.replace('_', ' '):<{first}}"
            + "".join(f"{text:>{cell}}" for text in durations((spread.median, spread.p5, spread.p95)))
            for name, spread in spreads.items()
            if spread is not None and spread.p95
        ),
    ]


BRIEF_LINES, NARROW_LINES = 20, 24  # with the line that names the page; below 100 columns the texts wrap, below 80 more
MAX_FINDINGS, MIN_FINDINGS = 5, 3
MAX_DEVICES = 4
MAX_NOTES = 2
MANY_SKIPPED = 10  # iterations; of more, the summary says why
MAX_CAUSES = 3
MIN_CAUSE = 0.05  # share of the time, as in the answer; smaller causes of idle time are not named
MIN_BAR, MAX_BAR = 20, 60


def brief_lines(columns: int) -> int:
    """Return the most lines of a summary, with the one that names the page."""
    return BRIEF_LINES if columns >= 100 else NARROW_LINES * WIDTH // min(columns, WIDTH)


def render_brief(analysis: Analysis, screen: Screen = PLAIN, *, top: int | None = None) -> str:
    """Return the summary as text: at most `brief_lines` with the line that names the page."""
    columns, most = screen.columns, brief_lines(screen.columns) - PAGE_LINES
    answer, basis = wrap(plain(analysis.answer.text, 600), columns=columns), _basis(analysis)
    first = [*wrap(_brief_heading(analysis), columns=columns), *answer]
    first += wrap(basis, "  ", "  ", columns) if basis else []
    bars, causes = _bars(analysis, columns)
    findings = _brief_findings(analysis, columns)[: top or MAX_FINDINGS]
    least = sum(map(len, findings[:MIN_FINDINGS]))
    more = len(more_lines(_rest(analysis, 0), columns))
    free = most - 1 - more - sum(len(part) + 1 for part in (first, bars) if part)
    notes = _brief_notes(analysis, columns, free - least)
    free -= len(note_lines(notes, columns))
    if free - len(causes) >= least:
        bars, free = [*bars, *causes], free - len(causes)
    fitting = [number for number, used in enumerate(accumulate(map(len, findings)), 1) if used <= free]
    shown = findings[: fitting[-1] if fitting else 1]
    lines = [line for finding in shown for line in finding] or _no_findings(analysis)
    return screen.brief((first, bars, lines), _rest(analysis, len(shown)), most, notes)


def _brief_heading(analysis: Analysis) -> str:
    """Return the capture, the profiler, the kind of program and the GPUs; devices known by process may be one GPU."""
    names = Counter(plain(device.name, 40) for device in analysis.devices if device.name)
    shared = any(OF_PROCESS in device.id for device in analysis.devices)
    gpus = [name if count == 1 or shared else f"{count} x {name}" for name, count in names.items()]
    return " · ".join([heading(analysis), *gpus])


def _basis(analysis: Analysis) -> str:
    """Return the iterations, their mean if the answer has none, and the speed of the first device if it is known.

    Gains are parts of the time that the answer states.
    """
    known = analysis.iterations
    if isinstance(known, NotMeasured):
        return ""
    # The iterations of another loop have another name.
    first, *folded = fold_numbers(pl.Series([known.range, *(each.name for each in known.per_iteration)]))
    others = {*folded} - {first}
    names = (known.range, *others) if len(others) == 1 else (known.range,)
    name = " and ".join(map(title_name, names)) if known.source == "range" else "found without ranges"
    why = f": {plain(known.skipped_why, 100)}" if known.skipped > MANY_SKIPPED else ""
    skipped = f", {known.skipped:,} skipped{why}" if known.skipped else ""
    counted = f"{quantity(known.counted, 'iteration')} ({name}{skipped})"
    base = duration(known.time_ns if known.unprofiled is None else known.unprofiled.mean_ns)
    usual = sum(kind.count * kind.usual_ns for kind in known.kinds)
    pauses = " with pauses" if known.time_ns * known.counted > MUCH_MORE * usual else ""
    mean = f"gains are of the mean{pauses}, {base}" if known.kinds and base not in analysis.answer.text else ""
    lines = (counted, mean, *list(speed_lines(analysis))[:1])
    return " · ".join(line.removesuffix(".") for line in lines if line)


def _bars(analysis: Analysis, columns: int) -> tuple[list[str], list[str]]:
    """Return a bar for each device and what its characters mean, and the causes of idle time."""
    devices = [device for device in analysis.devices if analysis.covered(device).window.length]
    if not devices:
        return [], []
    names = [middle(plain(device.id, 100), 16) for device in devices[:MAX_DEVICES]]
    margin = max(map(width, names))
    wholes = [composition(analysis, device) for device in devices]
    lines = []
    for device, name, whole in zip(devices, names, wholes, strict=False):
        end = f"{whole.percent(whole.busy['compute']):>6} compute"
        if len(devices) == 1:
            end = f" {duration(whole.whole_ns)} {bar_words(analysis, whole, covered(analysis, device))}"
        room = columns - margin - width(end) - 4
        if room < MIN_BAR:  # the words stand below
            lines.append(f"  {left(name, margin)} {bar(whole, columns - margin - 4)}")
            lines += wrap(end, "  ", "  ", columns)
        else:
            lines.append(f"  {left(name, margin)} {bar(whole, min(MAX_BAR, room))}{end}")
    if len(devices) > MAX_DEVICES:
        lines.append(f"  and {len(devices) - MAX_DEVICES} more GPUs: -v")
    causes = _causes(wholes[0], cause_words(analysis.program), columns) if len(wholes) == 1 else []
    return [*lines, *_legend(wholes, columns)], causes


def _legend(wholes: Sequence[Composition], columns: int) -> list[str]:
    """Return what the characters of the bars mean, with the shares of a single device."""
    looks = [look for look in BAR_PARTS if any(whole.parts[look] for whole in wholes)]
    only = wholes[0] if len(wholes) == 1 else None
    lines: list[str] = []
    for look in looks:
        what, mark = BAR_PARTS[look]
        text = f"  {mark} {what}" + (f" {only.percent(only.parts[look])}" if only else "")
        if lines and width(lines[-1] + text) <= columns:
            lines[-1] += text
        else:
            lines.append(text)
    return lines


def _causes(whole: Composition, words: Mapping[str, str], columns: int) -> list[str]:
    """Return the largest causes of idle time, in one line of WIDTH; [] without any."""
    causes = sorted(whole.idle.items(), key=lambda pair: -pair[1])[:MAX_CAUSES]
    shares = [
        f"{whole.percent(ns)} {words[cause].partition(' (')[0].removeprefix('launched, ')}"
        for cause, ns in causes
        if ns >= MIN_CAUSE * whole.whole_ns
    ]
    while shares and width(line := f"Idle: {', '.join(shares)}") + 2 > max(columns, WIDTH):
        shares.pop()
    return wrap(line, "  ", "    ", columns) if shares else []


def _brief_findings(analysis: Analysis, columns: int) -> list[list[str]]:
    """Return the lines of the largest findings: each with its gain and remedy, by list."""
    several = len(analysis.devices) > 1
    shown: list[list[str]] = []
    numbers: dict[str, int] = {}  # remedy -> its first finding
    lists = {words: findings for words, findings in finding_lists(analysis).items() if words != LITTLE_GAIN}
    headings = {findings[0]: words or "For an iteration" for words, findings in lists.items()} if len(lists) > 1 else {}
    ordered = [finding for findings in lists.values() for finding in findings]
    for number, finding in enumerate(ordered[:MAX_FINDINGS], 1):
        same = numbers.setdefault(finding.remedy or finding.advice, number)
        title = f"{plain(finding.title, 600)}{device_words(finding, several)}"
        remedy = (finding.remedy or plain(finding.advice, 400)).removesuffix(".")
        remedy = remedy if same == number else f"the remedy of {same}"
        heading = [f"{headings[finding]}:"] if finding in headings else []
        text = f"{gain_words(finding.gain)}: {title} → {remedy}"
        shown.append([*heading, *wrap(text, f"{number}. ", "   ", columns)])
    return shown


def _brief_notes(analysis: Analysis, columns: int, free: int) -> list[str]:
    """Return the first note that puts figures in doubt or mends them, and of others what fits into `free` lines."""
    doubts = [first_sentence(note) for note in analysis.notes if is_doubt(note) or note.id in MENDED]
    whole = (note for note in analysis.notes if note.id in WHOLE)
    others = [first_sentence(note) for note in (*outside_notes(analysis), *whole) if not is_doubt(note)]
    doubts, others = ([text for text in texts if text not in analysis.answer.text] for texts in (doubts, others))
    return fitting_notes(doubts, others[: max(MAX_NOTES - len(doubts), 0)], free, columns)


def _rest(analysis: Analysis, shown: int) -> str:
    """Return what --verbose adds to the findings that are shown, and what has all."""
    counts = ((len(analysis.findings) - shown, "more finding"), (len(analysis.notes), "note"))
    words = ", ".join(quantity(count, what) for count, what in counts if count > 0) or "tables"
    return f"{words}; all: page, --json"


def is_doubt(note: Note) -> bool:
    """Return whether a note says that a figure is not to be trusted: rows were left out, or the capture is cut."""
    return bool(note.affects) and not note.id.startswith("no_") and note.id not in STATED
