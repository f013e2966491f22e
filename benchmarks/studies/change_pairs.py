#!/usr/bin/env python3
"""Measure changes of programs that no constant has used, beside what `whatif` predicts from a trace of the base.

    PYTHONPATH=. python benchmarks/studies/change_pairs.py [PROGRAM ...] [--seconds 270] [--steps 30] [--tiny]

A program and its changes run in one process, in three interleaved rounds without a profiler; torch.profiler traces the
base once. Each line is a pair of traceview/replay/measured.toml, with the time that the replay alone predicts. The run
ends after the program that exceeds --seconds. --tiny measures small programs; without a GPU nothing is predicted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

ROUNDS, WARM_UP, TRACED = 3, 8, 12
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Step = Callable[[], Any]
synchronize = torch.cuda.synchronize if DEVICE.type == "cuda" else torch.cpu.synchronize


class Attention(nn.Module):
    """Layers of attention that also return its weights, or in one kernel (`sdpa`)."""

    def __init__(self, width: int, layers: int, on: frozenset[str]) -> None:
        super().__init__()
        blocks = (nn.MultiheadAttention(width, 4, batch_first=True) for _ in range(layers))
        self.layers, self.fused = nn.ModuleList(blocks), "sdpa" in on

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape of `x` (batch, tokens, width)."""
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=not self.fused)[0]
        return x


class Experts(nn.Module):
    """Equal small products in a loop, or one batched product (`batch`)."""

    def __init__(self, width: int, count: int, on: frozenset[str]) -> None:
        super().__init__()
        self.weight, self.batched = nn.Parameter(torch.rand(count, width, width) / width), "batch" in on

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the products of `x` (expert, token, width)."""
        return x @ self.weight if self.batched else torch.stack([x[row] @ self.weight[row] for row in range(len(x))])


class Samples(IterableDataset[torch.Tensor]):
    """Samples that a worker sorts."""

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = tuple(shape)

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield samples without end."""
        while True:
            yield torch.rand(self.shape).flatten().sort().values.view(self.shape)


class Program(NamedTuple):
    """A model, the shape of a batch, and the changes to measure, with "+" between those made at once."""

    model: Callable[[frozenset[str]], nn.Module]
    batch: tuple[int, ...]
    changes: str
    workers: tuple[int, int] | None = None  # of the loader, before and after `load`; None: one batch in host memory


def images(width: int, depth: int, on: frozenset[str]) -> nn.Module:
    """Return a network of 2D convolutions."""
    blocks = ((nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()) for _ in range(depth))
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *itertools.chain.from_iterable(blocks))


def products(width: int, depth: int, on: frozenset[str]) -> nn.Module:
    """Return a network of linear layers."""
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.SiLU())))


PROGRAMS: dict[str, Program] = {
    "residual images": Program(partial(images, 96, 8), (64, 3, 96, 96), "channels-last bf16 tf32 compile pin"),
    "wide images": Program(partial(images, 192, 4), (32, 3, 128, 128), "channels-last bf16 tf32 sync pin+prefetch"),
    "long attention": Program(partial(Attention, 512, 6), (8, 1024, 512), "sdpa bf16 tf32 compile"),
    "short attention": Program(partial(Attention, 256, 12), (4, 64, 256), "graph sdpa fused-optimizer"),
    "many layers": Program(partial(products, 128, 60), (256, 128), "graph compile fused-optimizer sync"),
    "wide layers": Program(partial(products, 4096, 8), (4096, 4096), "tf32 bf16 pin pin+prefetch compile"),
    "experts": Program(partial(Experts, 128, 64), (64, 32, 128), "batch graph compile sync"),
    "late loader": Program(partial(products, 1024, 6), (1024, 1024), "load pin load+pin", (1, 8)),
    "loader in balance": Program(partial(images, 64, 6), (64, 3, 96, 96), "load pin load+pin", (3, 10)),
}
TINY = {
    "tiny layers": Program(partial(products, 8, 2), (4, 8), "sync fused-optimizer load+pin", (0, 0)),
    "tiny experts": Program(partial(Experts, 4, 2), (2, 3, 4), "batch"),
    "tiny attention": Program(partial(Attention, 16, 1), (2, 4, 16), "sdpa bf16"),
}


def batches(program: Program, on: frozenset[str]) -> Iterator[torch.Tensor]:
    """Yield batches in host memory: from a loader, or the same one."""
    pinned = "pin" in on and DEVICE.type == "cuda"
    if program.workers is None:
        batch = torch.rand(program.batch)
        return itertools.repeat(batch.pin_memory() if pinned else batch)
    count, data = program.workers["load" in on], Samples(program.batch[1:])
    return iter(DataLoader(data, program.batch[0], num_workers=count, pin_memory=pinned))


