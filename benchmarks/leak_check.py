"""Train for minutes, and check that memory, threads and file descriptors do not grow.

    python benchmarks/leak_check.py --minutes 5 [--device cuda] [--json leaks.json]

Each cycle runs the trainer with a loader process, checkpoints and metrics; a loop of the parts for a loop of one's own;
and background iterators that are closed or dropped half way. Readings after each cycle: physical memory of the process,
threads, open files, child processes; on a GPU also reserved and pinned memory. The first quarter of the time is the
warm-up. Exit code 1 if the median of the last quarter exceeds that of the second by more than 1% and 8 MiB, or if
threads, files or processes are more at the end than after the warm-up. The JSON file is written again every
15 seconds, so that a check that is ended early leaves its readings.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from statistics import median

import torch
from torch.utils.data import DataLoader, TensorDataset

from instrument import CaptureRange, Config, PrefetchLoader, StepMeter, SyncPolicy, annotate, annotate_module, train
from instrument.background import Background
from instrument.config.schema import Checkpoint, Data, Model, Monitor, Training
from instrument.memory import resident_bytes

MEMORY = ("host_bytes", "reserved_bytes", "pinned_bytes")
COUNTS = ("threads", "files", "children")
MAX_GROWTH, MAX_GROWTH_BYTES = 0.01, 8 << 20
WRITTEN_EVERY = 15  # seconds


def run_trainer(device: str, folder: Path) -> int:
    """Run the trainer for 40 steps, and return the number of steps."""
    config = Config(
        Training(device=device, precision="fp32", steps=40),
        Model(layers=1, width=64, heads=2, features=32, vocabulary=64),
        Data(batch=4, sequence=16, samples=64, distinct_batches=0, workers=1),
        checkpoint=Checkpoint(folder=folder / "checkpoints", every=20),
        monitor=Monitor(jsonl=folder / "run.jsonl", progress=False),
    )
    return train(config, lambda _line: None).done


def run_parts(device: str) -> int:
    """Run a loop made of the package's parts for 128 steps, and return the number of steps."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    annotation, meter, late = annotate_module(model), StepMeter(device), SyncPolicy(every=10).metrics(device)
    data = DataLoader(TensorDataset(torch.randn(256, 32)), batch_size=8)
    step = 0
    with PrefetchLoader(data, device) as batches, closing(CaptureRange(None, None, device)) as capture:
        for _epoch in range(4):
            for (inputs,) in batches:
                capture.before(step)
                meter.begin(step)
                with annotate(f"iteration {step}"):
                    loss = model(inputs).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                late.log(step, {"loss": loss})
                meter.finished()
                step += 1
    late.wait()
    annotation.remove()
    return step


def run_abandoned() -> None:
    """Start background iterators that are closed, exhausted or dropped half way."""
    for ending in ("close", "drop", "exhaust"):
        items = Background(iter([torch.ones(1000) for _ in range(8)]), torch.clone, depth=2)
        next(items)
        if ending == "close":
            items.close()
        elif ending == "exhaust":
            list(items)


def reading(device: str) -> dict[str, int]:
    """Return what must not grow."""
    gc.collect()
    values = {
        "host_bytes": resident_bytes() or 0,
        "threads": threading.active_count(),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "children": len(Path(f"/proc/self/task/{threading.main_thread().native_id}/children").read_text().split()),
    }
    if device == "cuda":
        values["reserved_bytes"] = torch.cuda.memory_reserved()
        values["pinned_bytes"] = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    return values


def growth(readings: list[dict[str, int]]) -> dict[str, list[int]]:
    """Return what grew: name -> its values after the warm-up and at the end."""
    quarter = max(len(readings) // 4, 1)
    grown = {}
    for name in readings[0]:
        second, last = (
            [values[name] for values in part] for part in (readings[quarter : 2 * quarter], readings[-quarter:])
        )
        if name in MEMORY:
            before, after = int(median(second)), int(median(last))
            leaks = after - before > max(MAX_GROWTH * before, MAX_GROWTH_BYTES)
        else:
            before, after = max(second), min(last)
            leaks = after > before
        if leaks:
            grown[name] = [before, after]
    return grown


def main() -> int:
    """Run cycles for the given time and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    readings: list[dict[str, int]] = []
    steps, start = 0, time.monotonic()
    end, written = start + 60 * chosen.minutes, start

    def write() -> dict[str, list[int]]:
        grown = growth(readings)
        if chosen.json is not None:
            document = {"seconds": round(time.monotonic() - start), "device": chosen.device, "steps": steps}
            chosen.json.write_text(json.dumps({**document, "grown": grown, "readings": readings}) + "\n")
        return grown

    while time.monotonic() < end or len(readings) < 8:
        with tempfile.TemporaryDirectory() as folder:
            steps += run_trainer(chosen.device, Path(folder)) + run_parts(chosen.device)
        run_abandoned()
        readings.append(reading(chosen.device))
        if time.monotonic() > written + WRITTEN_EVERY:
            write()
            written = time.monotonic()
    grown = write()
    quarter = len(readings) // 4
    for name in readings[0]:
        print(f"{name:<15} {readings[quarter][name]:>14,} after the warm-up {readings[-1][name]:>14,} at the end")
    print(f"{len(readings)} cycles, {steps} steps: {f'GROWN: {grown}' if grown else 'nothing grew'}")
    return int(bool(grown))


if __name__ == "__main__":
    sys.exit(main())
