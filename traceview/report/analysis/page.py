"""The page of an analysis: one HTML document from its template, styles, scripts and data.

Its content is plain values: figures in ns and bytes, texts as they are in the Analysis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from traceview.model.analysis import (
    CAUSES,
    Analysis,
    DeviceFigures,
    DeviceUse,
    Iteration,
    Iterations,
    NotMeasured,
)
from traceview.model.charts import IterationBar
from traceview.model.columns import Table
from traceview.model.composition import Composition, composition
from traceview.model.findings import Finding, Place
from traceview.model.program import program_words
from traceview.model.trace import MEMORIES, Window
from traceview.model.units import duration, plain
from traceview.report.analysis.answer import (
    COUNTED,
    FAMILY_WORDS,
    LITTLE_GAIN,
    bar_words,
    basis_lines,
    finding_lists,
    span,
    unprofiled_words,
)
from traceview.report.analysis.charts import charts
from traceview.report.assets import ANALYSIS, escaped_json, library, pack, sha256
from traceview.report.json import plain_values, values_of
from traceview.report.screen import STATE_WORDS, cause_words, confidence_word
from traceview.report.timeline.inputs import PageInputs
from traceview.report.timeline.packing import PackedTimeline, Timeline
from traceview.report.timeline.rows import timeline_rows
from traceview.report.timeline.work import PATH_LOOKS, WORDS, Bands
from traceview.report.whatif import PATH_WORDS

if TYPE_CHECKING:
    from traceview.model.whatif import Combinations, WhatIf


Json = dict[str, Any]
KERNEL_TABLES = ("kernels", "kernel_families", "modules")
MAX_WAITS = 6  # named calls of the state `waiting`
MAX_TABLE_ROWS = 500  # a capture can give every range its own name; --json writes all rows


def sections(inputs: PageInputs, whatif: WhatIf | None = None) -> Json:
    """Return everything on the page except the timeline and the charts. Times are ns from the start of its span.

    `whatif` adds predictions.
    """
    analysis, covered = inputs.analysis, inputs.span
    info, zero = analysis.info, covered.start
    return {
        "file": plain(info.file, 200),
        "nsys": info.nsys_version,
        "profiler": info.profiler,
        "program": program_words(analysis.program),
        "narrowed": analysis.trace.window is not None,
        "missing": [note.text.partition(". ")[2] for note in analysis.notes if note.id == "no_gpu_work"],
        "cause_words": cause_words(analysis.program),
        "memories": MEMORIES,
        "opens": _first_view(analysis, covered),
        "covers": _coverages(analysis),
        **_answer(analysis, zero),
        "other": None if inputs.other is None else _answer(inputs.other, zero),
        "devices": [_device(analysis, device, inputs.work[device.device]) for device in analysis.devices],
        "predictions": _predictions(analysis, inputs.combinations, whatif),
        "iterations": _iterations(analysis.iterations, inputs.charts.iterations, zero),
        "tables": [
            *(table for device in analysis.devices for table in _device_tables(analysis, device)),
            *(_table(table) for table in analysis.tables.values() if table.listed),
        ],
        "notes": [{"text": note.text, "affects": note.affects} for note in analysis.notes],
    }


def _answer(analysis: Analysis, zero: int) -> Json:
    """Return the answer and the findings of the steady part or of the window, as they follow the reader's choice."""
    return {
        "answer": analysis.answer.text,
        "answer_basis": basis_lines(analysis),
        "findings": [
            {**_finding(finding, zero), "list": words, "folded": words == LITTLE_GAIN}
            for words, findings in finding_lists(analysis).items()
            for finding in findings
        ],
    }


def _first_view(analysis: Analysis, timeline: Window) -> tuple[int, int] | None:
    """Return the time that the timeline shows first; None for all of it.

    That is the steady part. Where it is all of the GPU work, it is the GPU work if that is less than half of all.
    """
    parts = [device.steady.window for device in analysis.devices if device.steady.window.length]
    if analysis.whole or not parts:
        return None
    zero = timeline.start
    start, end = min(part.start for part in parts) - zero, max(part.end for part in parts) - zero
    if any(device.steady.window != device.window for device in analysis.devices):
        return start, end
    air = (end - start) // 50
    return (max(start - air, 0), end + air) if 2 * (end - start) < timeline.length else None


