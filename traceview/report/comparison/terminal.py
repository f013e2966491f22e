"""A comparison as text: on a terminal, and as Markdown for a pull request.

Both have the verdict, the parts, the host and the kernels. Names take what a wide terminal has more; the details of the
Markdown are folded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceview.model.comparison import CaptureDifference, ComparedCapture, Comparison, FigureChange, KernelChange
from traceview.model.units import duration, plain, quantity, signed_duration
from traceview.report.comparison import tables
from traceview.report.screen import (
    PLAIN,
    Screen,
    left,
    markdown_code,
    markdown_row,
    markdown_text,
    room,
    short_names,
    wrap,
)


def to_markdown(comparison: Comparison, *, top: int = 10) -> str:
    """Return the comparison as GitHub's Markdown; `top` bounds the kernels.

    Names from a trace are in code spans, so that they are not read as markup; in sentences, markup is escaped.
    """
    parts = [line for against in comparison.against for line in _against(comparison, against, top)]
    note_lines = [f"- {markdown_text(note)}" for note in tables.notes(comparison)]
    return "\n".join([*parts, *note_lines]) + "\n"


def _against(comparison: Comparison, against: CaptureDifference, top: int) -> Iterator[str]:
    yield f"### {markdown_code(comparison.base.file)} → {markdown_code(against.capture.file)}: {against.verdict}"
    yield ""
    yield markdown_text(tables.sentence(tables.headline(against)))
    if unprofiled := tables.unprofiled_words(comparison.base, against):
        yield markdown_text(tables.sentence(unprofiled))
    accounts = (tables.accounts(against), *tables.overlap_words(against), tables.predicted_words(against))
    for text in filter(None, accounts):
        yield markdown_text(tables.sentence(text))
    yield ""
    parts_table, *others = tables.every_table(against, top)
    yield from _markdown_table(parts_table, "the whole capture" if comparison.whole_because else "mean per iteration")
    yield ""
    yield f"Before: {_side(comparison.base)}. After: {_side(against.capture)}."
    yield ""
    for table in others:
        if table.rows:
            yield from (
                f"<details><summary>{markdown_text(table.title)}</summary>",
                "",
                *_markdown_table(table),
                "",
                "</details>",
                "",
            )


def _side(capture: ComparedCapture) -> str:
    return markdown_text(tables.compared(capture))


def _markdown_table(table: tables.ComparisonTable, first: str = "") -> Iterator[str]:
    name = markdown_code if table.is_code else markdown_text
    yield markdown_row([first, *table.head[1:]])
    yield markdown_row([":--", *("--:" for _ in table.head[1:])])
    yield from (markdown_row([name(row[0]), *map(markdown_text, row[1:])]) for row in table.rows)


NAME_OF_PART = 26
NAME_OF_FILE = 31
NAME_OF_KERNEL = 34
MAX_LINES = 5
MAX_OVERLAP_LINES = 2
BRIEF_PARTS, BRIEF_ROWS, BRIEF_NOTES = 5, 3, 2  # without --verbose


def render(comparison: Comparison, screen: Screen = PLAIN, *, top: int = 10) -> str:
    """Return everything that the terminal shows of a comparison, as text; `top` bounds the kernels."""
    columns = screen.columns
    several = [] if len(comparison.against) == 1 else [_verdicts(comparison, columns)]
    pairs = (part for against in comparison.against for part in _pair(comparison, against, columns, top))
    return screen.text((*several, *pairs, _notes(comparison, columns)))


def render_brief(comparison: Comparison, screen: Screen = PLAIN, *, top: int = BRIEF_ROWS) -> str:
    """Return the verdict, the largest differences and the first notes as text, in 30 lines."""
    more = f"every part, line and kernel, the host's figures, {quantity(len(list(tables.notes(comparison))), 'note')}"
    columns = screen.columns
    doubts = [note for against in comparison.against for note in against.notes]
    texts = [plain(note.text, 2000) for note in (*doubts, *comparison.notes[: max(BRIEF_NOTES - len(doubts), 0)])]
    if len(comparison.against) > 1:
        return screen.brief((_verdicts(comparison, columns), *_reasons(comparison, columns)), more, notes=texts)
    against = comparison.against[0]
    shown = (
        _parts(against, _scope(comparison), columns, BRIEF_PARTS),
        _lines(against, columns, BRIEF_ROWS),
        _kernels(against, columns, min(top, BRIEF_ROWS)),
    )
    first = [*_captures(comparison, against.capture, columns)[:1], *_verdict(comparison.base, against, columns)]
    return screen.brief((first, *shown), more, notes=texts)


def _captures(comparison: Comparison, after: ComparedCapture, columns: int) -> list[str]:
    return [
        *wrap(f"{_file(comparison.base)} → {_file(after)}", columns=columns),
        f"  before  {tables.compared(comparison.base)}",
        f"  after   {tables.compared(after)}",
    ]


def _scope(comparison: Comparison) -> str:
    return "The whole capture" if comparison.whole_because else "Mean per iteration"


def _pair(comparison: Comparison, against: CaptureDifference, columns: int, top: int) -> Iterator[list[str]]:
    yield _captures(comparison, against.capture, columns)
    yield _verdict(comparison.base, against, columns)
    yield _parts(against, _scope(comparison), columns)
    names, causes = tables.exposed_changes(against)
    name = room(names, NAME_OF_PART, columns)
    yield ["Exposed time by cause", *_times(names, causes, name)] if names else []
    yield _host(against, "The host" if comparison.whole_because else "The host, mean per iteration", columns)
    yield _lines(against, columns, top)
    yield _kernels(against, columns, top)


def _file(capture: ComparedCapture) -> str:
    return plain(capture.file, 60)


def _verdict(base: ComparedCapture, against: CaptureDifference, columns: int) -> list[str]:
    median = "" if base.range is None else tables.median_words(base, against)
    texts = (tables.predicted_words(against), tables.unprofiled_words(base, against), tables.accounts(against), median)
    return [
        *wrap(_capitalized(tables.headline(against)), "", "  ", columns),
        *(line for text in texts if text for line in wrap(_capitalized(text), "  ", "    ", columns)),
        *_overlap(against, columns),
    ]


def _overlap(against: CaptureDifference, columns: int) -> list[str]:
    """Return what changed in the causes of exposed time, in MAX_OVERLAP_LINES; what fits no more is in the tables."""
    lines: list[str] = []
    for text in tables.overlap_words(against):
        more = wrap(_capitalized(text), "  ", "    ", columns)
        lines += more if not lines or len(lines) + len(more) <= MAX_OVERLAP_LINES else []
    return lines


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _parts(against: CaptureDifference, title: str, columns: int, top: int | None = None) -> list[str]:
    judged = bool(tables.interval(against.time))
    shown = tables.shown_parts(against)[:top]
    changes = [*shown, against.time]
    names = [*(tables.part_words(part.name) for part in shown), "= time"]
    name = room(names, NAME_OF_PART, columns)
    head = f"{title:<{name + 2}}{'before':>11}{'after':>11}{'difference':>12}{'95% interval' if judged else '':>18}"
    return [head.rstrip(), *_times(names, changes, name), *(["  ~ within noise"] if judged else [])]


def _times(names: Sequence[str], changes: Sequence[FigureChange], columns: int) -> Iterator[str]:
    """Yield a line for each change, the names in `columns`; the times before and after have one unit."""
    for name, change, (before, after) in zip(names, changes, tables.time_pairs(changes), strict=True):
        mark = "~ " if change.verdict == "noise" and change.difference else ""
        difference = f"{mark}{signed_duration(change.difference)}"
        between = tables.interval(change).replace(" to ", "..")
        yield f"  {left(name, columns)}{before:>11}{after:>11}{difference:>12}{between:>18}".rstrip()


def _host(against: CaptureDifference, title: str, columns: int) -> list[str]:
    rows = [(name.replace("·", " "), *figures) for name, *figures in tables.host_rows(against)]
    name = room([words for words, *_ in rows], NAME_OF_PART, columns)
    lines = [f"  {left(row, name)}{before:>11}{after:>11}{difference:>13}" for row, before, after, difference in rows]
    return [f"{title:<{name + 2}}{'before':>11}{'after':>11}{'difference':>12}", *lines] if rows else []


def _lines(against: CaptureDifference, columns: int, top: int) -> list[str]:
    """Return the lines that changed most, as many as the terminal shows of an analysis."""
    if not against.lines:
        return []
    lines = tables.shown_lines(against)[: min(top, MAX_LINES)]
    whole = [tables.line_name(line) for line in lines]
    name = room(whole, NAME_OF_PART, columns)
    fitting = [text if len(text) <= name else text.partition(" (")[0] for text in whole]
    title = f"Lines that made the GPU wait, mean per iteration: {tables.line_counts(against)}"
    times = _times(short_names(fitting, name), [line.idle for line in lines], name)
    return [*wrap(title, "", "  ", columns), *times]


def _kernels(against: CaptureDifference, columns: int, top: int) -> list[str]:
    kernels = tables.shown_kernels(against)
    title = wrap(f"Kernels: {tables.kernel_counts(against)}", "", "  ", columns)
    if not kernels:
        return title
    first = f"first {top} of {len(kernels):,}" if len(kernels) > top else ""
    whole = [tables.kernel_name(kernel) for kernel in kernels[:top]]
    name = room(whole, NAME_OF_KERNEL, columns)
    head = f"  {first:<{name}}{'calls':>13}{'per call':>10}{'now':>11}{'cost':>10}"
    names = [left(short, name) for short in short_names(whole, name)]
    return [*title, head, *map(_kernel, names, kernels[:top])]


def _kernel(name: str, kernel: KernelChange) -> str:
    """Return one line; "~" marks a time per call within noise."""
    (old, new), (before, after) = tables.calls(kernel), tables.per_call(kernel)
    counts = old if old == new else f"{old} → {new}"
    mark = "~ " if kernel.per_call.verdict == "noise" else ""
    return f"  {name}{counts:>13}{before:>10}{mark + after:>11}{signed_duration(kernel.cost_ns):>10}"


def _notes(comparison: Comparison, columns: int) -> list[str]:
    return [line for note in tables.notes(comparison) for line in wrap(plain(note, 2000), "", "  ", columns)]


def _verdicts(comparison: Comparison, columns: int) -> list[str]:
    captures = (comparison.base, *(against.capture for against in comparison.against))
    whole = [plain(capture.file, 200) for capture in captures]
    name = room(whole, NAME_OF_FILE, columns)
    base, *files = short_names(whole, name)
    return [
        f"{'base':<10}{left(base, name)} {duration(comparison.against[0].time.before):>10}",
        *(
            f"{against.verdict:<10}{left(file, name)} {duration(against.time.after):>10}  {_percents(against)}"
            for file, against in zip(files, comparison.against, strict=True)
        ),
    ]


def _reasons(comparison: Comparison, columns: int) -> Iterator[list[str]]:
    """Yield the parts that cause the difference of each capture, and what was predicted for it."""
    for against in comparison.against:
        for text in filter(None, (tables.accounts(against), tables.predicted_words(against))):
            yield wrap(f"{_file(against.capture)}: {text}", "", "  ", columns)


def _percents(against: CaptureDifference) -> str:
    if against.ratio_low is None:
        return tables.relative(against.ratio)
    low, high = map(tables.relative, (against.ratio_low, against.ratio_high))
    return f"{tables.relative(against.ratio)} [{low}, {high}]"
