#!/usr/bin/env python3
"""Measure changes of programs that no constant has used, and trace each program before its changes.

    PYTHONPATH=. python benchmarks/studies/change_pairs.py FOLDER [PROGRAM ...] [--seconds 540] [--steps 30] [--tiny]
    python benchmarks/whatif_ranges.py pairs FOLDER

A program and its changes run in one process, in three interleaved rounds without a profiler. FOLDER gets a trace of
each program (NAME.json.gz) and the ms of a step (measured.json), which the second command compares with what `whatif`
predicts. No program begins after --seconds. --tiny measures small programs, also without a GPU. A third of the
programs are a test set: no pair of theirs is in traceview/replay/measured.toml.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

VOCABULARY = 32_000
ROUNDS, WARM_UP, TRACED = 3, 8, 10
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


class Recurrent(nn.Module):
    """A recurrent network that labels tokens."""

    def __init__(self, width: int, layers: int, on: frozenset[str]) -> None:
        super().__init__()
        self.embed, self.label = nn.Embedding(VOCABULARY, width), nn.Linear(2 * width, 64)
        self.layers = nn.LSTM(width, width, layers, batch_first=True, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the labels of tokens (batch, token)."""
        return self.label(self.layers(self.embed(x))[0])


class FirstOutput(nn.Module):
    """A model of transformers, with its first output alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits or the hidden states."""
        return self.model(x)[0]


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
    before: str = ""  # changes that the program has before
    workers: tuple[int, int] | None = None  # of the loader, before and after `load`; None: one batch in host memory
    is_test: bool = False


def images(width: int, depth: int, on: frozenset[str]) -> nn.Module:
    """Return a network of 2D convolutions."""
    blocks = ((nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()) for _ in range(depth))
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *itertools.chain.from_iterable(blocks))


def products(width: int, depth: int, on: frozenset[str]) -> nn.Module:
    """Return a network of linear layers."""
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.SiLU())))


def vision(name: str, on: frozenset[str]) -> nn.Module:
    """Return a model of timm without weights of a training."""
    return import_module("timm").create_model(name, pretrained=False)


def language(family: str, on: frozenset[str], **sizes: int) -> nn.Module:
    """Return a model of transformers, with attention in several kernels or in one (`sdpa`)."""
    library = import_module("transformers")
    config = getattr(library, f"{family}Config")(vocab_size=VOCABULARY, use_cache=False, **sizes)
    attention = "sdpa" if "sdpa" in on else "eager"
    return FirstOutput(library.AutoModel.from_config(config, attn_implementation=attention))


IMAGE = (3, 224, 224)
LAYERS = {"num_hidden_layers": 6}
PROGRAMS: dict[str, Program] = {
    "residual images": Program(partial(images, 96, 8), (64, 3, 96, 96), "channels-last bf16 tf32 pin"),
    "wide images": Program(partial(images, 192, 4), (32, 3, 128, 128), "channels-last bf16 tf32 sync pin+prefetch"),
    "long attention": Program(partial(Attention, 512, 6), (8, 1024, 512), "sdpa bf16 tf32 compile"),
    "short attention": Program(partial(Attention, 256, 12), (4, 64, 256), "graph sdpa", "pin sync"),
    "many layers": Program(partial(products, 128, 60), (256, 128), "graph compile fused-optimizer", "pin sync"),
    "wide layers": Program(partial(products, 4096, 8), (4096, 4096), "tf32 bf16 pin pin+prefetch"),
    "experts": Program(partial(Experts, 128, 64), (64, 32, 128), "batch graph compile", "pin sync"),
    "late loader": Program(partial(products, 1024, 6), (1024, 1024), "load pin load+pin", workers=(1, 8)),
    "loader in balance": Program(partial(images, 64, 6), (64, 3, 96, 96), "load pin load+pin", workers=(3, 10)),
    "ResNet-18": Program(partial(vision, "resnet18"), (64, *IMAGE), "channels-last bf16 tf32 compile pin pin+prefetch"),
    "ConvNeXt": Program(partial(vision, "convnext_tiny"), (48, *IMAGE), "channels-last bf16 tf32 compile pin"),
    "Swin": Program(partial(vision, "swin_tiny_patch4_window7_224"), (32, *IMAGE), "bf16 tf32 compile fused-optimizer"),
    "ResMLP": Program(partial(vision, "resmlp_12_224"), (64, *IMAGE), "tf32 bf16 graph", "pin sync"),
    "GPT-2": Program(partial(language, "GPT2", n_layer=8), (8, 512), "sdpa bf16 tf32 fused-optimizer sync"),
    "DistilBERT": Program(partial(language, "DistilBert"), (8, 64), "sdpa graph bf16", "pin sync"),
    "LSTM": Program(partial(Recurrent, 512, 3), (64, 128), "tf32 bf16 sync"),
    "ResNet-18, loader": Program(partial(vision, "resnet18"), (64, *IMAGE), "load pin load+pin", workers=(4, 12)),
    # The test set.
    "MobileNetV3": Program(
        partial(vision, "mobilenetv3_large_100"), (64, *IMAGE), "channels-last bf16 pin compile", "", None, True
    ),
    "EfficientNet": Program(
        partial(vision, "efficientnet_b0"), (16, 3, 160, 160), "graph channels-last", "pin sync", None, True
    ),
    "RegNet": Program(
        partial(vision, "regnety_008"), (64, *IMAGE), "channels-last tf32 pin+prefetch sync", "", None, True
    ),
    "ViT": Program(
        partial(vision, "vit_small_patch16_224"), (64, *IMAGE), "bf16 tf32 compile pin fused-optimizer", "", None, True
    ),
    "Mixer": Program(partial(vision, "mixer_s16_224"), (64, *IMAGE), "bf16 tf32 pin pin+prefetch", "", None, True),
    "Llama": Program(
        partial(language, "Llama", hidden_size=512, intermediate_size=1536, num_attention_heads=8, **LAYERS),
        (8, 512),
        "sdpa tf32 compile sync fused-optimizer",
        is_test=True,
    ),
    "BERT": Program(
        partial(language, "Bert", **LAYERS), (16, 256), "sdpa bf16 tf32 fused-optimizer sync", is_test=True
    ),
    "small experts": Program(partial(Experts, 64, 32), (32, 16, 64), "batch compile graph", "pin sync", None, True),
    "small LSTM": Program(partial(Recurrent, 128, 2), (16, 64), "fused-optimizer sync", is_test=True),
    "ViT, loader": Program(
        partial(vision, "vit_small_patch16_224"), (64, *IMAGE), "load pin load+pin", workers=(6, 14), is_test=True
    ),
    "products, loader": Program(
        partial(products, 2048, 4), (512, 2048), "load pin load+pin", workers=(2, 8), is_test=True
    ),
}
TINY = {
    "tiny layers": Program(partial(products, 8, 2), (4, 8), "sync fused-optimizer load+pin", workers=(0, 0)),
    "tiny experts": Program(partial(Experts, 4, 2), (2, 3, 4), "batch"),
    "tiny labels": Program(partial(Recurrent, 8, 1), (2, 4), "sync"),
    "tiny attention": Program(partial(Attention, 16, 1), (2, 4, 16), "sdpa bf16"),
}