def _coverages(analysis: Analysis) -> list[str]:
    """Return what the bars can cover, the default first; one choice where the steady part is the window."""
    both = [COUNTED, span(analysis)]
    if all(device.steady.window == device.window for device in analysis.devices):
        return both[1:]
    return both[::-1] if analysis.whole else both


def _device(analysis: Analysis, device: DeviceUse, work: Bands) -> Json:
    on = f" on {device.id}" if len(analysis.devices) > 1 else ""
    views = [_covered_figures(analysis, device, work, on, whole=True)]
    if device.steady.window != device.window:
        views.insert(int(analysis.whole), _covered_figures(analysis, device, work, on, whole=False))
    return {
        **values_of(device, "id", "name"),
        "kernel_count": device.kernel_count,
        "views": views,
    }


def _covered_figures(analysis: Analysis, device: DeviceUse, work: Bands, on: str, *, whole: bool) -> Json:
    """Return the figures of a device's window or steady part."""
    use, parts = device if whole else device.steady, composition(analysis, device, whole=whole)
    covers = span(analysis) if whole else COUNTED
    return {
        "covers": covers,
        "window_ns": parts.whole_ns,
        "time_words": f"{duration(parts.whole_ns)} {bar_words(analysis, parts, covers)}",
        "idle_ns": use.idle_ns,
        "parts": _parts(use, parts, work),
        "families": _families(use),
        "tables": list(_idle_tables(use, parts.whole_ns, cause_words(analysis.program), covers, on)),
    }


def _families(use: DeviceFigures) -> list[Json]:
    """Return the families of the kernels that compute, the costliest first."""
    rows = use.tables["kernel_families"].rows if "kernel_families" in use.tables else ()
    return [
        {"family": row.family, "word": FAMILY_WORDS.get(row.family, row.family.replace("_", " ")), "ns": row.total_ns}
        for row in rows
        if row.family != "communication"
    ]


def _idle_tables(use: DeviceFigures, whole_ns: int, words: Mapping[str, str], covers: str, on: str) -> Iterator[Json]:
    """Yield the idle time by cause, and by what the host does in it where that is known."""
    idle = {words[cause]: use.gaps.causes[cause] for cause in CAUSES if use.gaps.causes[cause]}
    note = f"{duration(use.idle_ns)} in {use.gaps.count:,} gaps, {covers}. Each nanosecond is attributed to one cause."
    rows = [[cause, ns, ns / whole_ns] for cause, ns in idle.items()]
    if rows:
        yield _shares_table(f"Idle time by cause{on}", note, rows, "cause:text")
    states = use.gaps.host_states
    known = {state: ns for state, ns in states.ns.items() if ns and use.idle_ns}
    if set(known) <= {"unattributed"}:
        return
    host = use.gaps.causes["host"]
    waits = ", ".join(f"{plain(name, 40)} {duration(ns)}" for name, ns in list(states.waits.items())[:MAX_WAITS])
    rows = [[STATE_WORDS[key], ns, ns / whole_ns, waits if key == "waiting" else ""] for key, ns in known.items()]
    note = f"The part of the idle time that the host spends outside CUDA calls: {duration(host)}, {covers}."
    yield _shares_table(f"What the host did in idle time{on}", note, rows, "state:text", "calls:text")


def _shares_table(title: str, note: str, rows: list[list[Any]], first: str, *more: str) -> Json:
    """Return a declared table of names with their times and shares of the bar's time, the longest first."""
    columns = [column.split(":") for column in (first, "idle:ns", "of the time:fraction", *more)]
    return {
        "title": title,
        "note": note,
        "not_measured": None,
        "columns": [{"name": name, "title": name, "unit": unit} for name, unit in columns],
        "rows": sorted(rows, key=lambda row: -row[1]),
        "row_count": len(rows),
    }


