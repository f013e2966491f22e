"""The summary's tables: every declared table, idle time by cause, iterations."""

from __future__ import annotations

from collections.abc import Iterator

from traceview.model.analysis import ITERATION_FIGURES, Analysis, Iterations, NotMeasured
from traceview.model.columns import Table
from traceview.model.devices import DevicePart
from traceview.report.format import CAUSE_WORDS, confidence_word, figures, plain
from traceview.report.layout import WIDTH, cut, left, short_names, width, wrap
from traceview.units import duration, durations, share

TOP = 10  # rows of a list or table
COLUMN_GAP = 2
MAX_NAME_WIDTH = 34
MAX_CANDIDATES = 4
MAX_WAITS = 2  # named system calls


def tables(analysis: Analysis, top: int | None, columns: int = WIDTH) -> Iterator[list[str]]:
    """Yield each table as lines, its heading first; `top` bounds the rows of each, by default as the table says."""
    for device in analysis.devices[: top or TOP]:
        name = cut(plain(device.id, 100), 24)
        part = analysis.part(device)
        for table in {**device.tables, **part.tables}.values():
            yield text_table(table, top, columns, f" on {name}")
        yield _idle_causes(part, name)
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


def _idle_causes(use: DevicePart, name: str) -> list[str]:
    if not use.idle_ns:
        return []
    causes = sorted(((cause, ns) for cause, ns in use.gaps.causes.items() if ns), key=lambda pair: -pair[1])
    texts = durations([ns for _, ns in causes])
    return [
        f"Idle time of {name} by cause: {duration(use.idle_ns)} in {use.gaps.count} gaps",
        *(
            f"  {cause:<14}{text:>11}{share(ns, use.idle_ns):>8}  {CAUSE_WORDS[cause]}"
            for (cause, ns), text in zip(causes, texts, strict=True)
        ),
        *_host_states(use),
    ]


def _host_states(use: DevicePart) -> list[str]:
    """Return the states of the host in its idle time, if they are known; system calls by name."""
    states, host = use.gaps.host_states, use.gaps.causes["host"]
    known = {name: ns for name, ns in states.ns.items() if ns}
    if not set(known) - {"unattributed"}:
        return []
    waits = ", ".join(f"{plain(name, 40)} {duration(ns)}" for name, ns in list(states.waits.items())[:MAX_WAITS])
    return [
        "  of `host`:",
        *(
            f"    {name.replace('_', ' '):<19}{text:>11}{share(ns, host):>8}"
            + (f"  {waits}" if name == "waiting" else "")
            for (name, ns), text in zip(known.items(), durations(list(known.values())), strict=True)
        ),
    ]


def _iterations(iterations: Iterations, columns: int) -> list[str]:
    skipped = f"; {iterations.skipped} skipped ({plain(iterations.skipped_why, 200)})" if iterations.skipped else ""
    spreads = {name: iterations.spreads.get(f"{name}_ns") for name in ITERATION_FIGURES}
    name = plain(iterations.range, 200)
    origin = f"range {name}" if iterations.source == "range" else f"{name}, found without ranges"
    confidence = f"confidence {confidence_word(iterations.confidence)}"
    others = (
        f"{plain(other.name, 40)} ({other.count} of {duration(other.time_ns)})"
        for other in iterations.candidates[:MAX_CANDIDATES]
    )
    also = ", ".join(others)
    return [
        *wrap(
            f"Iterations: {iterations.count} of {duration(iterations.time_ns)} ({origin}; {confidence}){skipped}",
            "",
            "  ",
            columns,
        ),
        *(wrap(f"also repeating: {also}", "  ", "  ", columns) if also else []),
        f"  {'':<24}{'median':>12}{'5%':>12}{'95%':>12}",
        *(
            f"  {name.replace('_', ' '):<24}"
            + "".join(f"{text:>12}" for text in durations((spread.median, spread.p5, spread.p95)))
            for name, spread in spreads.items()
            if spread is not None and spread.p95
        ),
    ]
