#!/usr/bin/env python3
"""Score the ranges of predictions, each with its own program left out; add a measured pair.

    python benchmarks/whatif_ranges.py                      the table of docs/whatif.md
    python benchmarks/whatif_ranges.py add CHANGE LIMIT PROGRAM BEFORE PREDICTED MEASURED
                                                            add a pair to the last study of measured.toml, in ms
    python benchmarks/whatif_ranges.py pairs FOLDER         predict the captures of FOLDER (measured.json has what came)

A range is that of traceview/replay/ranges.py, around the time that was predicted, with the noise of captures. `inside`
counts the times that came inside, `width` is the median of the ranges as a share of the expected time. `limit` is what
limits the program before: host or gpu.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import traceview
from traceview.model.catalogue import read_toml
from traceview.model.units import share
from traceview.model.whatif import Prediction
from traceview.replay.constants import CAPTURE_NOISE
from traceview.replay.prediction import Changes, changes_of_run
from traceview.replay.ranges import PAIRS, MeasuredPair, loader_may_take, measured_pairs, spread

SCALE = 10**6  # ns in a ms


def held_out() -> Iterator[tuple[MeasuredPair, int, int, int]]:
    """Yield each pair, and what its program would have been told without its own pairs: middle, low and high in ns."""
    pairs, loaders = measured_pairs(), read_toml(PAIRS)["loaders"]["programs"]
    for pair in pairs:
        others = tuple(other for other in pairs if other.program != pair.program)
        around = spread(pair.names, pair.limit, others)
        before, replayed = int(pair.before * SCALE), int(pair.predicted * SCALE)
        middle, low, high = around.around(around.expected(before, replayed), replayed, CAPTURE_NOISE)
        waits = pair.program in loaders and loader_may_take(pair.names)
        yield pair, middle, low, max(high, before) if waits else high


COLUMNS = ("change", "programs", "pairs", "inside", "width", "low", "high", "part of the gain that comes")


def score_table() -> str:
    """Return a row for each change, and one for all, in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"| ---{' | ---:' * (len(COLUMNS) - 1)} |"]
    rows = list(held_out())
    for change in sorted({pair.change for pair in measured_pairs()}):
        some = [row for row in rows if row[0].change == change]
        around = [spread(change.split("+"), limit) for limit in ("gpu", "host")]
        columns = zip(*((each.low, each.high, each.came) for each in around), strict=True)
        factors = (" / ".join(dict.fromkeys(f"{value:.2f}" for value in column)) for column in columns)
        lines.append(f"| {' | '.join([change, *_scores(some), *factors])} |")
    return "\n".join([*lines, f"| {' | '.join(['all', *_scores(rows), '', '', ''])} |"])


def _scores(rows: Sequence[tuple[MeasuredPair, int, int, int]]) -> list[str]:
    inside = sum(low <= pair.measured * SCALE <= high for pair, _, low, high in rows)
    width = statistics.median((high - low) / middle for _, middle, low, high in rows)
    programs = len({pair.program for pair, *_ in rows})
    return [str(programs), str(len(rows)), f"{inside} ({share(inside, len(rows))})", f"{width:.0%}"]


def outside_table() -> str:
    """Return the pairs whose time came outside their range, in Markdown."""
    lines = [
        "| program | change | before, ms | predicted | range | came |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for pair, middle, low, high in held_out():
        if not low <= pair.measured * SCALE <= high:
            times = f"{middle / SCALE:.2f} | {low / SCALE:.2f} to {high / SCALE:.2f} | {pair.measured:.2f}"
            lines.append(f"| {pair.program} | {pair.change} | {pair.before:.2f} | {times} |")
    return "\n".join(lines)


def add_pair(change: str, limit: str, program: str, before: str, predicted: str, measured: str) -> None:
    """Add a line to the last study."""
    if limit not in ("host", "gpu"):
        sys.exit(f"{limit}: what limits the program is host or gpu")
    text = PAIRS.read_text(encoding="utf-8").rstrip()
    line = f"  {json.dumps([change, limit, program, float(before), float(predicted), float(measured)])},"
    PAIRS.write_text(f"{text.removesuffix(']').rstrip()}\n{line}\n]\n", encoding="utf-8")


def predicted_pairs(folder: Path) -> Iterator[str]:
    """Yield a line for each program and change of a folder: the ratio to the time before, predicted and measured."""
    for name, measured in json.loads((folder / "measured.json").read_text(encoding="utf-8")).items():
        changes = changes_of_run(traceview.analyze(str(folder / f"{name}.sqlite.xz")))
        if changes is None:
            yield f"{name}: no model"
            continue
        base = statistics.median(measured.pop("base"))
        for change, times in measured.items():
            came = statistics.median(times) / base
            yield f"{name:8} {change:16} {_ratios(changes, change.split('+'), came)}"


def _ratios(changes: Changes, names: Sequence[str], came: float) -> str:
    result = changes.together(names)
    if not isinstance(result, Prediction):
        return f"not offered, came {came:.2f}: {result}"
    middle, low, high = (ns / changes.model.measured for ns in (result.iteration_ns, result.low_ns, result.high_ns))
    return f"{middle:.2f} ({low:.2f} to {high:.2f}), came {came:.2f}{'' if low <= came <= high else '  OUTSIDE'}"


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands of the module's text."""
    if arguments[:1] == ["add"] and len(arguments) == 7:
        add_pair(*arguments[1:])
    elif arguments[:1] == ["pairs"] and len(arguments) == 2:
        print(*predicted_pairs(Path(arguments[1])), sep="\n")
    elif arguments:
        sys.exit(__doc__)
    else:
        print(score_table(), outside_table(), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
