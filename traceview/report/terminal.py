"""The answer on a terminal of 80 columns: where the time went, what it cost, what to change."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from traceview.model import Analysis, DeviceUse, Finding, Iterations, NotMeasured, RangeUse, SyncUse
from traceview.report.words import CAUSE_WORDS, bandwidth, milliseconds, percent, plain, size

WIDTH = 80
BAR = 60
ANSWERS = 3
ASCII = str.maketrans({"█": "#", "▓": "C", "▒": "c", "░": ".", "·": "-", "…": "~", "→": ">", "–": "-", "—": "-"})


def render(analysis: Analysis, *, top: int = 10, unicode: bool = True) -> str:
    """Return the summary as text; `top` bounds every table. No line is wider than 80 columns."""
    lines = [line for part in _parts(analysis, top) for line in (*part, "")]
    text = "\n".join(_fit(line) for line in lines).rstrip() + "\n"
    return text if unicode else text.translate(ASCII).encode("ascii", "replace").decode("ascii")


def _fit(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _parts(analysis: Analysis, top: int) -> Iterator[list[str]]:
    info = analysis.info
    version = f"nsys {info.nsys_version}" if info.nsys_version else "nsys of unknown version"
    yield [f"{plain(info.file, 50)} · {version}"]
    for device in analysis.devices:
        yield _device(device)
    yield _findings(analysis.findings)
    for device in analysis.devices:
        yield from _tables(device, top)
    yield _syncs(analysis)
    if isinstance(analysis.iterations, Iterations):
        yield _iterations(analysis.iterations)
    if not isinstance(analysis.nvtx, NotMeasured):
        yield _ranges(analysis.nvtx, top)
    if analysis.notes:
        yield ["Not measured or left out", *_bullets(analysis.notes)]


def exposed(device: DeviceUse) -> tuple[tuple[str, int, str], ...]:
    """Return the parts of a device's window that add up to it: (name, ns, bar character)."""
    rest = device.busy_ns - device.compute_ns
    communication = device.communication.exposed_ns
    return (
        ("compute", device.compute_ns, "█"),
        ("exposed communication", communication, "▓"),
        ("exposed copies and memsets", rest - communication, "▒"),
        ("idle", device.idle_ns, "░"),
    )


def _device(device: DeviceUse) -> list[str]:
    name = f" · {plain(device.name, 30)}" if device.name else ""
    whole = device.window.length
    lines = [f"{device.id}{name} · {milliseconds(whole)} from first to last GPU work"]
    shares = exposed(device)
    bar = "".join(mark * round(BAR * ns / whole) for _, ns, mark in shares) if whole else ""
    lines.append("  " + bar[:BAR])
    lines += [f"  {mark} {word:<28}{milliseconds(ns):>12} {percent(ns, whole):>7}" for word, ns, mark in shares if ns]
    return lines


def _findings(findings: Sequence[Finding]) -> list[str]:
    if not findings:
        return ["Nothing found that cost the GPU time."]
    lines = ["What cost most, and what to change"]
    for number, finding in enumerate(findings[:ANSWERS], 1):
        lines += _finding(number, finding)
    more = findings[ANSWERS:]
    if more:
        lines.append(f"  and {len(more)} more:")
        lines += [f"  - {milliseconds(one.cost_ns):>10}  {one.title}" for one in more]
    return lines


def _finding(number: int, finding: Finding) -> list[str]:
    price = [milliseconds(finding.cost_ns), f"{100 * finding.cost_fraction:.1f}% of the run"]
    if finding.cost_per_iteration_ns is not None:
        price.append(f"{milliseconds(finding.cost_per_iteration_ns)} per iteration")
    cost = ", ".join(price) if finding.cost_ns else "no cost of its own"
    where = f" [{finding.device}]" if finding.device else ""
    return [
        *_wrap(f"{finding.title}{where}", f"{number}. ", "   "),
        *_wrap(cost, "   costs ", "         "),
        *_wrap(finding.advice, "   ", "   "),
        *(f"       {line}" for line in finding.code.splitlines()),
    ]


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(plain(text, 2000), WIDTH, initial_indent=first, subsequent_indent=rest) or [first.rstrip()]


def _bullets(texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in _wrap(text, "  - ", "    ")]


def _tables(device: DeviceUse, top: int) -> Iterator[list[str]]:
    if device.copies:
        lines = [f"Copies on {device.id}", f"  {'':<18}{'count':>7}{'size':>11}{'rate':>11}{'busy':>12}{'exposed':>12}"]
        lines += [
            f"  {copies.kind + ' ' + copies.memory:<18}{copies.count:>7}{size(copies.bytes):>11}"
            f"{bandwidth(copies.bytes, copies.busy_ns):>11}{milliseconds(copies.busy_ns):>12}"
            f"{milliseconds(copies.exposed_ns):>12}"
            for copies in device.copies[:top]
        ]
        yield lines
    if device.idle_ns:
        causes = sorted(device.gaps.causes.items(), key=lambda pair: -pair[1])
        lines = [f"Why {device.id} was idle: {milliseconds(device.idle_ns)} in {device.gaps.count} gaps"]
        lines += [
            f"  {name:<14}{milliseconds(ns):>12} {percent(ns, device.idle_ns):>7}  {CAUSE_WORDS[name]}"
            for name, ns in causes
            if ns
        ]
        yield lines


def _syncs(analysis: Analysis) -> list[str]:
    lines = ["Calls that hold the host"]
    lines.append(f"  {'':<34}{'count':>7}{'blocked':>12}{'GPU worked':>12}{'cost':>12}")
    for use in (analysis.host.sync, analysis.host.implicit_sync):
        lines += _calls(use)
    return lines if len(lines) > 2 else ["No call held the host."]


def _calls(use: SyncUse) -> list[str]:
    return [
        f"  {plain(call.api, 33):<34}{call.count:>7}{milliseconds(call.blocked_ns):>12}"
        f"{milliseconds(call.waited_ns):>12}{milliseconds(call.starved_ns + call.refill_ns):>12}"
        for call in use.calls
    ]


def _iterations(found: Iterations) -> list[str]:
    wall = found.wall_ns
    set_aside = f", {found.skipped} set aside ({found.skipped_why})" if found.skipped else ""
    lines = _wrap(f"Iterations: {found.count} of {found.range!r}{set_aside}", "", "  ")
    lines.append(
        f"  wall {milliseconds(wall.median)} (5% {milliseconds(wall.p5)}, 95% {milliseconds(wall.p95)}); median of each:"
    )
    names = ("compute", "exposed_h2d", "exposed_d2h", "exposed_communication", "idle", "blocked")
    medians = [f"{name} {milliseconds(found.spreads[name + '_ns'].median)}" for name in names]
    return lines + _wrap(" · ".join(medians), "  ", "  ")


def _ranges(uses: Sequence[RangeUse], top: int) -> list[str]:
    lines = [f"NVTX ranges by GPU time{'' if len(uses) <= top else f' (first {top} of {len(uses)})'}"]
    lines.append(f"  {'':<30}{'count':>7}{'host':>13}{'GPU busy':>13}{'kernels':>9}")
    lines += [
        f"  {plain(use.name, 29):<30}{use.count:>7}{milliseconds(use.host_ns):>13}"
        f"{milliseconds(use.gpu_busy_ns):>13}{use.kernel_count:>9}"
        for use in uses[:top]
    ]
    return lines