def copied_ahead(given: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the batches on the GPU; a stream copies the next one beside the step."""
    stream, following = torch.cuda.Stream(), next(given).to(DEVICE)
    while True:
        torch.cuda.current_stream().wait_stream(stream)
        following.record_stream(torch.cuda.current_stream())
        batch = following
        with torch.cuda.stream(stream):
            following = next(given).to(DEVICE, non_blocking=True)
        yield batch


def made_step(program: Program, on: frozenset[str]) -> Step:
    """Return a training step with these changes."""
    given = (copied_ahead if "prefetch" in on else iter)(batches(program, on))
    layout = torch.channels_last if "channels-last" in on else torch.preserve_format
    model = program.model(on).to(DEVICE, memory_format=layout)
    fused = {"fused": True} if "fused-optimizer" in on else {"foreach": False}
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable="graph" in on, **fused)
    forward = torch.compile(model) if "compile" in on else model

    def work(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled="bf16" in on):
            loss = forward(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none="graph" not in on)
        return loss.detach()

    if "graph" in on:
        return graph_step(work, given)

    def step() -> None:
        loss = work(next(given).to(DEVICE, non_blocking="pin" in on).to(memory_format=layout))
        if "sync" not in on:
            loss.item()

    return step


def graph_step(work: Callable[[torch.Tensor], torch.Tensor], given: Iterator[torch.Tensor]) -> Step:
    """Return the step as one CUDA graph, whose input each batch is copied to."""
    x = next(given).to(DEVICE)
    synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            work(x)
    synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = work(x)

    return lambda: (x.copy_(next(given)), graph.replay(), loss.item())


def run(step: Step, on: frozenset[str], steps: int) -> float:
    """Return the ms of a step."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "tf32" in on
    synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return (time.perf_counter() - begin) * 1e3 / steps


def replayed(step: Step, before: float) -> Callable[[str], tuple[str, float] | str]:
    """Return what gives the limit of the base, and the ms of a step as the replay of a change predicts, or why not."""
    import traceview
    from traceview.replay.outcome import replay_changes
    from traceview.replay.prediction import changes_of_run

    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "trace.json")
        with torch.profiler.profile() as profiler:
            run(step, frozenset(), TRACED)
        profiler.export_chrome_trace(file)
        known = changes_of_run(traceview.analyze(file))

    def predict(change: str) -> tuple[str, float] | str:
        if known is None:
            return "the trace has no model"
        made = [each for name, each in known.known.items() if name in change.split("+")]
        after = replay_changes(known.model, made) if len(made) == change.count("+") + 1 else "it does not fit"
        return after if isinstance(after, str) else (known.model.limit, before * after.time / known.model.measured)

    return predict


def pairs(name: str, program: Program, steps: int) -> Iterator[str]:
    """Yield a line for each change of a program."""
    made = {"": frozenset[str]()} | {change: frozenset(change.split("+")) for change in program.changes.split()}
    variants = {change: (made_step(program, on), on) for change, on in made.items()}
    times: dict[str, list[float]] = {change: [] for change in variants}
    for step, on in variants.values():
        run(step, on, WARM_UP)
    for change, (step, on) in [*variants.items()] * ROUNDS:
        times[change].append(run(step, on, steps))
    medians = {change: statistics.median(each) for change, each in times.items()}
    before = medians.pop("")
    predict = replayed(variants[""][0], before) if DEVICE.type == "cuda" else lambda _: "no GPU"
    for change, measured in medians.items():
        expected = predict(change)
        if isinstance(expected, str):
            yield f"# {name}, {change}: {before:.2f} ms before, {measured:.2f} measured; not predicted: {expected}"
            continue
        row = [change, expected[0], name, round(before, 2), round(expected[1], 2), round(measured, 2)]
        yield f"  {json.dumps(row)},"


def main() -> None:
    """Measure the programs until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--tiny", action="store_true")
    for name, usual in (("--seconds", 270), ("--steps", 30)):
        parser.add_argument(name, type=int, default=usual)
    options = parser.parse_args()
    known, end = TINY if options.tiny else PROGRAMS, time.monotonic() + options.seconds
    for name in options.programs or known:
        if time.monotonic() > end:
            break
        try:
            for line in pairs(name, known[name], options.steps):
                print(line, flush=True)
        except Exception as error:
            print(f"# {name}: {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    main()
