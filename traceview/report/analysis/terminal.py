"""The summary on a terminal of 80 columns: use of each device, findings, tables and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from traceview.model.analysis import Analysis, DeviceUse, Finding
from traceview.report.analysis.tables import tables
from traceview.report.format import milliseconds, percent, plain
from traceview.report.layout import WIDTH, code_lines, cut, width, wrap

BAR = 60
ANSWERS = 3
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
RUNS = re.compile("|".join(f"{mark}+" for mark in INK))


def render(analysis: Analysis, *, top: int = 10, unicode: bool = True, colour: bool = False) -> str:
    """Return the summary as text; `top` bounds every list. No line is wider than 80 columns.

    Without `unicode` the text is ASCII; with `colour` it holds ANSI escapes.
    """
    lines = [cut(line, WIDTH) for part in _parts(analysis, top) if part for line in (*part, "")]
    if colour:
        lines = [_painted(line) for line in lines]
    text = "\n".join(lines).rstrip() + "\n"
    return text if unicode else text.translate(IN_ASCII).encode("ascii", "replace").decode("ascii")


def _painted(line: str) -> str:
    if line and not line.startswith(" "):
        return _ink(line, BOLD)
    return RUNS.sub(lambda run: _ink(run[0], INK[run[0][0]]), line) if line[2:3] in INK else line


def _ink(text: str, code: int) -> str:
    return f"\033[{code}m{text}\033[0m"


def _parts(analysis: Analysis, top: int) -> Iterator[list[str]]:
    info = analysis.info
    known = f"nsys {plain(info.nsys_version, 20)}" if info.nsys_version else "nsys of unknown version"
    version = known if info.profiler == "nsys" else info.profiler
    yield [f"{cut(plain(info.file, 200), 50)} · {version}"]
    for device in analysis.devices[:top]:
        yield _device(device, narrowed=analysis.trace.window is not None)
    yield _findings(analysis, top)
    yield from tables(analysis, top)
    if analysis.notes:
        yield ["Not measured or left out", *_bullets(note.text for note in analysis.notes)]


def shares(device: DeviceUse) -> tuple[tuple[str, int, str], ...]:
    """Return the parts that add up to a device's window: (label, ns, character of the bar)."""
    communication = device.communication.exposed_ns
    rest = device.busy_ns - device.compute_ns - communication
    return (
        ("compute", device.compute_ns, "█"),
        ("exposed communication", communication, "▓"),
        ("exposed copies and memsets", rest, "▒"),
        ("idle", device.idle_ns, "░"),
    )


def _device(device: DeviceUse, *, narrowed: bool) -> list[str]:
    whole = device.window.length
    name = f" · {cut(plain(device.name, 100), 24)}" if device.name else ""
    span = "in the chosen window" if narrowed else "from first to last GPU work"
    parts = shares(device)
    return [
        f"{cut(plain(device.id, 100), 24)}{name} · {milliseconds(whole)} {span}",
        f"  {_bar([(mark, ns) for _, ns, mark in parts], whole)}",
        *(f"  {mark} {words:<28}{milliseconds(ns):>12}{percent(ns, whole):>8}" for words, ns, mark in parts if ns),
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
    whole = "run" if analysis.trace.window is None else "window"
    if not analysis.findings:
        return ["No findings: no known problem cost GPU time."]
    lines = ["What to change first, and what it cost"]
    for number, finding in enumerate(analysis.findings[:ANSWERS], 1):
        lines += _finding(number, f"{plain(finding.title, 600)}{_where(finding, several)}", finding, whole)
    more = analysis.findings[ANSWERS : max(top, ANSWERS)]
    lines += ["Further findings", *(_short(finding, _where(finding, several)) for finding in more)] if more else []
    hidden = len(analysis.findings) - ANSWERS - len(more)
    return [*lines, f"  and {hidden} more in the page and the JSON"] if hidden > 0 else lines


def _where(finding: Finding, several: bool) -> str:
    return f" [{cut(plain(finding.device, 100), 24)}]" if finding.device and several else ""


def _finding(number: int, title: str, finding: Finding, whole: str) -> list[str]:
    return [
        *wrap(title, f"{number}. ", "   "),
        *wrap(f"{finding.severity}: {_price(finding, whole)}", "   ", "   "),
        *(wrap(f"Unsure: {plain(finding.unsure_because, 400)}", "   ", "   ") if finding.unsure_because else ()),
        *wrap(plain(finding.advice, 4000), "   ", "   "),
        *code_lines("\n".join(plain(line, 600) for line in finding.code.splitlines()), "       "),
    ]


def _short(finding: Finding, where: str) -> str:
    cost = milliseconds(finding.cost_ns) if finding.cost_ns else "-"
    return f"  {cost:>10}  {cut(plain(finding.title, 600), 66 - width(where))}{where}"


def _price(finding: Finding, whole: str) -> str:
    if not finding.cost_ns:
        return "no separate cost"
    cost = f"{milliseconds(finding.cost_ns)}, {100 * finding.cost_fraction:.1f}% of the {whole}"
    each = finding.cost_per_iteration_ns
    return cost if each is None else f"{cost}, {milliseconds(each)} per iteration"


def _bullets(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in wrap(plain(text, 2000), "  - ", "    ")]
