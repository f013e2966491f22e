"""The page of a comparison: one HTML document that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceview.model.comparison import (
    CaptureDifference,
    Comparison,
    FigureChange,
    IterationTimeline,
    KernelChange,
)
from traceview.report.assets import COMPARISON, escaped_json
from traceview.report.comparison.phrases import (
    accounts,
    compared,
    headline,
    notes,
    part_words,
    sentence,
    shown_parts,
    unprofiled_words,
)
from traceview.report.comparison.tables import (
    TextTable,
    host_table,
    kernel_table,
    line_table,
    part_table,
    shown_kernels,
    shown_lines,
)
from traceview.report.format import plain

MAX_KERNEL_ROWS = 400
PART_LOOKS = {"compute": "compute", "other": "d2d", "no_gpu": "idle_unknown", "twice": "memset"}
CHANGE_COLUMNS = (
    ("part", "text"),
    ("before", "ns"),
    ("after", "ns"),
    ("difference", "signed_ns"),
    ("95% interval", "text"),
    ("change", "text"),
)
HOST_COLUMNS = (("call", "text"), ("before", "text"), ("after", "text"), ("difference", "text"))
KERNEL_COLUMNS = (
    ("kernel", "code"),
    ("change", "text"),
    ("calls before", "text"),
    ("calls after", "text"),
    ("per call before", "ns"),
    ("per call after", "ns"),
    ("cost per iteration", "signed_ns"),
)
Json = dict[str, object]


def content(comparison: Comparison) -> Json:
    """Return the values of the page's script, without the timelines."""
    captures = [comparison.base, *(against.capture for against in comparison.against)]
    return {
        "base": plain(comparison.base.file, 200),
        "how": " · ".join(f"{plain(capture.file, 60)}: {compared(capture, comparison.cut)}" for capture in captures),
        "bars": [_bar(comparison.base.file, comparison.against[0], after=False)]
        + [_bar(against.capture.file, against, after=True) for against in comparison.against],
        "against": [_against(comparison, against) for against in comparison.against],
        "notes": [plain(note, 2000) for note in notes(comparison)],
    }


def _bar(file: str, against: CaptureDifference, *, after: bool) -> Json:
    """Return the mean time of a capture and its parts."""
    parts = [(part.name, int(part.mean_after if after else part.mean_before)) for part in against.mean_parts]
    return {
        "file": plain(file, 200),
        "ns": against.time.after if after else against.time.before,
        "parts": [{"look": _part_look(name), "word": part_words(name), "ns": ns} for name, ns in parts if ns > 0],
    }


def _part_look(name: str) -> str:
    return PART_LOOKS.get(name) or name.removeprefix("exposed_").replace("idle.", "idle_")


def _against(comparison: Comparison, against: CaptureDifference) -> Json:
    return {
        "file": plain(against.capture.file, 200),
        "verdict": against.verdict,
        "text": sentence(headline(against, comparison.cut).partition(": ")[2]),
        "accounts": " ".join(
            map(sentence, filter(None, (unprofiled_words(comparison.base, against), accounts(against))))
        ),
        "tables": list(_tables(against)),
    }


def _tables(against: CaptureDifference) -> Iterator[Json]:
    parts, host = part_table(against), host_table(against)
    lines, kernels = line_table(against, MAX_KERNEL_ROWS), kernel_table(against, MAX_KERNEL_ROWS)
    changes = [*shown_parts(against), against.time, against.wall]
    yield _table(parts, CHANGE_COLUMNS, _change_rows(parts, changes))
    yield _table(host, HOST_COLUMNS, [list(row) for row in host.rows])
    shown = shown_kernels(against)[:MAX_KERNEL_ROWS]
    kernel_rows = [
        [*row[:4], *_per_call(kernel), kernel.cost_ns] for row, kernel in zip(kernels.rows, shown, strict=True)
    ]
    if against.lines:
        yield _table(lines, (("line", "code"), *CHANGE_COLUMNS[1:]), _change_rows(lines, _line_changes(against)))
    yield {**_table(kernels, KERNEL_COLUMNS, kernel_rows), "events": [plain(kernel.name, 300) for kernel in shown]}


def _line_changes(against: CaptureDifference) -> list[FigureChange]:
    return [line.idle for line in shown_lines(against)[:MAX_KERNEL_ROWS]]


def _table(table: TextTable, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]]) -> Json:
    declared = [{"title": title, "unit": unit} for title, unit in columns]
    return {"title": table.title, "columns": declared, "rows": rows, "events": None}


def _change_rows(table: TextTable, changes: Sequence[FigureChange]) -> list[list[object]]:
    """Return the rows of a table of changes with plain numbers; texts as in the other reports."""
    return [
        [row[0], change.before, change.after, change.difference, *row[4:]]
        for row, change in zip(table.rows, changes, strict=True)
    ]


def _per_call(kernel: KernelChange) -> list[int | None]:
    """Return the mean GPU time of a call in both captures; None where a capture has no call."""
    return [
        None if kernel.status == "appeared" else int(kernel.per_call.mean_before),
        None if kernel.status == "vanished" else int(kernel.per_call.mean_after),
    ]


def render(comparison: Comparison) -> str:
    """Return one HTML document; the same comparison gives the same bytes."""
    timelines = comparison.timelines() if comparison.timelines else ()
    names = [comparison.base.file, *(against.capture.file for against in comparison.against)]
    parts = {
        "content": [escaped_json(content(comparison))],
        "timelines": [
            escaped_json([_timeline(name, timeline) for name, timeline in zip(names, timelines, strict=False)])
        ],
    }
    return "".join(COMPARISON.document(" → ".join(names), parts))


def _timeline(name: str, timeline: IterationTimeline) -> dict[str, object]:
    looks = sorted({event[3] for event in timeline.events})
    place = {look: index for index, look in enumerate(looks)}
    return {
        "file": name,
        "lanes": timeline.lanes,
        "names": timeline.names,
        "looks": looks,
        "events": [[lane, start, length, place[look], text] for lane, start, length, look, text in timeline.events],
        "iterations": timeline.iterations,
        "first": timeline.first,
        "middle": timeline.middle,
        "leftOut": timeline.left_out,
    }
