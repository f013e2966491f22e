"""The sections of a configuration: what is trained, and the processes, checkpoints, records and captures of the run."""

# ruff: noqa: RUF009 - `setting` makes a dataclass field

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from instrument.config.settings import REFERENCE, Section, setting
from instrument.config.strategies import STRATEGIES

MODEL_NAMES = ("transformer",)
Precision = Literal["fp32", "bf16", "fp16"]
Schedule = Literal["constant", "linear", "cosine", "plateau"]
Checkpointing = Literal["full", "selective"]
CompileScope = Literal["full", "blocks"]
CompileMode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
OnNan = Literal["stop", "skip", "continue"]

SYNC = {
    "pattern": "auto|every|event|[1-9][0-9]*",
    "expected": "auto, every, event or a number of steps (at least 1)",
    "metavar": "auto|every|N|event",
}
AUTO_BATCH = AUTO_WORKERS = -1  # the number that stands for the word auto
MAX_AUTO_WORKERS = 8  # more processes rarely load faster, and each holds a copy of the data set


def _named(what: str, metavar: str = "MODULE:FUNCTION") -> dict[str, str]:
    """Return the attributes of a setting that names an object of the user's own code."""
    return {"pattern": REFERENCE, "expected": f"package.module:{what}", "metavar": metavar}


DEVICE = {"pattern": r"auto|cpu|cuda(:\d+)?", "expected": "auto, cpu, cuda or cuda:N", "metavar": "auto|cpu|cuda[:N]"}


@dataclass(frozen=True, slots=True)
class Training(Section):
    """How the run trains: strategy, length, precision, optimizer and error handling."""

    strategy: str = setting("prefetch", "how batches reach the GPU and a step is computed", choices=tuple(STRATEGIES))
    sync: str = setting(
        "auto", "steps between waits for the GPU; event: if too far ahead; auto: 10, serial every", **SYNC
    )
    steps: int = setting(200, "number of optimizer steps; --epochs overrides it", low=0)
    epochs: int | None = setting(None, "number of passes over the data, instead of --steps", low=1)
    seed: int = setting(0, "random seed of weights and data, for Python, NumPy and torch", low=0)
    device: str = setting("auto", "device to train on; auto uses a GPU if there is one", **DEVICE)
    precision: Precision = setting("bf16", "fp32, or autocast to bf16 or fp16", cpu="fp32")
    accumulation: int = setting(1, "number of micro-batches per optimizer step", low=1)
    clip: float | None = setting(1.0, "clip the gradient norm to this value; none: no clipping", above=0)
    learning_rate: float = setting(3e-4, "learning rate after the warm-up", above=0)
    optimizer: str = setting(
        "adamw", "adamw, or what returns an optimizer, alone or with a scheduler, for parameter groups",
        choices=("adamw",), **_named("function", "adamw|MODULE:FUNCTION"),
    )  # fmt: skip
    weight_decay: float = setting(0.01, "weight decay; biases, norms and others of one dimension have none", low=0)
    schedule: Schedule = setting("cosine", "learning rate after the warm-up; plateau: half without improvement")
    patience: int = setting(3, "number of validations without improvement that plateau accepts", low=0)
    validate_every: int = setting(0, "number of steps between measurements of the validation loss; 0: never", low=0)
    warmup: int = setting(0, "number of steps in which the learning rate rises from 0", low=0)
    empty_cache: int = setting(0, "empty the CUDA allocator's cache every N steps; 0: never", low=0)
    annotate_modules: int = setting(0, "add NVTX ranges for modules down to this depth; 0: none", low=0)
    retries: int = setting(3, "number of retries after an out-of-memory error or a transient loader error", low=0)
    hooks: str | None = setting(None, "a subclass of instrument.Hooks", **_named("class", "MODULE:CLASS"))
    on_nan: OnNan = setting("stop", "if a loss or gradient is not finite: stop, skip the update, or apply it")


@dataclass(frozen=True, slots=True)
class Model(Section):
    """The model."""

    name: str = setting(
        "transformer", "model architecture, or what returns a torch.nn.Module", flag="model", choices=MODEL_NAMES,
        **_named("function", f"{'|'.join(MODEL_NAMES)}|MODULE:FUNCTION"),
    )  # fmt: skip
    loss: str | None = setting(
        None, "loss(outputs, targets) or loss(model, batch); none: the model returns it", **_named("function")
    )
    layers: int = setting(4, "number of blocks", low=1, cpu=2)
    width: int = setting(1024, "hidden size", low=1, cpu=256)
    heads: int = setting(16, "number of attention heads; must divide the width", low=1)
    vocabulary: int = setting(8192, "vocabulary size in tokens", low=2, cpu=1024)
    features: int = setting(4096, "input features per position", low=1, cpu=512)
    checkpointing: Checkpointing | None = setting(
        None, "recompute activations to save memory: of full blocks (no value), or selective", bare="full"
    )
    compile: CompileScope | None = setting(None, "torch.compile the full model (no value) or its blocks", bare="full")
    compile_mode: CompileMode = setting("default", "mode of torch.compile")
    compile_dynamic: bool | None = setting(None, "whether torch.compile expects changing shapes; default: it finds out")


