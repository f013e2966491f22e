"""The sections of a configuration about what is trained: the training itself, the model and the data."""

# ruff: noqa: RUF009 - `setting` makes a dataclass field

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from instrument.config.settings import REFERENCE, FieldError, check_section, setting
from instrument.config.strategies import STRATEGIES

MODEL_NAMES = ("transformer",)
Precision = Literal["fp32", "bf16", "fp16"]
Attention = Literal["auto", "flash", "efficient", "math"]
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
AUTO_BATCH = 0
AUTO_WORKERS = -1
MAX_AUTO_WORKERS = 8  # more processes rarely load faster, and each holds a copy of the data set
DEVICE = {"pattern": r"auto|cpu|cuda(:\d+)?", "expected": "auto, cpu, cuda or cuda:N", "metavar": "auto|cpu|cuda[:N]"}


@dataclass(frozen=True, slots=True)
class Training:
    """How the run trains: strategy, length, precision, optimizer and error handling."""

    strategy: str = setting(
        "prefetch",
        "how batches reach the GPU and how a step is computed; staged is experimental",
        choices=tuple(STRATEGIES),
    )
    sync: str = setting(
        "auto",
        "when the host waits for the GPU: every step, every N steps, or only if it is too far ahead (event); "
        "auto: every for serial, 10 for the others",
        **SYNC,
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
        "adamw",
        "adamw, or a class or function of your own that takes parameter groups and returns an optimizer, or an "
        "optimizer and its scheduler",
        choices=("adamw",),
        pattern=REFERENCE,
        expected="package.module:function",
        metavar="adamw|MODULE:FUNCTION",
    )
    weight_decay: float = setting(
        0.01, "weight decay; parameters of one dimension, such as biases and norms, have none", low=0
    )
    schedule: Schedule = setting(
        "cosine", "shape of the learning rate after the warm-up; plateau: half after validations without improvement"
    )
    patience: int = setting(3, "number of validations without improvement that plateau accepts", low=0)
    validate_every: int = setting(0, "number of steps between measurements of the validation loss; 0: never", low=0)
    warmup: int = setting(0, "number of steps in which the learning rate rises from 0", low=0)
    empty_cache: int = setting(0, "empty the CUDA allocator's cache every N steps; 0: never", low=0)
    annotate_modules: int = setting(0, "add NVTX ranges for modules down to this depth; 0: none", low=0)
    retries: int = setting(3, "number of retries after an out-of-memory error or a transient loader error", low=0)
    hooks: str | None = setting(
        None,
        "a class of your own with methods that a run calls, such as after_step; see instrument.Hooks",
        pattern=REFERENCE,
        expected="package.module:class",
        metavar="MODULE:CLASS",
    )
    on_nan: OnNan = setting(
        "stop", "what to do if a loss or gradient is not finite: stop the run, skip the update, or apply it"
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True)
class Model:
    """The model."""

    name: str = setting(
        "transformer",
        "model architecture, or a function of your own that returns a torch.nn.Module",
        flag="model",
        choices=MODEL_NAMES,
        pattern=REFERENCE,
        expected="package.module:function",
        metavar=f"{'|'.join(MODEL_NAMES)}|MODULE:FUNCTION",
    )
    loss: str | None = setting(
        None,
        "loss of your own model: a function of outputs and targets, or of model and batch; "
        "none: the model returns its loss",
        pattern=REFERENCE,
        expected="package.module:function",
        metavar="MODULE:FUNCTION",
    )
    layers: int = setting(4, "number of blocks", low=1, cpu=2)
    width: int = setting(1024, "hidden size", low=1, cpu=256)
    heads: int = setting(16, "number of attention heads; must divide the width", low=1)
    vocabulary: int = setting(8192, "vocabulary size in tokens", low=2, cpu=1024)
    features: int = setting(4096, "input features per position", low=1, cpu=512)
    attention: Attention = setting("auto", "backend of scaled_dot_product_attention; auto: torch selects it")
    checkpointing: Checkpointing | None = setting(
        None,
        "recompute activations in the backward pass to save memory: of full blocks (without a value), or selective: "
        "all but the results of matrix products and attention",
        bare="full",
    )
    compile: CompileScope | None = setting(
        None,
        "compile with torch.compile: the full model (without a value), or its blocks, each once, which starts sooner",
        bare="full",
    )
    compile_mode: CompileMode = setting("default", "mode of torch.compile")
    compile_dynamic: bool | None = setting(None, "whether torch.compile expects changing shapes; default: it finds out")
    float8: bool = setting(False, "compute linear layers in float8 (needs torchao and an H100 or newer)")

    def __post_init__(self) -> None:
        check_section(self)
        if self.width % self.heads:
            reason = f"width={self.width} is not divisible by heads={self.heads}"
            raise FieldError(reason, "model.width", "model.heads")


@dataclass(frozen=True, slots=True)
class Data:
    """The training data and how it is loaded."""

    path: Path | None = setting(
        None,
        "for a model of your own: a Dataset or a DataLoader, or a function that returns it; none: synthetic data",
        flag="data",
        metavar="MODULE:NAME",
    )
    batch: int = setting(
        128,
        "number of samples per batch and GPU; auto: as many as fit into the GPU's memory",
        low=0,
        words={"auto": AUTO_BATCH},
        metavar="N|auto",
        cpu=4,
    )
    sequence: int = setting(256, "number of positions per sample", low=1, cpu=64)
    samples: int = setting(4096, "number of synthetic samples per epoch", low=1)
    distinct_batches: int = setting(
        3,
        "number of synthetic batches that are generated before the first step, kept in memory (up to pinned_budget) "
        "and repeated; 0: generate each sample when it is needed",
        low=0,
    )
    workers: int = setting(
        AUTO_WORKERS,
        "number of loader processes; 0: load in the training process; auto: one for each CPU core but one, at most 8, "
        "and 0 for data that is in memory",
        low=AUTO_WORKERS,
        words={"auto": AUTO_WORKERS},
        metavar="N|auto",
    )
    prefetch_factor: int | None = setting(None, "number of batches each worker loads ahead", low=1)
    persistent_workers: bool = setting(False, "keep the loader processes between epochs")
    preload: bool = setting(False, "generate all synthetic samples before the first step and keep them in memory")
    depth: int = setting(1, "number of batches copied ahead (prefetch, staged, graph)", low=1)
    pinned_budget: int = setting(2 << 30, "maximum size of pinned host memory in bytes", low=1)
    pin_memory: bool | None = setting(
        None, "whether batches are in pinned memory; the strategy decides, and must agree"
    )
    validation: Path | None = setting(
        None, "data for --validate-every, like --data; none: synthetic data of another seed", metavar="MODULE:NAME"
    )
    validation_batches: int = setting(8, "number of batches of each rank in a validation, at most", low=1)

    def __post_init__(self) -> None:
        check_section(self)
        if self.preload and self.path is not None:
            reason = "synthetic samples are preloaded; a data set of your own can keep its samples itself"
            raise FieldError(reason, "data.preload", "data.path")
        for name in ("prefetch_factor", "persistent_workers"):
            if getattr(self, name) and not self.workers:
                raise FieldError(f"{name} needs workers of at least 1", f"data.{name}", "data.workers")

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
