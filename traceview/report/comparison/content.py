"""The words and tables of the page, as plain values that its script puts into elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from traceview.model.comparison import CaptureDifference, Comparison, FigureChange
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
LONGEST = 400  # rows of a table


def content(comparison: Comparison) -> dict[str, object]:
    """Return what stands on the page beside the timelines."""
    return {
        "base": plain(comparison.base.file, 200),
        "how": f"{comparison.base.file}: {compared(comparison.base, comparison.cut)}",
        "against": [_against(comparison, one) for one in comparison.against],
        "notes": [plain(note, 2000) for note in notes(comparison)],
    }


def _against(comparison: Comparison, one: CaptureDifference) -> dict[str, object]:
    return {
        "file": plain(one.capture.file, 200),
        "verdict": one.verdict,
        "text": _sentence(headline(one, comparison.cut).partition(": ")[2]),
        "accounts": _sentence(accounts(one)),
        "how": compared(one.capture, comparison.cut),
        "tables": list(_tables(one)),
    }


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _tables(one: CaptureDifference) -> Iterator[Table]:
    rest = [["left over: not in medians", "", "", signed(one.left_over_ns), "", ""]] if one.left_over_ns else []
    yield {
        "title": "Difference by part (medians)",
        "head": ["", "before", "after", "difference", "95% interval", ""],
        "rows": [*(_row(part_words(part.name), part) for part in shown_parts(one)), *rest, _row("wall", one.wall)],
    }
    yield {
        "title": "Host (means)",
        "head": ["", "before", "after"],
        "rows": [[HOST_WORDS[change.name].replace("  ", "· "), *_means(change)] for change in shown_host(one)],
    }
    kernels = shown_kernels(one)
    yield {
        "title": f"Kernels added, removed or changed: {len(kernels)} of {len(one.kernels)}",
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
            for kernel in kernels[:LONGEST]
        ],
    }


def _row(name: str, change: FigureChange) -> list[str]:
    share = "noise" if change.verdict == "noise" else own_share(change)
    figures = (milliseconds(change.before), milliseconds(change.after), signed(change.difference))
    return [name, *figures, interval(change), share]


def _means(change: FigureChange) -> list[str]:
    values = (change.mean_before, change.mean_after)
    return [f"{value:,.2f}" if change.unit == "count" else milliseconds(int(value)) for value in values]
