"""A comparison as JSON (docs/compare.md "JSON"), and as one HTML page that needs no other file and no network."""

from __future__ import annotations

from traceview.model.comparison import (
    CaptureDifference,
    Comparison,
    FigureChange,
    IterationTimeline,
    KernelChange,
    LineChange,
    OverlapChange,
    PredictedTime,
)
from traceview.model.units import plain
from traceview.report.assets import COMPARISON, escaped_json
from traceview.report.comparison import tables
from traceview.report.json import ByName, Document, Shapes, Variants, names, ns, rounded, values_of

FIGURES = ("before", "after", "difference", "low", "high", "mean_before", "mean_after")
CHANGE = Variants("unit", {"ns": {**ns(*FIGURES), "verdict": "verdict"}, "count": names(*FIGURES, "verdict")})

SHAPES: Shapes = {
    Comparison: {
        **names("cut", "cut_why", "level"),
        "min_change_fraction": "min_change",
        **names("base", "against", "notes"),
    },
    CaptureDifference: {
        **names("capture", "verdict", "why"),
        **{name: rounded(name) for name in ("confidence", "ratio", "ratio_low", "ratio_high", "unprofiled_ratio")},
        "time": "time",
        "mean_parts": ByName("mean_parts", CHANGE),
        **names("work", "wall"),
        "parts": ByName("parts", CHANGE),
        **names("left_over_ns", "idle", "predicted"),
        "host": ByName("host", CHANGE),
        **names("kernels", "overlap", "lines", "notes"),
    },
    OverlapChange: {
        "work": "work",
        **{f"{name}_fraction": rounded(name) for name in ("hidden_before", "hidden_after")},
        **names("busy", "exposed"),
        "causes": ByName("causes", CHANGE),
        **names("price_before_ns", "price_after_ns"),
    },
    FigureChange: CHANGE,
    PredictedTime: {
        **names("change", "title", "before_ns", "iteration_ns", "low_ns", "high_ns", "result_ns"),
        "error_fraction": rounded("error"),
        "inside": "is_inside",
        "without_profiler": "without_profiler",
    },
    KernelChange: names("name", "label", "grid", "block", "status", "cost_ns", "count", "time", "per_call"),
    LineChange: names("file", "function", "line", "line_before", "idle"),
}
JSON = Document[Comparison](SHAPES)
document, to_json = JSON.values, JSON.text


MAX_ROWS = 400  # lines and kernels in a table
PART_LOOKS = {"compute": "compute", "other": "d2d", "no_gpu": "idle_unknown", "twice": "memset"}


def content(comparison: Comparison) -> dict[str, object]:
    """Return the values of the page's script, without the timelines."""
    captures = [comparison.base, *(against.capture for against in comparison.against)]
    return {
        "base": plain(comparison.base.file, 200),
        "how": " · ".join(
            f"{plain(capture.file, 60)}: {tables.compared(capture, comparison.cut)}" for capture in captures
        ),
        "bars": [_bar(comparison.base.file, comparison.against[0], after=False)]
        + [_bar(against.capture.file, against, after=True) for against in comparison.against],
        "against": [_against(comparison, against) for against in comparison.against],
        "notes": [plain(note, 2000) for note in tables.notes(comparison)],
    }


def _bar(file: str, against: CaptureDifference, *, after: bool) -> dict[str, object]:
    """Return the mean time of a capture and its parts."""
    parts = [(part.name, int(part.mean_after if after else part.mean_before)) for part in against.mean_parts]
    return {
        "file": plain(file, 200),
        "ns": against.time.after if after else against.time.before,
        "parts": [
            {"look": _part_look(name), "word": tables.part_words(name), "ns": ns} for name, ns in parts if ns > 0
        ],
    }


def _part_look(name: str) -> str:
    return PART_LOOKS.get(name) or name.removeprefix("exposed_").replace("idle.", "idle_")


def _against(comparison: Comparison, against: CaptureDifference) -> dict[str, object]:
    causes = (
        tables.unprofiled_words(comparison.base, against),
        tables.accounts(against),
        *tables.overlap_words(against),
        tables.predicted_words(against),
    )
    return {
        "file": plain(against.capture.file, 200),
        "verdict": against.verdict,
        "text": tables.sentence(tables.headline(against, comparison.cut).partition(": ")[2]),
        "accounts": " ".join(map(tables.sentence, filter(None, causes))),
        "tables": [_table(table) for table in tables.every_table(against, MAX_ROWS)],
    }


def _table(table: tables.ComparisonTable) -> dict[str, object]:
    return {
        "title": table.title,
        "columns": [{"title": title, "unit": unit} for title, unit in table.columns],
        "rows": [[cell.ns if isinstance(cell, tables.Time) else cell for cell in row] for row in table.rows],
        "events": table.events,
    }


def render(comparison: Comparison) -> str:
    """Return one HTML document; the same comparison gives the same bytes."""
    timelines = comparison.timelines() if comparison.timelines else ()
    names = [comparison.base.file, *(against.capture.file for against in comparison.against)]
    parts = {
        "content": [escaped_json(content(comparison))],
        "timelines": [
            escaped_json(
                [_timeline(name, timeline) for name, timeline in zip(names, timelines, strict=False) if timeline]
            )
        ],
    }
    return "".join(COMPARISON.document(" → ".join(names), parts))


def _timeline(name: str, timeline: IterationTimeline) -> dict[str, object]:
    looks = sorted({event[3] for event in timeline.events})
    place = {look: index for index, look in enumerate(looks)}
    return {
        "file": name,
        **values_of(timeline, "lanes", "names"),
        "looks": looks,
        "events": [[lane, start, length, place[look], text] for lane, start, length, look, text in timeline.events],
        **values_of(timeline, "iterations", "first", "middle"),
        "leftOut": timeline.left_out,
    }