def _parts(use: DeviceFigures, whole: Composition, work: Bands) -> list[Json]:
    """Return the parts of the time, which add up to it: busy time by class, the profiler, then idle time by cause."""
    busy = [
        {
            "look": band.name,
            "word": f"{'' if band.name in ('compute', 'memset') else 'exposed '}{WORDS[band.name]}",
            "ns": band.exposed_ns(use.window),
        }
        for band in work
    ]
    idle = [
        {"look": f"idle_{cause}", "word": f"idle: {cause.replace('_', ' ')}", "ns": whole.idle[cause]}
        for cause in CAUSES
    ]
    rest = [
        {"look": "profiler", "word": "profiler (estimated)", "ns": whole.profiler_ns},
        {"look": "outside", "word": "no GPU work yet, or any more", "ns": whole.outside_ns},
    ]
    return [part for part in (*busy, *idle, *rest) if part["ns"]]


def _device_tables(analysis: Analysis, device: DeviceUse) -> Iterator[Json]:
    """Yield a device's tables, without those of kernels, which have a section of their own."""
    part = analysis.covered(device)
    narrowed = f" Only {COUNTED}." if part.window != device.window else ""
    for name, table in {**device.tables, **part.tables}.items():
        if table.listed and name not in KERNEL_TABLES:
            noted = replace(table, note=f"{table.note}{narrowed}".strip()) if name in part.tables else table
            yield _table(noted, device.id if len(analysis.devices) > 1 else "")


def _table(table: Table, device: str = "") -> Json:
    """Return a declared table with the columns that it shows; `device` names the device where there are several."""
    rows = table.shown_rows
    columns = table.columns
    return {
        "title": f"{table.title} on {device}" if device else table.title,
        "note": table.note,
        "not_measured": table.not_measured,
        "columns": [values_of(column, "name", "title", "unit") for column in columns],
        "rows": [[getattr(row, column.name) for column in columns] for row in rows[:MAX_TABLE_ROWS]],
        "row_count": len(rows),
    }


def _predictions(analysis: Analysis, combinations: Combinations | None, whatif: WhatIf | None) -> Json | None:
    """Return what changes give, alone and together; `whatif` adds those that only it knows."""
    if combinations is None:
        return None
    known = {row.change for row in combinations.predictions}
    unprofiled = analysis.iterations.unprofiled if isinstance(analysis.iterations, Iterations) else None
    more = () if whatif is None else tuple(row for row in whatif.predictions if row.change not in known)
    return {
        "now": "now, without the profiler" if unprofiled is not None else "now",
        "base_ns": combinations.base_ns,
        "path": _path(combinations.path),
        "combined": combinations.combined,
        "rows": [
            {
                "changes": row.change.split("+"),
                "title": row.title,
                "ns": row.iteration_ns,
                "low": row.low_ns,
                "high": row.high_ns,
                "path": _path(row.path),
                "note": "; ".join(text for text in (row.note, f"assumes: {row.rests_on}") if text),
            }
            for row in (*combinations.predictions, *more)
        ],
    }


def _path(path: Mapping[str, int]) -> list[Json]:
    """Return the critical path as the parts of a bar."""
    return [{"look": PATH_LOOKS[kind], "word": PATH_WORDS[kind], "ns": ns} for kind, ns in path.items() if ns]


def _finding(finding: Finding, zero: int) -> Json:
    return {
        **values_of(finding, "id", "severity", "title", "cost_ns"),
        "gain": {
            **plain_values(finding.gain),
            "fraction": finding.gain.stated_fraction,
            "at_most": finding.gain.is_at_most,
            "change": finding.change,
        },
        "per_iteration_ns": finding.cost_per_iteration_ns,
        **values_of(finding, "remedy", "advice", "code"),
        "device": finding.device_words,
        "unsure_because": finding.unsure_because,
        "host": plain_values(finding.host),
        "evidence": [_place(place, zero) for place in finding.evidence],
    }


def _place(place: Place, zero: int) -> Json:
    targets = (
        (place.stream, f"s:{place.stream}"),
        (place.thread, f"t:{place.thread}"),
        (place.device, f"d:{place.device}"),
    )
    return {
        "text": place.text,
        "start": place.start_ns - zero,
        "end": place.end_ns - zero,
        "rows": [row for known, row in targets if known is not None],
    }


