"""A what-if on a terminal of 80 columns: the run as it is, each change, several together, the bound that remains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from traceview.model.whatif import Prediction, WhatIf
from traceview.report.analysis.terminal import IN_ASCII
from traceview.report.format import milliseconds, percent, plain
from traceview.report.layout import WIDTH, cut, left, wrap

PATH_WORDS = {
    "compute": "compute",
    "communication": "communication",
    "copy": "copies",
    "memset": "memsets",
    "gap": "gaps between operations",
    "launch": "launches reaching the GPU",
    "host": "host between CUDA calls",
    "call": "CUDA calls",
    "wait": "returning from waits",
}


def render(found: WhatIf, *, unicode: bool = True) -> str:
    """Return the tables as text. Without `unicode` it is ASCII."""
    lines = [cut(line, WIDTH) for part in _parts(found) if part for line in (*part, "")]
    text = "\n".join(lines).rstrip() + "\n"
    return text if unicode else text.translate(IN_ASCII).encode("ascii", "replace").decode("ascii")


def _parts(found: WhatIf) -> Iterator[list[str]]:
    yield wrap(
        f"{plain(found.info.file, 60)} · {milliseconds(found.measured_ns)} an iteration on the GPU, mean of "
        f"{found.counted} of {plain(found.range, 100)}; the model of {found.modelled} of them gives "
        f"{milliseconds(found.replayed_ns)} ({found.error:+.2%})"
    )
    yield ["What an iteration waits for now", *_path(found.path, found.replayed_ns)]
    yield _changes("Each change alone", found, found.predictions)
    if len(found.together) > 1:
        yield _changes("One after the other, each on top of those above", found, found.together)
    if found.together:
        last = found.together[-1]
        then = "all of these made" if len(found.together) > 1 else plain(last.title, 100)
        yield [*wrap(f"What an iteration waits for then ({then})"), *_path(last.path, last.iteration_ns)]
    if found.left_out:
        yield [
            "Not here",
            *(line for one in found.left_out for line in wrap(f"{one.title}: {plain(one.reason, 300)}", "  ", "    ")),
        ]
    yield [line for note in found.notes for line in wrap(plain(note, 400), "", "  ")]


def _path(path: Mapping[str, int], whole: int) -> list[str]:
    parts = sorted(path.items(), key=lambda pair: -pair[1])
    return [f"  {PATH_WORDS[kind]:<28}{milliseconds(ns):>11}{percent(ns, whole):>8}" for kind, ns in parts if ns]


def _changes(title: str, found: WhatIf, rows: Sequence[Prediction]) -> list[str]:
    if not rows:
        return [f"{title}: none applies"]
    lines = [f"{title:<48}{'predicted':>11}{'':>3}{'range':>18}"]
    for one in rows:
        gain = f"{one.iteration_ns / found.measured_ns - 1:+.0%}"
        between = f"{_bare(one.low_ns)} to {_bare(one.high_ns)}"
        lines.append(f"  {left(plain(one.title, 100), 46)}{milliseconds(one.iteration_ns):>11}{gain:>6}{between:>15}")
        rests = f"{one.note}; " if one.note else ""
        lines += wrap(f"{rests}rests on: {plain(one.rests_on, 300)}", "      ", "      ")
    return lines


def _bare(ns: int) -> str:
    return milliseconds(ns).removesuffix(" ms")
