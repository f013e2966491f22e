"""A what-if analysis as JSON and on a terminal (docs/whatif.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from traceview.model.analysis import Analysis, NotMeasured, kinds_words
from traceview.model.names import title_name
from traceview.model.units import duration, durations, plain, quantity, share, time_range
from traceview.model.whatif import Prediction, WhatIf
from traceview.report.analysis.answer import base_line, gain_words, unprofiled_words
from traceview.report.analysis.terminal import first_sentence, is_doubt
from traceview.report.json import UNPROFILED, Document, Shapes, names, rounded
from traceview.report.screen import (
    PLAIN,
    WORDS,
    Screen,
    bulleted,
    confidence_word,
    fitting_notes,
    left,
    part_lines,
    short_names,
    width,
    wrap,
)

ALONE, COMBINED = "Each change alone", "Combined, each with all changes above it"
FIGURES_WIDTH = 37  # columns of the table of changes beside their names
NOTHING = ("+0%", "-0%")
MAX_CHANGES, MAX_PATH = 7, 3  # changes of each list, and parts of the critical path, without --verbose


SHAPES: Shapes = {
    WhatIf: {
        "file": "info.file",
        **names("range", "iterations", "counted", "modelled", "measured_ns"),
        **UNPROFILED,
        "replayed_ns": "replayed_ns",
        "replay_error": rounded("error"),
        "path_ns": "path",
        **names("spans", "predictions", "together", "left_out", "notes"),
    },
    Prediction: {
        **names("change", "title", "iteration_ns", "low_ns", "high_ns", "effort", "rests_on", "note"),
        "path_ns": "path",
    },
}
JSON = Document[WhatIf](SHAPES)
document, to_json = JSON.values, JSON.text
PATH_WORDS = WORDS["path"]


def render(result: WhatIf, screen: Screen = PLAIN) -> str:
    """Return the tables as text."""
    return screen.text(_parts(result, screen.columns))


def render_brief(result: WhatIf, screen: Screen = PLAIN) -> str:
    """Return what limits an iteration and what each change gives, as text, in 30 lines."""
    path = sorted(result.path.items(), key=lambda pair: -pair[1])[:MAX_PATH]
    limits = ", ".join(f"{PATH_WORDS[kind]} {share(ns, result.replayed_ns)}" for kind, ns in path if ns)
    first = wrap(f"{plain(result.info.file, 60)} · {_time(result)}", columns=screen.columns)
    basis = (
        f"Percentages are of {duration(result.base_ns)}{_source_of_base(result)}",
        f"Critical path, as measured: {limits}",
    )
    parts = (
        [*first, *(line for text in basis for line in wrap(text, "  ", "    ", screen.columns))],
        _changes(ALONE, result, result.predictions, screen.columns, MAX_CHANGES, with_notes=False),
        _together(result, screen.columns, MAX_CHANGES, with_notes=False),
    )
    omitted = [f"{quantity(len(result.left_out), 'change')} that cannot be predicted"] if result.left_out else []
    more = ["what each prediction rests on", *omitted, quantity(len(result.notes), "note")]
    doubts = filter(is_doubt, (*result.info.left_out, *result.info.health, *result.notes))
    notes = fitting_notes([first_sentence(note) for note in doubts], (), 0, screen.columns)
    return screen.brief(parts, ", ".join(more), notes=notes)


def render_bounds(analysis: Analysis, missing: NotMeasured, screen: Screen = PLAIN) -> str:
    """Return why a capture has no model, and what the findings bound, as text."""
    columns = screen.columns
    first = wrap(f"{plain(analysis.info.file, 60)} · no model predicts changes: {missing.reason}", columns=columns)
    rows = bulleted((f"{plain(row.title, 600)}: {gain_words(row.gain)}" for row in analysis.findings), columns)
    title = wrap(f"What the findings of analyze bound. {base_line(analysis)}", "", "  ", columns)
    nothing = next((note.text for note in analysis.notes if note.id == "no_gpu_work"), "No finding bounds a gain.")
    return screen.text((first, [*title, *rows] if rows else wrap(plain(nothing, 600), columns=columns)))


def _source_of_base(result: WhatIf) -> str:
    return ", as measured" if result.unprofiled is None else ", without the profiler"


def _parts(result: WhatIf, columns: int) -> Iterator[list[str]]:
    yield wrap(
        f"{plain(result.info.file, 60)} · {_time(result)} (mean of "
        f"{quantity(result.counted, 'iteration')}, {_source(result)}); the model of {result.modelled} of them "
        f"predicts {duration(result.replayed_ns)} ({result.error:+.2%}){unprofiled_words(result.unprofiled)}; "
        f"percentages are of {duration(result.base_ns)}{_source_of_base(result)}",
        columns=columns,
    )
    yield ["Critical path of an iteration, as measured", *_path(result.path, result.replayed_ns)]
    yield _changes(ALONE, result, result.predictions, columns)
    yield _together(result, columns)
    if result.together:
        last = result.together[-1]
        then = "all of these changes" if len(result.together) > 1 else plain(last.title, 100)
        title = wrap(f"Critical path of an iteration with {then}", columns=columns)
        yield [*title, *_path(last.path, last.iteration_ns)]
    if result.left_out:
        omitted = (f"{change.title}: {plain(change.reason, 300)}" for change in result.left_out)
        yield ["Not applicable", *(line for text in omitted for line in wrap(text, "  ", "    ", columns))]
    if result.notes:
        yield ["Notes", *bulleted((plain(note.text, 400) for note in result.notes), columns)]


def _time(result: WhatIf) -> str:
    """Return the time of an iteration, with that of each kind where there are kinds, or of the run."""
    kinds = kinds_words(result.iterations.kinds)
    each = "for the whole run" if result.iterations.source == "run" else "per iteration"
    return f"{duration(result.measured_ns)} {each}{f', from {kinds}' if kinds else ''}"


def _source(result: WhatIf) -> str:
    name = title_name(result.range)
    if result.iterations.source != "period" or result.iterations.confidence is None:
        return f"range {name}"
    return f"{name}, confidence {confidence_word(result.iterations.confidence)}"


def _path(path: Mapping[str, int], total: int) -> list[str]:
    parts = sorted(((PATH_WORDS[kind], ns) for kind, ns in path.items() if ns), key=lambda pair: -pair[1])
    return part_lines(parts, total, 28)


def _together(result: WhatIf, columns: int, most: int | None = None, *, with_notes: bool = True) -> list[str]:
    several = len(result.together) > 1
    return _changes(COMBINED, result, result.together, columns, most, with_notes=with_notes) if several else []


def _changes(
    title: str,
    result: WhatIf,
    predictions: Sequence[Prediction],
    columns: int,
    most: int | None = None,
    *,
    with_notes: bool = True,
) -> list[str]:
    """Return a table of changes; those whose gain rounds to nothing are named below it."""
    gains = [row for row in predictions if change_words(result, row) not in NOTHING]
    nothing = ", ".join(plain(row.title, 100) for row in predictions if row not in gains)
    rests = wrap(f"No gain: {nothing}", "  ", "    ", columns) if nothing else []
    rows = gains[:most]
    if not rows:
        return [f"{title}: none that applies gains anything" if predictions else f"{title}: none applies", *rests]
    name = columns - FIGURES_WIDTH
    lines = [f"{title:<{name + 3}}{'predicted':>10}{'':>3}{'range':>20}"]
    names = short_names([_name(row, name) for row in rows], name)
    for prediction, shown, time in zip(rows, names, durations([row.iteration_ns for row in rows]), strict=True):
        gain = change_words(result, prediction)
        between = time_range(prediction.low_ns, prediction.high_ns)
        lines.append(f"  {left(shown, name)}{time:>11}{gain:>6}{between:>18}")
        if not with_notes:
            continue
        note = f"{prediction.note}; " if prediction.note else ""
        assumes = f"{prediction.effort}; {note}assumes: {plain(prediction.rests_on, 300)}"
        lines += wrap(assumes, "      ", "      ", columns)
    if hidden := len(gains) - len(rows):
        lines.append(f"  and {hidden} with less gain: -v")
    return [*lines, *rests]


def _name(prediction: Prediction, columns: int) -> str:
    """Return the title of a change, without what is in parentheses where that is too long."""
    title = plain(prediction.title, 200)
    return title if width(title) <= columns else title.partition(" (")[0]


def change_words(result: WhatIf, prediction: Prediction) -> str:
    """Return how much shorter or longer an iteration becomes: `-60%`."""
    return f"{prediction.iteration_ns / result.base_ns - 1:+.0%}"
