#!/usr/bin/env python3
"""Compare common claims with measurements and with predictions of `traceview whatif`.

    python benchmarks/studies/claims.py --folder CAPTURES               all rows of docs/claims.md
    python benchmarks/studies/claims.py prompt --folder CAPTURES        the row of a claim
    python benchmarks/studies/claims.py prompt --again                  the commands to repeat it on a GPU

Measured: ms per step without a profiler, the median of three rounds, with minimum and maximum in parentheses, from
benchmarks/results/. From the captures: the share of time in which the GPU runs a kernel, and the prediction from the
capture before the change, with its range. A dash stands for a capture that is missing in the folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from traceview import Analysis, analyze
from traceview.errors import TraceviewError
from traceview.intervals import length, union
from traceview.replay.changes import ranks as data_parallel
from traceview.replay.prediction import measured, predict

RESULTS = Path(__file__).resolve().parents[1] / "results"
SETTLED = 19  # first counted step of a training run in h200_ddp.json
GRADIENTS = 253_000_000  # bytes, of the small workload
HEAD = """| claim | setting | measured, ms a step | times as fast | GPU busy | predicted, times as fast | captured |
| --- | --- | --- | --- | --- | --- | --- |"""


@dataclass(frozen=True, slots=True)
class Setting:
    """A comparison: workload, and settings before and after, of strategies.py; their captures; the change."""

    workload: str
    before: str
    after: str
    captures: tuple[str, str] = ("", "")
    change: str = ""
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim of `low` to `high` times as fast; both are 0 if the claim has no figure."""

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
    """Print the chosen rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claim", nargs="*", metavar="CLAIM", help=", ".join(CLAIMS))
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    if unknown := set(options.claim) - set(CLAIMS):
        parser.error(f"no claim is called {', '.join(sorted(unknown))}; there are {', '.join(CLAIMS)}")
    chosen = {name: CLAIMS[name] for name in options.claim or CLAIMS}
    if options.again:
        print("\n".join(dict.fromkeys(line for claim in chosen.values() for line in again(claim))))
        return
    print(HEAD)
    for name, claim in chosen.items():
        for setting in claim.settings:
            print(row(name, claim, setting, options.folder))
    if "sync" in chosen:
        print("\n" + waits(options.folder))


def row(name: str, claim: Claim, setting: Setting, folder: Path) -> str:
    """Return the row of a setting."""
    before, after = rounds_of(setting)
    times = setting.gpus * statistics.median(before) / statistics.median(after)
    captures = [folder / f"{item}.sqlite" for item in setting.captures]
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
    """Return the ms per step of each round, by workload and setting, for each file."""
    files = []
    for name in ("h200_strategies.json", "h200_claims.json"):
        results: dict[tuple[str, str], list[float]] = {}
        for item in json.loads((RESULTS / name).read_text()):
            results.setdefault((item["workload"], item["setting"]), []).append(item["step_ms"])
        files.append(results)
    ddp = [item for item in json.loads((RESULTS / "h200_ddp.json").read_text()) if item["step"] >= SETTLED]
    results = {}
    for gpus, number in sorted({(item["gpus"], item["round"]) for item in ddp}):
        mine = [item["step_ms"] for item in ddp if (item["gpus"], item["round"]) == (gpus, number)]
        results.setdefault(("small", f"{gpus} GPU{'s' if gpus > 1 else ''}"), []).append(statistics.median(mine))
    return [*files, results]


def rounds_of(setting: Setting) -> tuple[list[float], list[float]]:
    """Return the ms per step of each round before and after, from the file that has both."""
    keys = [(setting.workload, name) for name in (setting.before, setting.after)]
    file = next(item for item in recorded() if all(key in item for key in keys))
    return file[keys[0]], file[keys[1]]


def spread(rounds: list[float]) -> str:
    """Return the median, minimum and maximum of several rounds."""
    middle = f"{statistics.median(rounds):.2f}"
    return f"{middle} ({min(rounds):.2f} to {max(rounds):.2f})" if len(rounds) > 1 else f"{middle} (one run)"


@cache
def opened(path: Path) -> Analysis | None:
    """Return the analysis of a capture with the profiler's cost in its times; None if it is missing."""
    return analyze(path, costs=None) if path.is_file() else None


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
    """Return the prediction from the capture before the change."""
    analysis = opened(before)
    if analysis is None or not setting.change:
        return "-"
    ranks = setting.change == "ranks"
    try:
        more = [data_parallel(setting.gpus, GRADIENTS)] if ranks else []
        results = predict(analysis, [] if ranks else setting.change.split(","), more=more)
    except TraceviewError as error:
        return f"nothing: {str(error).partition(': ')[2].partition(':')[0]}"
    now = measured(analysis) * setting.gpus
    return (
        f"{now / results.iteration_ns:.2f} ({now / results.high_ns:.2f} to {now / results.low_ns:.2f}): "
        f"{results.iteration_ns / 1e6:.2f} ms from {measured(analysis) / 1e6:.2f}"
    )


def captured(setting: Setting, captures: list[Path]) -> str:
    """Return the times of both captures, and the error of the prediction."""
    both = [opened(path) for path in captures]
    if both[0] is None or both[1] is None:
        return "-"
    now, then = (measured(item) for item in both if item)
    return f"{setting.gpus * now / then:.2f}: {then / 1e6:.2f} ms"


def waits(folder: Path) -> str:
    """Return the count and duration of host waits in captured steps."""
    lines = ["| captured steps | synchronizations in ten steps | the host waits, ms a step |", "| --- | ---: | ---: |"]
    for name in ("prefetch_every", "prefetch_b", "prefetch_event"):
        analysis = opened(folder / f"{name}.sqlite")
        if analysis is None:
            continue
        count = len(getattr(analysis.iterations, "per_iteration", ())) or 1
        sync = analysis.host.sync
        calls = sum(item.count for item in sync.calls if item.api == "cudaEventSynchronize")
        lines.append(f"| {name} | {10 * calls / count:.0f} | {sync.blocked_ns / 1e6 / count:.2f} |")
    return "\n".join(lines)


def again(claim: Claim) -> list[str]:
    """Return the commands that repeat a claim's measurements and captures."""
    lines = []
    small = "--batch 32 --sequence 256 --features 4096 --samples 128 --preload"
    for item in claim.settings:
        if item.gpus > 1:
            runs = [f"torchrun --nproc-per-node {item.gpus} -m instrument.train", "python -m instrument.train"]
            lines += [f"{run} {small} --strategy prefetch --steps 60 --monitor-every 10" for run in runs]
        else:
            settings = " ".join(f'--setting "{name}"' for name in (item.before, item.after))
            lines.append(f"python benchmarks/studies/strategies.py --rounds 3 --workload {item.workload} {settings}")
            lines.append(f"python benchmarks/studies/strategies.py --flags {item.workload} {settings}")
    profiled = "nsys profile -t cuda,nvtx -s none --cpuctxsw=none -c cudaProfilerApi --capture-range-end=stop -o NAME"
    return [*lines, f"{profiled} python -m instrument.train FLAGS --steps 30 --capture 20:30"]


if __name__ == "__main__":
    main()