def _iterations(iterations: Iterations | NotMeasured, bars: Sequence[IterationBar], zero: int) -> Json:
    if isinstance(iterations, NotMeasured):
        return {"not_measured": iterations.reason}
    return {
        **values_of(iterations, "range", "source"),
        "confidence": confidence_word(iterations.confidence),
        "time_ns": iterations.time_ns,
        "unprofiled": unprofiled_words(iterations.unprofiled),
        "candidates": plain_values(iterations.candidates),
        **values_of(iterations, "count", "skipped", "skipped_why"),
        "spreads": plain_values(iterations.spreads),
        "kinds": [{"words": kind.words, "median_ns": kind.time_ns.median} for kind in iterations.kinds],
        "bars": [_bar(iterations.per_iteration[bar.slowest], bar, zero) for bar in bars],
    }


def _bar(slowest: Iteration, bar: IterationBar, zero: int) -> Json:
    """Return a bar of the strip of iterations; it leads to the slowest of those that it stands for."""
    name = f"{slowest.name}, the slowest of {bar.count}" if bar.count > 1 else slowest.name
    start, end = slowest.start_ns - zero, slowest.end_ns - zero
    return {"ns": bar.wall_ns // bar.count, "skipped": bar.skipped, "name": name, "start": start, "end": end}


# plotly.js adds rules to existing style elements; the content security policy forbids new ones.
LIBRARY_STYLE = "/* plotly.js */"


def pieces(title: str, content: object, charts: str, timeline: PackedTimeline) -> list[str]:
    """Return the document's text in pieces, all ASCII.

    `content` is written as JSON, escaped for HTML; `charts` is packed JSON. Data for the first screen comes before the
    script, other data after it. The content security policy allows only the styles and scripts of this package, by
    hash.
    """
    plotly = library()
    parts = {
        "content": [escaped_json(content)],
        "charts": [charts],
        "columns": [timeline.chunks[0]],
        "chunks": [
            text
            for number, chunk in enumerate(timeline.chunks[1:], 1)
            for text in (f'<script type="application/octet-stream" id="chunk-{number}">', chunk, "</script>")
        ],
        "names": [packed_json(timeline.names)],
        "library": [plotly.packed],
        "library_digest": [plotly.digest],
        "library_styles": [f'<style id="{style_id}">{LIBRARY_STYLE}</style>' for style_id in plotly.style_ids],
    }
    more = ["style-src-attr 'unsafe-inline'"]  # plotly.js writes style attributes
    return ANALYSIS.document(title, parts, scripts=[plotly.digest], styles=[sha256(LIBRARY_STYLE)], more=more)


def packed_json(content: object) -> str:
    """Return JSON, deflated, as base64."""
    return pack(escaped_json(content).encode("utf-8"))


DETAIL = 15_000_000  # bytes of the file
MIN_TIMELINE = 400_000  # bytes of the timeline, even where the page then exceeds its limit
MAX_TRIES = 3


def render(inputs: PageInputs, detail: int = DETAIL, whatif: WhatIf | None = None) -> str:
    """Return one HTML document that needs no other file and no network.

    `detail` is the maximum size in bytes: as much of the timeline as fits has full detail, the rest is in bins with
    event counts. A page needs a minimum size, which may exceed `detail`. `whatif` adds its predictions and
    its critical path, as the first row. The same inputs give the same bytes.
    """
    title = inputs.analysis.info.file
    # Charts need nothing of the timeline, and NumPy and polars release the interpreter lock.
    with ThreadPoolExecutor(1) as aside:
        packing = aside.submit(lambda: packed_json(charts(inputs)))
        names, groups = timeline_rows(inputs, () if whatif is None else whatif.spans)
        shown = packing.result()
        content = sections(inputs, whatif)
    # The page without its timeline: the timeline gets the rest of the size.
    rest = pieces(title, {**content, "timeline": {}}, shown, PackedTimeline({}, [""], []))
    left = detail - sum(map(len, rest))
    timeline = Timeline.from_rows(inputs, names, groups, max(left, MIN_TIMELINE))
    for _ in range(MAX_TRIES):
        drawn = timeline.packed(max(left, MIN_TIMELINE))
        document = "".join(pieces(title, {**content, "timeline": drawn.content}, shown, drawn))
        over = len(document) - detail
        if over <= 0 or left <= MIN_TIMELINE:
            break
        # The size of names and places is known only after packing.
        left -= over + detail // 50
    return document