@dataclass(frozen=True, slots=True)
class Data(Section):
    """The training data and how it is loaded."""

    path: Path | None = setting(
        None, "a Dataset, a DataLoader, or what returns it; none: synthetic data", flag="data", metavar="MODULE:NAME"
    )
    batch: int = setting(
        128,
        "samples per batch and GPU; auto: as many as fit",
        low=1,
        words={"auto": AUTO_BATCH},
        metavar="N|auto",
        cpu=4,
    )
    sequence: int = setting(256, "number of positions per sample", low=1, cpu=64)
    samples: int = setting(4096, "number of synthetic samples per epoch", low=1)
    distinct_batches: int = setting(3, "synthetic batches that are kept and repeated; 0: make each sample anew", low=0)
    workers: int = setting(
        AUTO_WORKERS, "loader processes; auto: one for each core but one, at most 8, none for data in memory",
        low=0, words={"auto": AUTO_WORKERS}, metavar="N|auto",
    )  # fmt: skip
    prefetch_factor: int | None = setting(None, "number of batches each worker loads ahead", low=1)
    persistent_workers: bool = setting(False, "keep the loader processes between epochs")
    preload: bool = setting(False, "generate all synthetic samples before the first step and keep them in memory")
    depth: int = setting(1, "number of batches copied ahead (prefetch, streams, staged, graph)", low=1)
    pinned_budget: int = setting(2 << 30, "maximum size of pinned host memory in bytes", low=1)
    validation: Path | None = setting(None, "data for --validate-every; none: of another seed", metavar="MODULE:NAME")
    validation_batches: int = setting(8, "number of batches of each rank in a validation, at most", low=1)

    def with_workers(self, most: int = MAX_AUTO_WORKERS) -> Data:
        """Return the same data with a number of workers in place of "auto", at most `most`."""
        if self.workers != AUTO_WORKERS:
            return self
        cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        workers = 0 if self.path is None else max(0, min(cores - 1, most))
        if workers:
            return replace(self, workers=workers)
        return replace(self, workers=0, prefetch_factor=None, persistent_workers=False)

    @property
    def kept(self) -> bool:
        """Whether all batches are in memory before the first step."""
        return self.preload or (self.path is None and self.distinct_batches > 0)

    def on_demand(self) -> Data:
        """Return the same data, generated or read in this process when it is needed."""
        return replace(
            self, workers=0, prefetch_factor=None, persistent_workers=False, preload=False, distinct_batches=0
        )


@dataclass(frozen=True, slots=True)
class Distributed(Section):
    """How several GPUs share the work, under torchrun."""

    shard: bool = setting(False, "shard parameters (FSDP2) instead of replicating them on each GPU (DDP)")
    shard_precision: Literal["fp32", "bf16"] = setting("fp32", "precision of gathered parameters (FSDP2)")
    reshard_after_forward: bool = setting(True, "free gathered parameters between forward and backward (FSDP2)")
    shard_prefetch: int = setting(0, "blocks whose parameters are gathered ahead; 0: FSDP2 decides", low=0)
    bucket_mb: float = setting(25.0, "size of a gradient bucket in MiB (DDP)", above=0)


@dataclass(frozen=True, slots=True)
class Checkpoint(Section):
    """Which checkpoints are written, and where to resume from."""

    folder: Path | None = setting(None, "folder for checkpoints", flag="checkpoint-folder")
    every: int = setting(0, "number of steps between checkpoints; 0: only after the last step", low=0)
    keep: int = setting(3, "number of most recent checkpoints to keep", low=1, flag="checkpoint-keep")
    sharded: bool = setting(False, "each rank writes its shards in the background (torch.distributed.checkpoint)")
    best: bool = setting(True, "also keep the checkpoint with the lowest loss", flag="checkpoint-best")
    resume: str | None = setting(None, "resume from; no value: latest", bare="latest", metavar="latest|best|PATH")


@dataclass(frozen=True, slots=True)
class Monitor(Section):
    """Where metrics of the run are written, and how often."""

    every: int = setting(10, "number of steps between records", low=1)
    jsonl: Path | None = setting(None, "write metrics to this JSON Lines file, one record per line")
    tensorboard: Path | None = setting(None, "write TensorBoard event files to this folder")
    wandb: str | None = setting(None, "log to this project of Weights & Biases", metavar="PROJECT")
    progress: bool = setting(True, "show a progress bar, or lines if standard error is not a terminal")
    log_every: int = setting(100, "number of steps between these lines; 0: none", low=0)


@dataclass(frozen=True, slots=True)
class Capture(Section):
    """The steps that a profiler records: from start up to, but not including, stop."""

    start: int | None = setting(None, "steps START <= step < STOP to record", low=0, flag="capture")
    stop: int | None = setting(None, "first step after the capture", low=1, flag="capture")
    profiler: Literal["nsys", "torch"] = setting("nsys", "who records these steps: nsys, or torch.profiler into a file")
    trace_file: Path = setting(Path("trace.json.gz"), "file that torch.profiler writes, for traceview and Perfetto")
