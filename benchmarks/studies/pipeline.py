#!/usr/bin/env python3
r"""Train transformer layers as a pipeline of stages, one per process (1F1B), and print ms per step.

    torchrun --nproc-per-node 2 benchmarks/studies/pipeline.py
    nsys profile -t cuda,nvtx -s none --cpuctxsw=none -c cudaProfilerApi --capture-range-end=stop -o pipeline \
        torchrun --nproc-per-node 2 benchmarks/studies/pipeline.py --capture

Every step is a range `iteration N`, and every forward and backward of a micro-batch a range `stage 0 forward 3`. The
bubbles of P stages and M micro-batches are (P - 1) / (M + P - 1) of a step. Without GPUs, it runs on gloo.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.examples.pipeline_stages import pipeline_schedule, stage_blocks
from instrument import CaptureRange, annotate
from instrument.config.schema import Config, Model
from instrument.distributed.world import process_group, select_device
from instrument.models import Block
from instrument.ranges import OPTIMIZER, iteration_name, phase

SETTLING = 5


def main() -> None:
    """Parse the arguments, train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = {"layers": 8, "width": 1024, "batch": 32, "sequence": 256, "micro-batches": 8, "steps": 25}
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--capture", action="store_true", help="let nsys record the steps after the settling ones")
    options = parser.parse_args()
    with process_group("auto") as world:
        device = select_device(Config(), world)
        torch.manual_seed(0)
        settings = Model(width=options.width, heads=max(options.width // 64, 1))
        blocks = [Block(settings) for _ in range(options.layers)]
        stage = stage_blocks(blocks, world).to(device)
        optimizer = torch.optim.AdamW(stage.parameters())
        schedule = pipeline_schedule(stage, world, device, options.micro_batches, nn.functional.mse_loss)
        inputs = torch.randn(options.batch, options.sequence, options.width, device=device)
        capture = CaptureRange(SETTLING if options.capture else None, options.steps, device)
        times = []
        for step in range(options.steps):
            capture.before(step)
            start = time.perf_counter()
            with annotate(iteration_name(step)):
                if world.first:
                    schedule.step(inputs)
                else:
                    schedule.step(**({"target": inputs.tanh()} if world.rank == world.size - 1 else {}))
                with phase(OPTIMIZER):
                    optimizer.step()
                    optimizer.zero_grad()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
            times.append(time.perf_counter() - start)
        capture.close()
        if world.first:
            bubbles = (world.size - 1) / (options.micro_batches + world.size - 1)
            median = 1000 * statistics.median(times[SETTLING:] or times)
            print(f"{median:.2f} ms a step; bubbles of equal stages: {bubbles:.1%} of it")


if __name__ == "__main__":
    main()