def batches(program: Program, on: frozenset[str], has_tokens: bool) -> Iterator[torch.Tensor]:
    """Yield batches in host memory: from a loader, or the same one."""
    pinned = "pin" in on and DEVICE.type == "cuda"
    if program.workers is None:
        batch = torch.randint(VOCABULARY, program.batch) if has_tokens else torch.rand(program.batch)
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
    model = program.model(on)
    has_tokens = isinstance(model, (Recurrent, FirstOutput))
    given = (copied_ahead if "prefetch" in on else iter)(batches(program, on, has_tokens))
    layout = torch.channels_last if "channels-last" in on else torch.preserve_format
    model = model.to(DEVICE, memory_format=layout)
    fused = {"fused": True} if "fused-optimizer" in on else {"foreach": "fused-optimizer" not in program.changes}
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
    """Return the step as one CUDA graph, whose input each pinned batch is copied to."""
    x = next(given).to(DEVICE)
    synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            work(x)
    synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work(x)
    return lambda: (x.copy_(next(given), non_blocking=True), graph.replay())


def run(step: Step, on: frozenset[str], steps: int) -> float:
    """Return the ms of a step."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "tf32" in on
    synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return (time.perf_counter() - begin) * 1e3 / steps


def traced(step: Step, on: frozenset[str], file: Path) -> None:
    """Write a trace of some steps."""
    schedule = torch.profiler.schedule(wait=0, warmup=2, active=TRACED)
    with torch.profiler.profile(schedule=schedule) as profiler:
        run(lambda: (step(), profiler.step()), on, 2 + TRACED - 1)
        step()
        synchronize()
    plain = file.with_suffix("")
    profiler.export_chrome_trace(str(plain))
    file.write_bytes(gzip.compress(plain.read_bytes(), 6))
    plain.unlink()


def measured_times(program: Program, steps: int, file: Path) -> dict[str, list[float]]:
    """Return the ms of a step before (`base`) and after each change, in each round; write a trace of the base."""
    before = frozenset(program.before.split())
    made = {"base": before} | {change: before | set(change.split("+")) for change in program.changes.split()}
    variants = {}
    for change, on in made.items():
        try:
            step = made_step(program, on)
            run(step, on, WARM_UP)
            variants[change] = (step, on)
        except RuntimeError as error:  # work that no CUDA graph can hold
            print(f"{file.name}, {change}: {error}", flush=True)
    times: dict[str, list[float]] = {change: [] for change in variants}
    loaded = 2 * max(program.workers or (0,)) + 2  # batches that workers made while other variants ran
    for change, (step, on) in [*variants.items()] * ROUNDS:
        run(step, on, loaded)
        times[change].append(round(run(step, on, steps), 4))
    run(*variants["base"], loaded)
    traced(*variants["base"], file)
    return times


def main() -> None:
    """Measure the programs until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--tiny", action="store_true")
    for name, usual in (("--seconds", 540), ("--steps", 30)):
        parser.add_argument(name, type=int, default=usual)
    options = parser.parse_args()
    known, end = TINY if options.tiny else PROGRAMS, time.monotonic() + options.seconds
    options.folder.mkdir(parents=True, exist_ok=True)
    written = options.folder / "measured.json"
    results = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {}
    for name in options.programs or known:
        if time.monotonic() > end:
            print(f"{name}: not begun", flush=True)
            continue
        torch.manual_seed(0)
        torch.compiler.reset()
        try:
            results[name] = measured_times(known[name], options.steps, options.folder / f"{name}.json.gz")
            print(f"{name}: {results[name]}", flush=True)
        except Exception:
            print(f"{name}: {traceback.format_exc(limit=-3)}", flush=True)
        torch.cuda.empty_cache()
        written.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
