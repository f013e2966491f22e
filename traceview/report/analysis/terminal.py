"""The summary on a terminal of 80 columns: the answer, use of each device, findings, notes and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from traceview.model.analysis import Analysis, Finding
from traceview.model.devices import DevicePart, DeviceUse
from traceview.model.rows import CALLS
from traceview.model.stacks import HostPlace
from traceview.model.trace import Note
from traceview.report.analysis.answer import (
    OUTSIDE,
    covered,
    families_line,
    iteration_line,
    outside_lines,
    price,
    program_words,
    speed_lines,
    total_words,
)
from traceview.report.analysis.tables import TOP, tables
from traceview.report.format import plain
from traceview.report.layout import WIDTH, code_lines, cut, width, wrap
from traceview.units import duration, durations, share

BAR = 60
ANSWERS = 3
SHOWN_CALLS = 4  # functions of a finding's stack
IN_ASCII = str.maketrans(
    {
        "█": "#",
        "▓": "C",
        "▒": "c",
        "░": ".",
        "·": "-",
        "…": "~",
        "µ": "u",
        "×": "x",
        "–": "-",
        "—": "-",
        "→": ">",
    }
)
BOLD, GREEN, MAGENTA, YELLOW, GREY = 1, 32, 35, 33, 90
INK = {"█": GREEN, "▓": MAGENTA, "▒": YELLOW, "░": GREY}
WHOLE = ("no_gpu_work", "no_cuda_calls")  # notes that end with the command that captures what is missing
SENTENCE = re.compile(r"\. (?=[A-Z`])")
RUNS = re.compile("|".join(f"{mark}+" for mark in INK))


def render(analysis: Analysis, *, top: int | None = None, unicode: bool = True, colour: bool = False) -> str:
    """Return the summary as text; `top` bounds every list, by default to TOP. No line is wider than 80 columns.

    Without `unicode` the text is ASCII; with `colour` it holds ANSI escapes.
    """
    lines = [cut(line, WIDTH) for part in _parts(analysis, top) if part for line in (*part, "")]
    if colour:
        lines = [_coloured_line(line) for line in lines]
    text = "\n".join(lines).rstrip() + "\n"
    return text if unicode else text.translate(IN_ASCII).encode("ascii", "replace").decode("ascii")


def _coloured_line(line: str) -> str:
    if line and not line.startswith(" "):
        return _in_colour(line, BOLD)
    return RUNS.sub(lambda run: _in_colour(run[0], INK[run[0][0]]), line) if line[2:3] in INK else line


def _in_colour(text: str, code: int) -> str:
    return f"\033[{code}m{text}\033[0m"


def _parts(analysis: Analysis, chosen: int | None) -> Iterator[list[str]]:
    top = chosen or TOP
    info = analysis.info
    known = f"nsys {plain(info.nsys_version, 20)}" if info.nsys_version else "nsys of unknown version"
    version = known if info.profiler == "nsys" else info.profiler
    yield [
        f"{cut(plain(info.file, 200), 46)} · {version} · {program_words(analysis.program)}",
        *(f"  {line}" for text in _first_lines(analysis) if text for line in wrap(text, "", "  ", WIDTH - 2)),
    ]
    for device in analysis.devices[:top]:
        yield _device(analysis, device)
    yield _findings(analysis, top)
    yield from _notes(analysis, top)
    if any(analysis.part(device).window != device.window for device in analysis.devices):
        yield ["Streams, calls and ranges cover the whole window, other tables the bars' time"]
    yield from tables(analysis, chosen)


def _first_lines(analysis: Analysis) -> Iterator[str]:
    yield plain(analysis.answer, 600)
    yield iteration_line(analysis.iterations)
    yield families_line(analysis)
    yield from speed_lines(analysis)
    yield from outside_lines(analysis)


def shares(use: DevicePart) -> tuple[tuple[str, int, str], ...]:
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
    use = analysis.part(device)
    whole = use.window.length
    name = f" · {cut(plain(device.name, 100), 24)}" if device.name else ""
    head = f"{cut(plain(device.id, 100), 24)}{name}"
    if not whole:
        return [f"{head} · no work in the counted iterations"]
    parts = [part for part in shares(use) if part[1]]
    times = durations([ns for _, ns, _ in parts])
    return [
        f"{head} · {duration(whole)} {covered(analysis, device)}",
        f"  {_bar([(mark, ns) for _, ns, mark in parts], whole)}",
        *(
            f"  {mark} {words:<28}{time:>12}{share(ns, whole):>8}"
            for (words, ns, mark), time in zip(parts, times, strict=True)
        ),
    ]


def _bar(parts: Sequence[tuple[str, int]], whole: int) -> str:
    """Return BAR characters. Borders are rounded, not parts, so the bar is always full."""
    drawn, at = "", 0
    for mark, ns in parts:
        at += ns
        drawn += mark * (round(BAR * at / whole) - len(drawn)) if whole else ""
    return drawn


def _findings(analysis: Analysis, top: int) -> list[str]:
    several = len(analysis.devices) > 1
    total = total_words(analysis)
    if not analysis.findings:
        return ["No findings: no known problem cost GPU time."] if analysis.devices else []
    lines = ["What to change first, and what it cost"]
    numbers: dict[tuple[str, str], int] = {}
    for number, finding in enumerate(analysis.findings[:ANSWERS], 1):
        lines += _heading(number, f"{plain(finding.title, 600)}{_device_words(finding, several)}", finding, total)
        same = numbers.setdefault((finding.id, finding.code), number)
        lines += _remedy(finding) if same == number else [f"   The remedy is that of {same}."]
    more = analysis.findings[ANSWERS : max(top, ANSWERS)]
    lines += (
        ["Further findings", *(_short(finding, _device_words(finding, several)) for finding in more)] if more else []
    )
    hidden = len(analysis.findings) - ANSWERS - len(more)
    return [*lines, f"  and {hidden} more in the page and the JSON"] if hidden > 0 else lines


def _notes(analysis: Analysis, top: int) -> Iterator[list[str]]:
    """Yield the first sentence of each note, and the WHOLE ones; the page has all texts whole."""
    notes = [note for note in analysis.notes if note.id not in OUTSIDE]
    if notes:
        lines = [line for note in notes[:top] for line in wrap(_first_sentence(note), "  - ", "    ")]
        more = [f"  and {len(notes) - top} more in the page and the JSON"] if len(notes) > top else []
        yield ["About this capture", *lines, *more]


def _first_sentence(note: Note) -> str:
    text = plain(note.text, 2000)
    end = SENTENCE.search(text)
    return text if end is None or note.id in WHOLE else text[: end.start() + 1]


def _device_words(finding: Finding, several: bool) -> str:
    device = finding.device_words
    return f" [{cut(plain(device, 100), 24)}]" if device and several else ""


def _heading(number: int, title: str, finding: Finding, total: str) -> list[str]:
    return [
        *wrap(title, f"{number}. ", "   "),
        *wrap(f"{finding.severity}: {price(finding, total)}", "   ", "   "),
        *_host_stack(finding.host),
        *(wrap(f"Unsure: {plain(finding.unsure_because, 400)}", "   ", "   ") if finding.unsure_because else ()),
    ]


def _host_stack(place: HostPlace | None) -> list[str]:
    """Return the program's innermost function and the library's functions below it; [] if there are none."""
    if place is None or not place.calls:
        return []
    texts = [plain(frame.text, 200) for frame in place.stack[place.own :]]
    shown = texts if len(texts) <= SHOWN_CALLS else [*texts[:2], "…", texts[-1]]
    return wrap(CALLS.join(shown), "   ", "   ")


def _remedy(finding: Finding) -> list[str]:
    return [
        *wrap(plain(finding.advice, 4000), "   ", "   "),
        *code_lines("\n".join(plain(line, 600) for line in finding.code.splitlines()), "       "),
    ]


def _short(finding: Finding, where: str) -> str:
    cost = duration(finding.cost_ns)
    return f"  {cost:>10}  {cut(plain(finding.title, 600), 66 - width(where))}{where}"
