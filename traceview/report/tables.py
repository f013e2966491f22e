"""The summary's tables: copies, idle time by cause, calls that hold the host, iterations, NVTX ranges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceview.model import ITERATION_FIGURES, Analysis, ApiTotal, DeviceUse, Iterations, NotMeasured, RangeUse
from traceview.report.layout import cut, left, wrap
from traceview.report.words import CAUSE_WORDS, bandwidth, milliseconds, percent, plain, size


def tables(analysis: Analysis, top: int) -> Iterator[list[str]]:
    """Yield each table as lines, its heading first; `top` bounds the rows of each."""
    for device in analysis.devices[:top]:
        yield from _of_device(device, top)
    yield _calls("Synchronizations", analysis.host.sync.calls, top)
    yield _calls(
        "Calls that block although their name does not say so", analysis.host.implicit_sync.calls, top
    )
    if not isinstance(analysis.iterations, NotMeasured):
        yield _iterations(analysis.iterations)
    if not isinstance(analysis.nvtx, NotMeasured):
        yield _ranges(analysis.nvtx, top)


def _of_device(device: DeviceUse, top: int) -> Iterator[list[str]]:
    rows = [
        _overlap(f"{one.kind} {one.memory}", one.count, one.bytes, one.busy_ns, one.exposed_ns)
        for one in device.copies[:top]
    ]
    communication = device.communication
    if communication.count:
        rows.append(
            _overlap("communication", communication.count, 0, communication.busy_ns, communication.exposed_ns)
        )
    name = cut(plain(device.id, 100), 24)
    if rows:
        head = f"  {'':<16}{'count':>8}{'size':>10}{'rate':>13}{'busy':>11}{'exposed':>11}{'hidden':>9}"
        yield [f"Copies and communication on {name}", head, *rows]
    if not device.idle_ns:
        return
    causes = sorted(device.gaps.causes.items(), key=lambda pair: -pair[1])
    yield [
        f"Why {name} was idle: {milliseconds(device.idle_ns)} in {device.gaps.count} gaps",
        *(
            f"  {cause:<14}{milliseconds(ns):>11}{percent(ns, device.idle_ns):>8}  {CAUSE_WORDS[cause]}"
            for cause, ns in causes
            if ns
        ),
    ]


def _overlap(name: str, count: int, size_bytes: int, busy: int, exposed: int) -> str:
    amount, rate = (size(size_bytes), bandwidth(size_bytes, busy)) if size_bytes else ("", "")
    return (
        f"  {name:<16}{count:>8}{amount:>10}{rate:>13}{milliseconds(busy):>11}"
        f"{milliseconds(exposed):>11}{percent(busy - exposed, busy):>9}"
    )


def _calls(title: str, calls: Sequence[ApiTotal], top: int) -> list[str]:
    if not calls:
        return [f"{title}: none"]
    return [
        _first(title, len(calls), top),
        f"  {'':<26}{'count':>8}{'blocked':>11}{'GPU busy':>11}{'starved':>11}{'refill':>11}",
        *(
            f"  {left(plain(call.api, 100), 26)}{call.count:>8}{milliseconds(call.blocked_ns):>11}"
            f"{milliseconds(call.waited_ns):>11}{milliseconds(call.starved_ns):>11}{milliseconds(call.refill_ns):>11}"
            for call in calls[:top]
        ),
    ]


def _iterations(found: Iterations) -> list[str]:
    aside = f"; {found.skipped} set aside ({plain(found.skipped_why, 200)})" if found.skipped else ""
    spreads = [(name, found.spreads[f"{name}_ns"]) for name in ITERATION_FIGURES if f"{name}_ns" in found.spreads]
    return [
        *wrap(f"Iterations: {found.count} of {plain(found.range, 200)}{aside}", "", "  "),
        f"  {'':<24}{'median':>12}{'5%':>12}{'95%':>12}",
        *(
            f"  {name.replace('_', ' '):<24}"
            + "".join(f"{milliseconds(ns):>12}" for ns in (of.median, of.p5, of.p95))
            for name, of in spreads
            if of.p95
        ),
    ]


def _ranges(uses: Sequence[RangeUse], top: int) -> list[str]:
    return [
        _first("NVTX ranges, by GPU time", len(uses), top),
        f"  {'':<32}{'count':>8}{'host':>13}{'GPU busy':>13}{'kernels':>10}",
        *(
            f"  {left(_named(use), 32)}{use.count:>8}{milliseconds(use.host_ns):>13}"
            f"{milliseconds(use.gpu_busy_ns):>13}{use.kernel_count:>10}"
            for use in uses[:top]
        ),
    ]


def _named(use: RangeUse) -> str:
    return plain(f"{use.domain}:{use.name}" if use.domain else use.name, 200)


def _first(title: str, count: int, top: int) -> str:
    return title if count <= top else f"{title} (first {top} of {count})"
