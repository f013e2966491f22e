#!/usr/bin/env python3
"""Run programs in the style of public examples plainly, under instrument.run, and with instrument's parts and SIGKILL.

    python benchmarks/studies/strangers.py [--json results.json] [--kills 3] [NAME ...]

Each program of benchmarks/studies/strangers writes the loss of each step, and validates every few steps. The losses of
a run under `python -m instrument.run`, of a run with the parts, and of a run with the parts that is killed by SIGKILL
after a random step and started again, three times, must equal those of the plain run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("classifier", "language", "lightning_module", "gan", "lbfgs", "ddp")
TIMEOUT_S = 300


def command(name: str, folder: Path, steps: int, *options: str, runner: tuple[str, ...] = ()) -> list[str]:
    """Return the command of a program."""
    script = str(Path(__file__).with_suffix("") / f"{name}.py")
    start = [sys.executable]
    if name == "ddp":
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*start, *runner, script, str(folder), "--steps", str(steps), *options]


def losses(folder: Path) -> dict[int, dict[str, float]]:
    """Return the figures of each step; of a step that ran again, the last ones."""
    path, found = folder / "losses.jsonl", dict[int, dict[str, float]]()
    for line in path.read_text().splitlines() if path.exists() else ():
        if line.endswith("}"):
            row = json.loads(line)
            found.setdefault(row.pop("step"), {}).update(row)
    return found


def started(words: list[str]) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    return subprocess.Popen(
        words, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def finished(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a program; raise its error if it failed."""
    _out, error = process.communicate(timeout=TIMEOUT_S)
    if process.returncode:
        raise RuntimeError(error.decode(errors="replace")[-2000:])


def killed(words: list[str], folder: Path, after: int) -> None:
    """Start a program and kill it once it has written the loss of step `after`."""
    process = started(words)
    end = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < end and max(losses(folder), default=-1) < after:
        time.sleep(0.01)
    kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and the processes that it started at once. torchrun starts each rank in a session of its own."""
    parents = {int(stat.parent.name): parent(stat) for stat in Path("/proc").glob("[0-9]*/stat")}
    ranks = [pid for pid, above in parents.items() if above == process.pid and os.getpgid(pid) == pid]
    for group in (process.pid, *ranks):
        os.killpg(group, signal.SIGKILL)
    process.communicate()


def parent(stat: Path) -> int | None:
    """Return the process that started another, from the other's file in /proc; None if it has ended."""
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def compared(name: str, steps: int, kills: int, seed: int) -> dict[str, Any]:
    """Return in how many of its steps each way to run a program has the losses of the plain run."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        finished(started(command(name, folder / "plain", steps)))
        finished(started(command(name, folder / "run", steps, runner=("-m", "instrument.run"))))
        finished(started(command(name, folder / "parts", steps, "--parts")))
        moments = sorted(random.Random(f"{name} {seed}").sample(range(2, steps - 3), kills))
        words = command(name, folder / "killed", steps, "--parts")
        for moment in moments:
            killed(words, folder / "killed", moment)
        finished(started(words))
        plain = losses(folder / "plain")
        ways = {way: losses(folder / way) for way in ("run", "parts", "killed")}
    equal = {way: sum(rows.get(step) == row for step, row in plain.items()) for way, rows in ways.items()}
    validations = sum("validation" in row for row in plain.values())
    return {"program": name, "steps": len(plain), "validations": validations, "killed_after": moments, "equal": equal}


def main() -> int:
    """Run the programs; return 1 if a loss differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)} [all]")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    rows = []
    for name in options.names or PROGRAMS:
        row = compared(name, options.steps, options.kills, options.seed)
        rows.append(row)
        print(json.dumps(row), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(count != row["steps"] for row in rows for count in row["equal"].values()))


if __name__ == "__main__":
    sys.exit(main())
