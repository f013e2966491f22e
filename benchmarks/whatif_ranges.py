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
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import traceview
from traceview.model.catalogue import read_toml
from traceview.model.units import share
from traceview.model.whatif import Prediction
from traceview.replay.constants import CAPTURE_NOISE
from traceview.replay.outcome import replay_changes
from traceview.replay.prediction import changes_of_run
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


class Came(NamedTuple):
    """A measured change and its prediction, in shares of the time before; `pair` is its line of measured.toml."""

    pair: MeasuredPair
    middle: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """The measured time."""
        return self.pair.measured / self.pair.before

    def __str__(self) -> str:
        """Return a line of text."""
        inside = "" if self.low <= self.ratio <= self.high else "  OUTSIDE"
        predicted = f"{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"
        return f"{self.pair.program:20} {self.pair.change:16} {predicted}, came {self.ratio:.2f}{inside}"


def compared(folder: Path) -> Iterator[Came | str]:
    """Yield each measured change of a folder beside its prediction, or why there is none."""
    for name, measured in json.loads((folder / "measured.json").read_text(encoding="utf-8")).items():
        file = next(each for each in sorted(folder.iterdir()) if each.name.startswith(f"{name}."))
        analysis, before = traceview.analyze(str(file)), statistics.median(measured.pop("base"))
        changes = changes_of_run(analysis)
        changes = None if changes is None else changes.with_findings(analysis.findings)
        for change, times in measured.items():
            came, names = statistics.median(times), change.split("+")
            result = "no model" if changes is None else changes.together(names)
            if changes is None or not isinstance(result, Prediction):
                yield f"{name:20} {change:16} not offered, came {came / before:.2f}: {result}"
                continue
            replay = replay_changes(changes.model, [each for key, each in changes.known.items() if key in names])
            assert not isinstance(replay, str)
            scale = changes.model.measured
            times_of_pair = (before, round(before * replay.time / scale, 2), came)
            pair = MeasuredPair(change, changes.model.limit, name, *(round(time, 2) for time in times_of_pair))
            yield Came(pair, *(ns / scale for ns in (result.iteration_ns, result.low_ns, result.high_ns)))


def print_pairs(folder: Path) -> None:
    """Print the changes of a folder, their score, and their lines of measured.toml."""
    rows = list(compared(folder))
    predicted = [row for row in rows if isinstance(row, Came)]
    print(*rows, sep="\n")
    inside = sum(row.low <= row.ratio <= row.high for row in predicted)
    width = statistics.median((row.high - row.low) / row.middle for row in predicted)
    programs = {row.pair.program for row in predicted}
    best = sum(_first_is_best([row for row in predicted if row.pair.program == name]) for name in programs)
    certain = [row for row in predicted if row.high < 1]
    lost = sum(row.ratio > 1 + CAPTURE_NOISE for row in certain)
    print(f"{inside} of {len(predicted)} inside, median width {width:.0%}; first is best in {best} of {len(programs)}")
    print(f"{lost} of {len(certain)} that were to gain in any case lost")
    for row in predicted:
        print(f"  {json.dumps(list(row.pair))},")


def _first_is_best(rows: Sequence[Came]) -> bool:
    """Return whether the change of the least expected time came within 3% of the best one, or of no change."""
    first = min(rows, key=lambda row: row.middle)
    came = first.ratio if first.middle < 1 else 1.0
    return came <= 1.03 * min(1.0, *(row.ratio for row in rows))


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands of the module's text."""
    if arguments[:1] == ["add"] and len(arguments) == 7:
        add_pair(*arguments[1:])
    elif arguments[:1] == ["pairs"] and len(arguments) == 2:
        print_pairs(Path(arguments[1]))
    elif arguments:
        sys.exit(__doc__)
    else:
        print(score_table(), outside_table(), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
