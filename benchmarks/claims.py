#!/usr/bin/env python3
"""Hold what people claim against what was measured, and against what `traceview whatif` predicts beforehand.

    python benchmarks/claims.py --folder CAPTURES               every row of docs/claims.md
    python benchmarks/claims.py prompt --folder CAPTURES        the row of one claim
    python benchmarks/claims.py prompt --again                  the commands that measure and capture it again, on a GPU

Measured: ms a step without a profiler, median of three rounds, least and most in parentheses, from benchmarks/results/.
From the captures: the share of the time in which the GPU runs a kernel, and the prediction that the capture before
allows, with its range; nothing of the capture after is known to it. A capture that is not in the folder is a dash.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from traceview import Analysis, analyze
from traceview.errors import TraceviewError
from traceview.intervals import length, union
from traceview.whatif import data_parallel, measured, predict

RESULTS = Path(__file__).resolve().parent / "results"
SETTLED = 19  # the step from which a training run of h200_ddp.json counts
GRADIENTS = 253_000_000  # bytes of the small workload
HEAD = """| claim | setting | measured, ms a step | times as fast | GPU busy | predicted, times as fast | captured |
| --- | --- | --- | --- | --- | --- | --- |"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One comparison: `workload`, and setting before and after, of strategies.py; their captures; the change."""

    workload: str
    before: str
    after: str
    captures: tuple[str, str] = ("", "")
    change: str = ""
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """`low` to `high` times as fast is what is claimed; both 0 where nobody gives a figure."""

    text: str
    low: float
    high: float
    settings: tuple[Setting, ...]


TWO, FOUR, EVERY = "prefetch", "staged", "prefetch, sync every"
CLAIMS = {
    "two-streams": Claim(
        "Two streams against one: 10 to 30% faster",
        1.10,
        1.30,
        (
            Setting("small", "pinned", TWO, ("pinned", "prefetch_b"), "prefetch"),
            *(Setting(name, "pinned", TWO) for name in ("copy10", "copy30", "copy60")),
        ),
    ),
    "four-streams": Claim(
        "Four streams against two: 3 to 5% faster, GPU use from 75 to 85 up to 85 to 95%",
        1.03,
        1.05,
        (
            Setting("small", TWO, FOUR, ("prefetch_b", "staged"), "staged"),
            Setting("small", "prefetch, accumulation 4", "staged, accumulation 4", ("prefetch4", "staged4"), "staged"),
        ),
    ),
    "sync": Claim(
        "A wait every ten steps, or events, against a synchronization each step: 3 to 5% faster",
        1.03,
        1.05,
        (
            Setting("small", EVERY, TWO, ("prefetch_every", "prefetch_b"), "sync"),
            Setting("small", EVERY, "prefetch, sync event", ("prefetch_every", "prefetch_event"), "sync"),
        ),
    ),
    "prompt": Claim(
        "A vectorised prompt against the Python loop: 2.2 times as fast",
        2.2,
        2.2,
        (Setting("prompt", "prompt loop", "prompt vectorised", ("prompt_loop", "prompt_vectorised"), "fuse"),),
    ),
    "ddp": Claim(
        "Several GPUs against one, DDP, a batch each",
        0,
        0,
        (
            Setting("small", "1 GPU", "2 GPUs", ("one", "one_to_two"), "ranks", 2),
            Setting("small", "1 GPU", "4 GPUs", ("one", "one_to_four"), "ranks", 4),
        ),
    ),
}


