"""From a Comparison to the text of the page, which needs no other file and no network."""

from __future__ import annotations

from traceview.model.comparison import Comparison, IterationTimeline
from traceview.report.assets import COMPARISON, escaped_json
from traceview.report.comparison.content import content


def render(comparison: Comparison) -> str:
    """Return one HTML document; the same comparison gives the same bytes."""
    drawn = comparison.timelines() if comparison.timelines else ()
    names = [comparison.base.file, *(one.capture.file for one in comparison.against)]
    parts = {
        "content": [escaped_json(content(comparison))],
        "timelines": [escaped_json([_timeline(name, one) for name, one in zip(names, drawn, strict=False)])],
    }
    return "".join(COMPARISON.document(" → ".join(names), parts))


def _timeline(name: str, of: IterationTimeline) -> dict[str, object]:
    looks = sorted({event[3] for event in of.events})
    place = {look: index for index, look in enumerate(looks)}
    return {
        "file": name,
        "lanes": of.lanes,
        "names": of.names,
        "looks": looks,
        "events": [[lane, start, length, place[look], text] for lane, start, length, look, text in of.events],
        "iterations": of.iterations,
        "first": of.first,
        "middle": of.middle,
        "leftOut": of.left_out,
    }
