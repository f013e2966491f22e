#!/usr/bin/env python3
"""Time the trainer's strategies on a GPU: ms per step, in rounds, without a profiler.

    python benchmarks/studies/strategies.py --json results.json          all workloads and settings, three rounds
    python benchmarks/studies/strategies.py --workload copy30 --rounds 5
    python benchmarks/studies/strategies.py --flags copy30                the flags of a workload, to capture it

A workload is named after the ratio of its copy time to its compute time. Batches are created once and kept, in pinned
memory if the strategy uses it, so that only copies and compute are compared. The wide model has long kernels, the small
one short kernels, which can overlap with four micro-batches a step. Rounds alternate between the strategies. The first
steps of each run are skipped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

STEPS, SETTLING = 40, 10
COMMON = {"batch": 32, "sequence": 256, "preload": True, "progress": False}
PROMPT = "docs.examples.masked_language"
# a batch has 32 x 256 x features floats
WIDE = {"width": 4096, "layers": 2, "heads": 32, "samples": 32}
WORKLOADS: dict[str, dict[str, Any]] = {
    "small": {"width": 1024, "layers": 4, "heads": 16, "samples": 128, "features": 4096},
    "copy10": WIDE | {"features": 8192},
    "copy30": WIDE | {"features": 26624, "pinned_budget": 4 << 30},
    "copy60": WIDE | {"features": 57344, "pinned_budget": 8 << 30},
    "prompt": {
        "data": f"{PROMPT}:PromptTokens",
        "loss": f"{PROMPT}:loss",
        "batch": 8,
        "width": 1024,
        "layers": 4,
        "heads": 16,
        "samples": 64,
    },
}
SETTINGS: dict[str, dict[str, Any]] = {
    "serial": {"strategy": "serial"},
    "pinned": {"strategy": "pinned"},
    "prefetch": {"strategy": "prefetch"},
    "streams": {"strategy": "streams"},
    "staged": {"strategy": "staged"},
    "graph": {"strategy": "graph"},
    "prefetch, accumulation 4": {"strategy": "prefetch", "accumulation": 4},
    "staged, accumulation 4": {"strategy": "staged", "accumulation": 4},
    "prefetch, sync every": {"strategy": "prefetch", "sync": "every"},
    "prefetch, sync event": {"strategy": "prefetch", "sync": "event"},
    "prompt loop": {"strategy": "prefetch", "model": f"{PROMPT}:loop"},
    "prompt vectorised": {"strategy": "prefetch", "model": f"{PROMPT}:vectorised"},
}
PROMPTS = ("prompt loop", "prompt vectorised")
PLAIN = ("serial", "pinned", "prefetch", "streams", "staged", "graph")
COMPARED = dict.fromkeys(("copy10", "copy30", "copy60"), PLAIN) | {
    "small": tuple(name for name in SETTINGS if name not in PROMPTS),
    "prompt": PROMPTS,
}


def flags(workload: str, setting: str, **more: Any) -> dict[str, Any]:
    """Return the flags of a run, by long name with underscores."""
    return COMMON | WORKLOADS[workload] | SETTINGS[setting] | more


def command_line(options: dict[str, Any]) -> str:
    """Return the flags as typed on the command line."""
    words = []
    for name, value in options.items():
        flag = name.replace("_", "-")
        words.append(f"--{'' if value else 'no-'}{flag}" if isinstance(value, bool) else f"--{flag} {value}")
    return " ".join(words)


def measured(workload: str, setting: str) -> dict[str, float | None]:
    """Run once; return the figures after the settling steps, per micro-batch if there are several."""
    from instrument.config.loading import load
    from instrument.trainer.training_run import train

    micro = SETTINGS[setting].get("accumulation", 1)
    steps = max(STEPS // micro, 10)
    settling = max(SETTLING // micro, 5)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.jsonl"
        options = flags(workload, setting, steps=steps, monitor_every=steps - settling, jsonl=str(out))
        # The last window of records starts after the settling steps.
        options["steps"] = 2 * (steps - settling)
        train(load(None, options), lambda text: print(f"  {text}", file=sys.stderr))
        records = [json.loads(line) for line in out.read_text().splitlines()]
    last = [record for record in records if "perf/step_ms" in record][-1]
    names = ("step", "forward", "backward", "optimizer", "copy")
    result = {f"{name}_ms": _share(last[f"perf/{name}_ms"], micro) for name in names}
    return result | {"samples_per_s": last["perf/samples_per_s"], "mfu": last["perf/mfu"], "loss": last["loss"]}


def _share(value: float | None, micro: int) -> float | None:
    return None if value is None else value / micro


def run(workloads: Sequence[str], settings: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Run all workloads with all settings, in rounds."""
    rows = []
    for workload in workloads:
        for number in range(rounds):
            for setting in (name for name in settings if name in COMPARED[workload]):
                result = measured(workload, setting)
                rows.append({"workload": workload, "setting": setting, "round": number} | result)
                print(f"{workload:8} {setting:26} round {number}  {result['step_ms']:.3f} ms", flush=True)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return a line per workload and setting: median, minimum and maximum ms per step, and the speedups."""
    lines = [f"{'workload':8} {'setting':26} {'ms/step':>8} {'least':>8} {'most':>8} {'x serial':>9} {'x pinned':>9}"]
    steps: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        steps.setdefault((row["workload"], row["setting"]), []).append(row["step_ms"])
    for (workload, setting), result in steps.items():
        median = statistics.median(result)
        cells = []
        for base in ("serial", "pinned"):
            other = steps.get((workload, base))
            cells.append(f"{statistics.median(other) / median:9.2f}" if other else f"{'':9}")
        lines.append(f"{workload:8} {setting:26} {median:8.2f} {min(result):8.2f} {max(result):8.2f} {' '.join(cells)}")
    return "\n".join(lines)


def main() -> None:
    """Parse the arguments, run, print the table and write the raw figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--setting", action="append", choices=SETTINGS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--flags", choices=WORKLOADS, metavar="WORKLOAD")
    options = parser.parse_args()
    if options.flags:
        for setting in options.setting or SETTINGS:
            print(command_line(flags(options.flags, setting)))
        return
    rows = run(options.workload or list(WORKLOADS), options.setting or list(SETTINGS), options.rounds)
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