def main() -> None:
    """Print the rows that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claim", nargs="*", metavar="CLAIM", help=", ".join(CLAIMS))
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--again", action="store_true")
    given = parser.parse_args()
    if unknown := set(given.claim) - set(CLAIMS):
        parser.error(f"no claim is called {', '.join(sorted(unknown))}; there are {', '.join(CLAIMS)}")
    chosen = {name: CLAIMS[name] for name in given.claim or CLAIMS}
    if given.again:
        print("\n".join(dict.fromkeys(line for claim in chosen.values() for line in again(claim))))
        return
    print(HEAD)
    for name, claim in chosen.items():
        for setting in claim.settings:
            print(row(name, claim, setting, given.folder))
    if "sync" in chosen:
        print("\n" + waits(given.folder))


def row(name: str, claim: Claim, setting: Setting, folder: Path) -> str:
    """Return the row of one setting."""
    before, after = rounds_of(setting)
    times = setting.gpus * statistics.median(before) / statistics.median(after)
    captures = [folder / f"{one}.sqlite" for one in setting.captures]
    busy = " to ".join(gpu_busy(path) for path in captures) if all(path.is_file() for path in captures) else "-"
    cells = [
        f"`{name}`: {claim.text}" if setting is claim.settings[0] else "",
        f"`{setting.workload}`, {setting.before} → {setting.after}",
        f"{spread(before)} → {spread(after)}",
        f"**{times:.2f}**, {verdict(claim, times)}",
        busy,
        predicted(setting, captures[0]),
        captured(setting, captures),
    ]
    return f"| {' | '.join(cells)} |"


def verdict(claim: Claim, times: float) -> str:
    """Return whether the claim holds."""
    if not claim.high:
        return "no figure is claimed"
    if times < claim.low - 0.005:
        return "no"
    return "more than claimed" if times > claim.high + 0.005 else "as claimed"


@cache
def recorded() -> list[dict[tuple[str, str], list[float]]]:
    """Return the ms a step of each round, by workload and setting, of each file: its settings were alternated."""
    files = []
    for name in ("h200_strategies.json", "h200_claims.json"):
        found: dict[tuple[str, str], list[float]] = {}
        for one in json.loads((RESULTS / name).read_text()):
            found.setdefault((one["workload"], one["setting"]), []).append(one["step_ms"])
        files.append(found)
    ddp = [one for one in json.loads((RESULTS / "h200_ddp.json").read_text()) if one["step"] >= SETTLED]
    found = {}
    for gpus, number in sorted({(one["gpus"], one["round"]) for one in ddp}):
        mine = [one["step_ms"] for one in ddp if (one["gpus"], one["round"]) == (gpus, number)]
        found.setdefault(("small", f"{gpus} GPU{'s' if gpus > 1 else ''}"), []).append(statistics.median(mine))
    return [*files, found]


def rounds_of(setting: Setting) -> tuple[list[float], list[float]]:
    """Return the ms a step of each round before and after, from the one file that holds both."""
    keys = [(setting.workload, name) for name in (setting.before, setting.after)]
    file = next(one for one in recorded() if all(key in one for key in keys))
    return file[keys[0]], file[keys[1]]


def spread(rounds: list[float]) -> str:
    """Return the median, and the least and most of several rounds."""
    middle = f"{statistics.median(rounds):.2f}"
    return f"{middle} ({min(rounds):.2f} to {max(rounds):.2f})" if len(rounds) > 1 else f"{middle} (one run)"


@cache
def opened(path: Path) -> Analysis | None:
    """Analyse a capture once; None where it is not there."""
    return analyze(path) if path.is_file() else None


def gpu_busy(path: Path) -> str:
    """Return the share of the steady time in which a GPU of the iterations' process runs a kernel."""
    analysis = opened(path)
    assert analysis is not None, "the caller has looked"
    operations = analysis.trace.operations
    process = getattr(analysis.iterations, "process_id", None)
    kernels = operations.filter((operations["process"] == process) & (operations["class"].cast(str) != "copy"))
    start, end = kernels["start"].to_numpy(), kernels["end"].to_numpy()
    return f"{length(union(start, end)) / (end.max() - start.min()):.0%}"


def predicted(setting: Setting, before: Path) -> str:
    """Return what the capture before allows to predict."""
    analysis = opened(before)
    if analysis is None or not setting.change:
        return "-"
    ranks = setting.change == "ranks"
    try:
        more = [data_parallel(setting.gpus, GRADIENTS)] if ranks else []
        found = predict(analysis, [] if ranks else setting.change.split(","), more=more)
    except TraceviewError as error:
        return f"nothing: {str(error).partition(': ')[2].partition(':')[0]}"
    now = measured(analysis) * setting.gpus
    return (
        f"{now / found.iteration_ns:.2f} ({now / found.high_ns:.2f} to {now / found.low_ns:.2f}): "
        f"{found.iteration_ns / 1e6:.2f} ms from {measured(analysis) / 1e6:.2f}"
    )


def captured(setting: Setting, captures: list[Path]) -> str:
    """Return what the two captures say, and how far the prediction was from the second."""
    both = [opened(path) for path in captures]
    if both[0] is None or both[1] is None:
        return "-"
    now, then = (measured(one) for one in both if one)
    return f"{setting.gpus * now / then:.2f}: {then / 1e6:.2f} ms"


def waits(folder: Path) -> str:
    """Return how often and how long the host waits in captured steps."""
    lines = ["| captured steps | synchronizations in ten steps | the host waits, ms a step |", "| --- | ---: | ---: |"]
    for name in ("prefetch_every", "prefetch_b", "prefetch_event"):
        analysis = opened(folder / f"{name}.sqlite")
        if analysis is None:
            continue
        count = len(getattr(analysis.iterations, "per_iteration", ())) or 1
        sync = analysis.host.sync
        calls = sum(one.count for one in sync.calls if one.api == "cudaEventSynchronize")
        lines.append(f"| {name} | {10 * calls / count:.0f} | {sync.blocked_ns / 1e6 / count:.2f} |")
    return "\n".join(lines)


def again(claim: Claim) -> list[str]:
    """Return the commands that measure and capture the settings of a claim."""
    lines = []
    small = "--batch 32 --sequence 256 --features 4096 --samples 128 --preload"
    for one in claim.settings:
        if one.gpus > 1:
            runs = [f"torchrun --nproc-per-node {one.gpus} -m instrument.train", "python -m instrument.train"]
            lines += [f"{run} {small} --strategy prefetch --steps 60 --monitor-every 10" for run in runs]
        else:
            settings = " ".join(f'--setting "{name}"' for name in (one.before, one.after))
            lines.append(f"python benchmarks/strategies.py --rounds 3 --workload {one.workload} {settings}")
            lines.append(f"python benchmarks/strategies.py --flags {one.workload} {settings}")
    profiled = "nsys profile -t cuda,nvtx -s none --cpuctxsw=none -c cudaProfilerApi --capture-range-end=stop -o NAME"
    return [*lines, f"{profiled} python -m instrument.train FLAGS --steps 30 --capture 20:30"]


if __name__ == "__main__":
    main()
