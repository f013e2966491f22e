"""The page of a comparison: one HTML document that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Iterator

from traceview.model.comparison import CaptureDifference, Comparison, IterationTimeline
from traceview.report.assets import COMPARISON, escaped_json
from traceview.report.comparison.phrases import accounts, compared, headline, notes, sentence, unprofiled_words
from traceview.report.comparison.tables import TextTable, host_table, kernel_table, line_table, part_table
from traceview.report.format import plain

MAX_KERNEL_ROWS = 400


def content(comparison: Comparison) -> dict[str, object]:
    """Return the values of the page's script, without the timelines."""
    return {
        "base": plain(comparison.base.file, 200),
        "how": f"{comparison.base.file}: {compared(comparison.base, comparison.cut)}",
        "against": [_against(comparison, against) for against in comparison.against],
        "notes": [plain(note, 2000) for note in notes(comparison)],
    }


def _against(comparison: Comparison, against: CaptureDifference) -> dict[str, object]:
    return {
        "file": plain(against.capture.file, 200),
        "verdict": against.verdict,
        "text": sentence(headline(against, comparison.cut).partition(": ")[2]),
        "accounts": " ".join(
            map(sentence, filter(None, (unprofiled_words(comparison.base, against), accounts(against))))
        ),
        "how": compared(against.capture, comparison.cut),
        "tables": [{"title": table.title, "head": table.head, "rows": table.rows} for table in _tables(against)],
    }


def _tables(against: CaptureDifference) -> Iterator[TextTable]:
    yield from (part_table(against), host_table(against))
    if against.lines:
        yield line_table(against, MAX_KERNEL_ROWS)
    yield kernel_table(against, MAX_KERNEL_ROWS)


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
