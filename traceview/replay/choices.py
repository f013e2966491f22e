"""Two changes that save the same time: their words, and which one to try first."""

from __future__ import annotations

from collections.abc import Iterator

from traceview.model.trace import Note
from traceview.model.units import time_range
from traceview.model.whatif import Prediction

# Changes that save the same time, in the words of an answer.
ALTERNATIVES = ({"tf32": "TF32", "bf16": "bfloat16"}, {"compile": "compiling", "graph": "a CUDA graph"})


def choice_words(first: Prediction, other: Prediction) -> tuple[str, str]:
    """Return two alternatives in words, and which to try first: "TF32 or bfloat16", "TF32 first: one line"."""
    words = {name: text for names in ALTERNATIVES for name, text in names.items()}
    why = first.effort if first.effort != other.effort else "its range is narrower"
    return f"{words[first.change]} or {words[other.change]}", f"{words[first.change]} first: {why}"


def choice_times(first: Prediction, other: Prediction) -> tuple[int, int]:
    """Return the shortest and the longest time of an iteration with either of two alternatives, in ns."""
    return min(first.low_ns, other.low_ns), max(first.high_ns, other.high_ns)


def choice_note(alike: tuple[Prediction, ...], *, is_run: bool) -> Iterator[Note]:
    """Yield which of two alternatives to try first, if one of them is the best change."""
    if alike:
        both, choice = choice_words(*alike)
        unit = "the run" if is_run else "an iteration"
        text = f"{both} would take {unit} to {time_range(*choice_times(*alike))}; try {choice}"
        yield Note("alternatives", f"{text[:1].upper()}{text[1:]}", tuple(each.change for each in alike))
