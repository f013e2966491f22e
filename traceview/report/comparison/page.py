"""The page of a comparison: one HTML document that needs no other file and no network."""

from __future__ import annotations

from traceview.model.comparison import CaptureDifference, Comparison, IterationTimeline
from traceview.model.units import plain
from traceview.report.assets import COMPARISON, escaped_json
from traceview.report.comparison.tables import (
    ComparisonTable,
    Time,
    accounts,
    compared,
    headline,
    notes,
    part_words,
    sentence,
    tables,
    unprofiled_words,
)

MAX_ROWS = 400  # lines and kernels in a table
PART_LOOKS = {"compute": "compute", "other": "d2d", "no_gpu": "idle_unknown", "twice": "memset"}
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
    causes = (unprofiled_words(comparison.base, against), accounts(against))
    return {
        "file": plain(against.capture.file, 200),
        "verdict": against.verdict,
        "text": sentence(headline(against, comparison.cut).partition(": ")[2]),
        "accounts": " ".join(map(sentence, filter(None, causes))),
        "tables": [_table(table) for table in tables(against, MAX_ROWS)],
    }


def _table(table: ComparisonTable) -> Json:
    return {
        "title": table.title,
        "columns": [{"title": title, "unit": unit} for title, unit in table.columns],
        "rows": [[cell.ns if isinstance(cell, Time) else cell for cell in row] for row in table.rows],
        "events": table.events,
    }


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
