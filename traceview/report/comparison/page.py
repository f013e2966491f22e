"""The page of a comparison: one HTML document that needs no other file and no network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from traceview.model.comparison import CaptureDifference, Comparison, FigureChange, IterationTimeline
from traceview.report.assets import COMPARISON, escaped_json
from traceview.report.comparison.phrases import (
    HOST_WORDS,
    accounts,
    compared,
    headline,
    interval,
    notes,
    own_share,
    part_words,
    shown_host,
    shown_kernels,
    shown_parts,
    signed,
)
from traceview.report.format import milliseconds, plain

Table: TypeAlias = "dict[str, object]"
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
        "text": _sentence(headline(against, comparison.cut).partition(": ")[2]),
        "accounts": _sentence(accounts(against)),
        "how": compared(against.capture, comparison.cut),
        "tables": list(_tables(against)),
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _tables(against: CaptureDifference) -> Iterator[Table]:
    yield {
        "title": "Difference by part (means)",
        "head": ["", "before", "after", "difference", "95% interval", ""],
        "rows": [
            *(_row(part_words(part.name), part) for part in shown_parts(against)),
            _row("time", against.time),
            _row("median iteration", against.wall),
        ],
    }
    yield {
        "title": "Host (means)",
        "head": ["", "before", "after"],
        "rows": [[HOST_WORDS[change.name].replace("  ", "· "), *_means(change)] for change in shown_host(against)],
    }
    kernels = shown_kernels(against)
    yield {
        "title": f"Kernels added, removed or changed: {len(kernels)} of {len(against.kernels)}",
        "head": ["", "", "count before", "count after", "time before", "time after"],
        "rows": [
            [
                plain(kernel.name, 300),
                kernel.status,
                f"{kernel.count.before:,}",
                f"{kernel.count.after:,}",
                milliseconds(kernel.time.before),
                milliseconds(kernel.time.after),
            ]
            for kernel in kernels[:MAX_KERNEL_ROWS]
        ],
    }


def _row(name: str, change: FigureChange) -> list[str]:
    share = "noise" if change.verdict == "noise" else own_share(change)
    figures = (milliseconds(change.before), milliseconds(change.after), signed(change.difference))
    return [name, *figures, interval(change), share]


def _means(change: FigureChange) -> list[str]:
    values = (change.mean_before, change.mean_after)
    return [f"{value:,.2f}" if change.unit == "count" else milliseconds(int(value)) for value in values]


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
