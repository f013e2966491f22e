#!/usr/bin/env python3
"""Train by `--strategy streams` beside a program that loads the GPU, and compare each loss with that of serial.

    python benchmarks/studies/exact_streams.py [--runs 200] [--load 2] [--json result.json]

All runs are in one process. Losses must be equal, bit for bit. A control repeats some runs with a strategy that lacks
a wait: if no loss of it is wrong, the GPU was never behind the host, and the other runs show nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from instrument import Config, Data, Model, Monitor, Training, train
from instrument.strategies import four_streams
from instrument.strategies.base import Prefetch
from instrument.strategies.four_streams import FourStreams
from instrument.streams import record_stream

CASES: dict[str, tuple[Model, Data, dict[str, Any]]] = {
    "GPU behind": (Model(layers=2, width=1024), Data(batch=16, sequence=128, samples=64), {}),
    "launch-bound": (Model(layers=4, width=64, heads=4, features=64, vocabulary=64), Data(batch=4, sequence=16), {}),
    "two micro-batches": (
        Model(layers=2, width=512),
        Data(batch=8, sequence=64),
        {"accumulation": 2},
    ),
}


class WithoutWait(FourStreams):
    """Computes with the losses on the current stream, which waits for the forward only after the step."""

    def step(self, batches: Sequence[Any]) -> Tensor:
        """Train on the micro-batches of one optimizer step; return their mean loss."""
        record_stream(batches, ready=self.streams.current.record(), to=self.streams["forward"])
        return Prefetch.step(self, batches)

    def _forward_backward(self, batch: Any, weight: Any) -> Tensor:
        with self.streams["forward"]:
            return super()._forward_backward(batch, weight)

    def _update(self) -> None:
        super()._update()
        self.streams.current.wait(self.streams["forward"])


def losses(case: str, strategy: str, steps: int) -> list[float]:
    """Return the loss of each step of a run."""
    model, data, training = CASES[case]
    config = Config(
        Training(strategy=strategy, steps=steps, sync="10", device="cuda", **training),
        model=model,
        data=data,
        monitor=Monitor(progress=False, log_every=0),
    )
    return train(config, lambda _line: None).losses


def load_gpu(stop: Any) -> None:
    """Multiply matrices in bursts until told to stop."""
    one = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    while not stop.is_set():
        for _ in range(20):
            torch.mm(one, one)
        torch.cuda.synchronize()
        time.sleep(0.003)


@contextmanager
def loaded(programs: int) -> Iterator[None]:
    """Run other programs on the GPU during the block."""
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    others = [spawn.Process(target=load_gpu, args=(stop,), daemon=True) for _ in range(programs)]
    for other in others:
        other.start()
    time.sleep(8 if programs else 0)  # they import torch first
    try:
        yield
    finally:
        stop.set()
        for other in others:
            other.join(10)


def compared(case: str, strategy: str, runs: int, seconds: float, right: list[float]) -> dict[str, Any]:
    """Return how many runs have a wrong loss, and the first of them; `seconds` limit the number of runs."""
    begun, done, wrong = time.perf_counter(), 0, list[dict[str, Any]]()
    while done < runs and time.perf_counter() - begun < seconds:
        made = losses(case, strategy, len(right))
        if bad := [(step, *pair) for step, pair in enumerate(zip(right, made, strict=True)) if pair[0] != pair[1]]:
            wrong.append({"run": done, "step, right, recorded": bad})
        done += 1
    return {"runs": done, "wrong": len(wrong), "first": wrong[:3], "seconds": round(time.perf_counter() - begun, 1)}


def main() -> int:
    """Compare all cases; return 1 if a loss of the strategy is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="runs of streams, divided among the cases")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--load", type=int, default=2, help="other programs on the GPU")
    parser.add_argument("--seconds", type=float, default=90, help="after which no more runs of streams begin")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    for name in ("flash", "mem_efficient", "cudnn"):  # their backwards can add in any order
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(False)
    right = {case: losses(case, "serial", options.steps) for case in CASES}
    result: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "load": options.load}
    with loaded(options.load):
        for case, (kind, runs) in itertools.product(
            CASES, {"serial": 3, "streams": -(-options.runs // len(CASES)), "control": 10}.items()
        ):
            four_streams.FourStreams = WithoutWait if kind == "control" else FourStreams  # type: ignore[misc]
            strategy = "streams" if kind == "control" else kind
            row = compared(case, strategy, runs, options.seconds / len(CASES), right[case])
            result[f"{case}, {kind}"] = row
            print(f"{case}, {kind}: {row['wrong']} of {row['runs']} runs wrong, {row['seconds']} s", flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1))
    return int(any(row["wrong"] for name, row in result.items() if name.endswith((", streams", ", serial"))))


if __name__ == "__main__":
    sys.exit(main())
