#!/usr/bin/env python3
"""Kill a run of the trainer on several processes by SIGKILL at random moments, resume it, and compare its losses.

    python benchmarks/studies/killed.py [--processes 2] [--kills 3] [--json result.json] -- [FLAGS of instrument.train]

The loss of each step must equal that of a run that nothing stops, bit for bit. The run writes a checkpoint every few
steps; a kill can fall into the writing of one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from strangers import kill

ROOT = Path(__file__).resolve().parents[2]
EVERY = 5  # steps between checkpoints
TIMEOUT_S = 300


def losses(path: Path, since: float = 0.0) -> dict[int, float]:
    """Return the loss of each step in the records of a run that were written after the time `since`."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return {row["step"]: row["loss"] for row in rows if row.get("loss") is not None and row["time"] > since}


def started(folder: Path, processes: int, steps: int, flags: Iterable[str]) -> subprocess.Popen[bytes]:
    """Start the trainer in a session of its own; it resumes from the last complete checkpoint of the folder."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words += ["-m", "instrument.train", *flags, "--steps", str(steps), "--no-progress", "--monitor-every", "1"]
    checkpoints = folder / "checkpoints"
    words += ["--jsonl", str(folder / "run.jsonl"), "--checkpoint-folder", str(checkpoints)]
    words += ["--checkpoint-every", str(EVERY)]
    if any(checkpoints.glob("*/.metadata")) or any(checkpoints.glob("*.pt")):
        words.append("--resume")
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    error = (folder / "errors.txt").open("w")
    return subprocess.Popen(words, env=environment, start_new_session=True, stdout=error, stderr=error)


def finished(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait for the end of a run; raise its error if it failed."""
    try:
        status = process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    if status:
        raise RuntimeError((folder / "errors.txt").read_text()[-3000:])


def kill_after(process: subprocess.Popen[bytes], folder: Path, step: int) -> None:
    """Kill a run once it has recorded `step` itself: records of the run before it may reach further."""
    begun, end = time.time(), time.monotonic() + TIMEOUT_S
    while max(losses(folder / "run.jsonl", begun), default=-1) < step:
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError((folder / "errors.txt").read_text()[-3000:])
        time.sleep(0.005)
    kill(process)


def compared(processes: int, steps: int, kills: int, seed: int, flags: Sequence[str]) -> dict[str, object]:
    """Return how many losses of a killed and resumed run equal those of a run without a stop."""
    with tempfile.TemporaryDirectory() as made:
        plain, stopped = Path(made) / "plain", Path(made) / "stopped"
        finished(started(plain, processes, steps, flags), plain)
        moments = sorted(random.Random(seed).sample(range(2, steps - 3), kills))
        resumes = []
        for moment in moments:
            kill_after(started(stopped, processes, steps, flags), stopped, moment)
            resumes.append(sorted(path.name for path in (stopped / "checkpoints").iterdir()))
        finished(started(stopped, processes, steps, flags), stopped)
        expected, found = losses(plain / "run.jsonl"), losses(stopped / "run.jsonl")
    equal = sum(found.get(step) == loss for step, loss in expected.items())
    return {
        "flags": " ".join(flags), "processes": processes, "steps": len(expected), "equal": equal,
        "killed_after": moments, "checkpoints_at_kills": resumes, "last_loss": expected[max(expected)],
    }  # fmt: skip


def main() -> int:
    """Run it; return 1 if a loss differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("flags", nargs="*", help="flags of instrument.train, after --")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    options = parser.parse_args()
    result = compared(options.processes, options.steps, options.kills, options.seed, options.flags)
    print(json.dumps(result), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return int(result["equal"] != result["steps"])


if __name__ == "__main__":
    sys.exit(main())
