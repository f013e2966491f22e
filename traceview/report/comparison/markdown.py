"""A comparison as Markdown for a pull request: verdict and table; details are folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceview.model.comparison import CaptureDifference, ComparedCapture, Comparison, FigureChange, KernelChange
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

SPECIAL = str.maketrans({character: f"\\{character}" for character in r"\`*_[]<>#|~@&"})


def to_markdown(comparison: Comparison, *, top: int = 10) -> str:
    """Return the comparison as GitHub's Markdown; `top` bounds the kernels.

    Names from a trace are in code spans, so that they are not read as markup.
    """
    parts = [line for against in comparison.against for line in _against(comparison, against, top)]
    note_lines = [f"- {_text(note)}" for note in notes(comparison)]
    return "\n".join([*parts, *note_lines]) + "\n"


def _against(comparison: Comparison, against: CaptureDifference, top: int) -> Iterator[str]:
    yield f"### {_code(comparison.base.file)} → {_code(against.capture.file)}: {against.verdict}"
    yield ""
    yield _sentence(headline(against, comparison.cut))
    if parts := accounts(against):
        yield _sentence(parts)
    yield ""
    yield from _table(against, "mean per iteration" if comparison.cut != "whole" else "the whole capture")
    yield f"Before: {_side(comparison.base, comparison.cut)}. After: {_side(against.capture, comparison.cut)}."
    yield ""
    yield from _folded("The host, mean per iteration", list(_host(against)))
    kernels = shown_kernels(against)
    yield from _folded(f"Kernels: {len(kernels)} changed", list(_kernels(kernels[:top])) if kernels else [])


def _sentence(text: str) -> str:
    return f"{_text(text[:1].upper() + text[1:])}."


def _side(capture: ComparedCapture, cut: str) -> str:
    return _text(compared(capture, cut))


def _table(against: CaptureDifference, title: str) -> Iterator[str]:
    yield f"| {title} | before | after | difference | 95% interval | |"
    yield "| :-- | --: | --: | --: | --: | --: |"
    yield _row("**time**", against.time)
    for part in shown_parts(against):
        yield _row(_text(part_words(part.name)), part)
    yield _row("median iteration", against.wall)
    yield ""


def _row(name: str, change: FigureChange) -> str:
    cells = (
        name,
        milliseconds(change.before),
        milliseconds(change.after),
        signed(change.difference),
        interval(change),
        _share(change),
    )
    return f"| {' | '.join(cells)} |"


def _share(change: FigureChange) -> str:
    if change.before and not change.after:
        return "now 0"
    return {"~": "noise"}.get(own_share(change), own_share(change))


def _host(against: CaptureDifference) -> Iterator[str]:
    rows = shown_host(against)
    if rows:
        yield "| | before | after |"
        yield "| :-- | --: | --: |"
    for change in rows:
        before, after = (
            f"{value:g}" if change.unit == "count" else milliseconds(int(value))
            for value in (change.mean_before, change.mean_after)
        )
        yield f"| {HOST_WORDS[change.name].replace('  ', '· ')} | {before} | {after} |"


def _kernels(kernels: Sequence[KernelChange]) -> Iterator[str]:
    yield "| kernel | | count | time before | time after |"
    yield "| :-- | :-- | --: | --: | --: |"
    for kernel in kernels:
        count = f"{kernel.count.before} → {kernel.count.after}"
        times = f"{milliseconds(kernel.time.before)} | {milliseconds(kernel.time.after)}"
        yield f"| {_code(kernel.name)} | {kernel.status} | {count} | {times} |"


def _folded(title: str, lines: list[str]) -> Iterator[str]:
    if lines:
        yield from (f"<details><summary>{title}</summary>", "", *lines, "", "</details>", "")


def _text(text: str) -> str:
    return plain(text, 2000).translate(SPECIAL)


def _code(name: str) -> str:
    """Return a name as a code span, with pipes escaped: a pipe ends a table cell even in a code span."""
    return f"`{plain(name, 80).replace('`', chr(39)).replace('|', chr(92) + '|')}`"
