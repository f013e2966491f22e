"""A what-if analysis as JSON and on a terminal of 80 columns (docs/whatif.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from traceview.model.whatif import Prediction, WhatIf
from traceview.report.analysis.answer import unprofiled_words
from traceview.report.analysis.terminal import IN_ASCII
from traceview.report.format import confidence_word, plain
from traceview.report.json import Json, indented_text, plain_values, rounded, unprofiled_values
from traceview.report.layout import WIDTH, cut, left, wrap
from traceview.units import duration, durations, share, time_range

SCHEMA_VERSION = 1
PREDICTION = {"path": "path_ns"}


def to_json(result: WhatIf) -> str:
    """Return the document as text."""
    return indented_text(document(result))


def document(result: WhatIf) -> dict[str, Json]:
    """Return the document as plain values."""
    return {
        "schema_version": SCHEMA_VERSION,
        "file": result.info.file,
        "range": result.range,
        "iterations": plain_values(result.iterations),
        "counted": result.counted,
        "modelled": result.modelled,
        "measured_ns": result.measured_ns,
        **unprofiled_values(result.unprofiled),
        "replayed_ns": result.replayed_ns,
        "replay_error": rounded(result.error),
        "path_ns": plain_values(result.path),
        "spans": plain_values(result.spans),
        "predictions": plain_values(result.predictions, PREDICTION),
        "together": plain_values(result.together, PREDICTION),
        "left_out": plain_values(result.left_out),
        "notes": plain_values(result.notes),
    }


PATH_WORDS = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copies",
    "memset": "memsets",
    "gap": "gaps between operations",
    "launch": "launch latency",
    "host": "host between CUDA calls",
    "call": "CUDA calls",
    "wait": "host wake-up after waits",
}


def render(result: WhatIf, *, unicode: bool = True) -> str:
    """Return the tables as text, in ASCII without `unicode`."""
    lines = [cut(line, WIDTH) for part in _parts(result) if part for line in (*part, "")]
    text = "\n".join(lines).rstrip() + "\n"
    return text if unicode else text.translate(IN_ASCII).encode("ascii", "replace").decode("ascii")


def _parts(result: WhatIf) -> Iterator[list[str]]:
    yield wrap(
        f"{plain(result.info.file, 60)} · {duration(result.measured_ns)} per iteration (mean of "
        f"{result.counted} iterations, {_source(result)}); the model of {result.modelled} of them "
        f"predicts {duration(result.replayed_ns)} ({result.error:+.2%}){unprofiled_words(result.unprofiled)}"
    )
    yield ["Critical path of an iteration, as measured", *_path(result.path, result.replayed_ns)]
    yield _changes("Each change alone", result, result.predictions)
    if len(result.together) > 1:
        yield _changes("Combined, each with all changes above it", result, result.together)
    if result.together:
        last = result.together[-1]
        then = "all of these changes" if len(result.together) > 1 else plain(last.title, 100)
        yield [*wrap(f"Critical path of an iteration with {then}"), *_path(last.path, last.iteration_ns)]
    if result.left_out:
        yield [
            "Not applicable",
            *(
                line
                for omitted in result.left_out
                for line in wrap(f"{omitted.title}: {plain(omitted.reason, 300)}", "  ", "    ")
            ),
        ]
    if result.notes:
        yield ["Notes", *(line for note in result.notes for line in wrap(plain(note.text, 400), "  - ", "    "))]


def _source(result: WhatIf) -> str:
    name = plain(result.range, 100)
    if result.iterations.source != "period" or result.iterations.confidence is None:
        return f"range {name}"
    return f"{name}, confidence {confidence_word(result.iterations.confidence)}"


def _path(path: Mapping[str, int], total: int) -> list[str]:
    parts = sorted(((kind, ns) for kind, ns in path.items() if ns), key=lambda pair: -pair[1])
    times = durations([ns for _, ns in parts])
    return [
        f"  {PATH_WORDS[kind]:<28}{time:>11}{share(ns, total):>8}"
        for (kind, ns), time in zip(parts, times, strict=True)
    ]


def _changes(title: str, result: WhatIf, rows: Sequence[Prediction]) -> list[str]:
    if not rows:
        return [f"{title}: none applies"]
    lines = [f"{title:<48}{'predicted':>11}{'':>3}{'range':>18}"]
    for prediction, time in zip(rows, durations([row.iteration_ns for row in rows]), strict=True):
        gain = gain_words(result, prediction)
        between = time_range(prediction.low_ns, prediction.high_ns)
        lines.append(f"  {left(plain(prediction.title, 100), 46)}{time:>11}{gain:>6}{between:>15}")
        rests = f"{prediction.note}; " if prediction.note else ""
        lines += wrap(f"{rests}assumes: {plain(prediction.rests_on, 300)}", "      ", "      ")
    return lines


def gain_words(result: WhatIf, prediction: Prediction) -> str:
    """Return how much shorter or longer an iteration becomes: `-60%`."""
    return f"{prediction.iteration_ns / result.base_ns - 1:+.0%}"


def prediction_words(result: WhatIf, prediction: Prediction) -> str:
    """Return `Pin host memory: an iteration takes 11.0 ms instead of 27.5 ms (-60%; 9.54 to 13.8 ms)`."""
    between = time_range(prediction.low_ns, prediction.high_ns)
    return (
        f"{prediction.title}: an iteration takes {duration(prediction.iteration_ns)} instead of "
        f"{duration(result.base_ns)} ({gain_words(result, prediction)}; {between})"
    )
