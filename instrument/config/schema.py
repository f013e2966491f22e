"""What a run is: frozen, checked when made, from YAML and flags.

    training:
      strategy: prefetch
      steps: 200
    monitor:
      jsonl: run.jsonl

Each section is a dataclass. A field is a key of its section in the file, and a flag of the command (see flags.py).
"""

# ruff: noqa: RUF009 - `setting` makes a dataclass field

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from instrument.config import loading
from instrument.config.conflicts import check_together
from instrument.config.settings import FieldError, check, setting
from instrument.strategies import STRATEGIES

ModelName = Literal["transformer", "dit", "flow", "mlm"]
Precision = Literal["fp32", "bf16", "fp16"]
Attention = Literal["auto", "flash", "efficient", "math"]
Schedule = Literal["constant", "linear", "cosine"]
PromptForm = Literal["none", "loop", "vectorised"]
OnNan = Literal["stop", "skip", "continue"]

SYNC = {
    "pattern": "auto|every|event|[1-9][0-9]*",
    "expected": "auto, every, event or a number of steps of at least 1",
    "metavar": "auto|every|N|event",
}
DEVICE = {"pattern": r"auto|cpu|cuda(:\d+)?", "expected": "auto, cpu, cuda or cuda:N", "metavar": "auto|cpu|cuda[:N]"}


@dataclass(frozen=True, slots=True)
class Training:
    """How the run trains."""

    strategy: str = setting(
        "prefetch", "how batches reach the device and are computed", choices=tuple(STRATEGIES)
    )
    sync: str = setting(
        "auto", "when the host waits: each step, N steps, or on an event; auto: every for serial, else 10", **SYNC
    )
    steps: int = setting(200, "optimizer steps to take, unless --epochs is given", low=0)
    epochs: int | None = setting(None, "passes over the data, instead of --steps", low=1)
    seed: int = setting(0, "what weights and data follow from: seeds Python, NumPy and torch", low=0)
    device: str = setting("auto", "auto takes the GPU where there is one", **DEVICE)
    precision: Precision = setting("bf16", "fp32, or autocast to half precision")
    accumulation: int = setting(1, "backward passes per optimizer step", low=1)
    clip: float | None = setting(1.0, "largest norm of the gradient; none for no clipping", above=0)
    learning_rate: float = setting(3e-4, "learning rate after the warm-up", above=0)
    weight_decay: float = setting(0.01, "AdamW's weight decay", low=0)
    schedule: Schedule = setting("cosine", "learning rate after the warm-up, to the end of the run")
    warmup: int = setting(0, "steps in which the learning rate rises from 0", low=0)
    empty_cache: int = setting(0, "empty the CUDA allocator's cache each N steps; 0 for never", low=0)
    annotate_modules: int = setting(0, "depth to which modules get NVTX ranges of their own; 0 for none", low=0)
    retries: int = setting(3, "attempts after an out-of-memory or a transient loader error", low=0)
    on_nan: OnNan = setting(
        "stop", "after a loss or gradient that is not finite: stop, skip its update, or continue with it"
    )

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained."""

    name: ModelName = setting("transformer", "kind of model", flag="model")
    layers: int = setting(4, "blocks", low=1, cpu=2)
    width: int = setting(1024, "features inside a block", low=1, cpu=256)
    heads: int = setting(16, "attention heads; must divide the width", low=1)
    vocabulary: int = setting(8192, "tokens known (transformer, mlm)", low=2, cpu=1024)
    features: int = setting(4096, "floats per position of the input (transformer)", low=1, cpu=512)
    attention: Attention = setting("auto", "backend of scaled_dot_product_attention; auto leaves it to torch")
    checkpointing: bool = setting(False, "compute activations again in backward, to save memory")
    compile: bool = setting(False, "use torch.compile")
    prompt: PromptForm = setting("none", "how apply_prompt puts the prompt in: Python loop or vectorised (mlm)")
    prompt_tokens: int = setting(16, "length of the prompt (mlm)", low=1)
    side: int = setting(32, "pixels along an image's side (dit, flow)", low=1)
    channels: int = setting(4, "channels of an image (dit, flow)", low=1)
    patch: int = setting(2, "pixels along a patch's side; must divide the image's (dit, flow)", low=1)
    classes: int = setting(1000, "labels (dit, flow)", low=1)

    def __post_init__(self) -> None:
        check(self)
        if self.width % self.heads:
            reason = f"a width of {self.width} cannot be split into {self.heads} equal heads"
            raise FieldError(reason, "model.width", "model.heads")
        if self.name in ("dit", "flow") and self.side % self.patch:
            reason = f"a side of {self.side} pixels cannot be split into patches of {self.patch}"
            raise FieldError(reason, "model.side", "model.patch")


@dataclass(frozen=True, slots=True)
class Data:
    """What it is trained on, and how that reaches the device."""

    path: Path | None = setting(None, "array (.npy) or text file; seeded synthetic data where none", flag="data")
    batch: int = setting(128, "samples per batch and GPU", low=1, cpu=4)
    sequence: int = setting(256, "positions per sample (transformer, mlm)", low=1, cpu=64)
    samples: int = setting(4096, "synthetic samples per epoch", low=1)
    distinct_batches: int = setting(
        3,
        "synthetic batches that are made before the first step, kept in memory within pinned_budget and repeated; "
        "0 makes each sample when it is needed",
        low=0,
    )
    workers: int = setting(0, "loader processes; 0 loads in the training process", low=0)
    prefetch_factor: int | None = setting(None, "batches each worker loads ahead", low=1)
    persistent_workers: bool = setting(False, "keep the workers between epochs")
    preload: bool = setting(False, "make or read all samples before the first step and keep them")
    depth: int = setting(1, "batches copied ahead of the one that computes (prefetch, staged)", low=1)
    pinned_budget: int = setting(2 << 30, "bytes of host memory that may be pinned", low=1)

    def __post_init__(self) -> None:
        check(self)
        for name in ("prefetch_factor", "persistent_workers"):
            if getattr(self, name) and not self.workers:
                raise FieldError("needs loader processes: give workers of at least 1", f"data.{name}", "data.workers")

    @property
    def kept(self) -> bool:
        """Whether all batches exist in memory before the first step."""
        return self.preload or (self.path is None and self.distinct_batches > 0)

    def on_demand(self) -> Data:
        """Return the same data, made or read in this process at the moment it is needed."""
        return replace(
            self, workers=0, prefetch_factor=None, persistent_workers=False, preload=False, distinct_batches=0
        )


@dataclass(frozen=True, slots=True)
class Distributed:
    """How several GPUs share the work; used under torchrun."""

    shard: bool = setting(False, "shard parameters (FSDP2) instead of copying them to each GPU (DDP)")
    bucket_mb: float = setting(25.0, "MiB of gradients reduced together (DDP)", above=0)
    gradient_as_bucket_view: bool = setting(True, "let gradients live in the buckets (DDP)")
    static_graph: bool = setting(False, "promise that each step uses the same parameters (DDP)")
    no_sync: bool = setting(
        True, "reduce gradients once per step under accumulation, not per backward", flag="ddp-no-sync", off="ddp-sync"
    )

    def __post_init__(self) -> None:
        check(self)
        if self.shard and self.static_graph:
            reason = "a static graph is a promise to DDP, which --shard replaces: take one of them"
            raise FieldError(reason, "distributed.shard", "distributed.static_graph")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is kept of a run, and where it goes on."""

    folder: Path | None = setting(None, "where checkpoints are kept", flag="checkpoint-folder")
    every: int = setting(0, "steps between checkpoints; 0 for none but the last", low=0)
    keep: int = setting(3, "how many of the newest are kept", low=1, flag="checkpoint-keep")
    best: bool = setting(True, "keep the one with the lowest loss as well", flag="checkpoint-best")
    resume: str | None = setting(
        None, "go on from a checkpoint; alone: the latest", bare="latest", metavar="[latest|best|PATH]"
    )

    def __post_init__(self) -> None:
        check(self)
        if self.folder is None and self.every:
            raise FieldError(f"every {self.every} steps to nowhere: give a folder", "checkpoint.every")
        if self.folder is None and self.resume in ("latest", "best"):
            reason = f"{self.resume} of which folder? Give checkpoint.folder (--checkpoint-folder), or a path"
            raise FieldError(reason, "checkpoint.resume")


@dataclass(frozen=True, slots=True)
class Monitor:
    """What is said about the run, where, and how often (in steps)."""

    every: int = setting(10, "steps between records", low=1)
    jsonl: Path | None = setting(None, "file of JSON lines, one a record")
    tensorboard: Path | None = setting(None, "folder of TensorBoard event files")
    wandb: str | None = setting(None, "Weights & Biases project; WANDB_MODE=offline works", metavar="PROJECT")
    progress: bool = setting(True, "show a progress bar on a terminal")
    power_every: int = setting(10, "steps between readings of power and utilisation; 0 for never", low=0)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Capture:
    """The steps that nsys records under `-c cudaProfilerApi`: [start, stop)."""

    start: int | None = setting(None, "first step that nsys records", low=0, flag="capture")
    stop: int | None = setting(None, "first step that it does not", low=1, flag="capture")

    def __post_init__(self) -> None:
        check(self)
        if (self.start is None) != (self.stop is None):
            raise FieldError("give both or neither", "capture.start", "capture.stop")
        if self.start is not None and self.stop is not None and self.start >= self.stop:
            reason = f"the capture of {self.start}:{self.stop} would end before it starts"
            raise FieldError(reason, "capture.start", "capture.stop")


@dataclass(frozen=True, slots=True)
class Config:
    """One run, whole."""

    training: Training = field(default_factory=Training)
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    distributed: Distributed = field(default_factory=Distributed)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    monitor: Monitor = field(default_factory=Monitor)
    capture: Capture = field(default_factory=Capture)

    def __post_init__(self) -> None:
        check_together(self)


def load(path: Path | None, flags: Mapping[str, object]) -> Config:
    """Return the configuration of a YAML file, with the flags over it, and defaults under both.

    A run without a GPU has smaller defaults (`Setting.cpu`), so that a step takes a fraction of a second there.

    Args:
        path: the file; None for none.
        flags: long name with underscores ("learning_rate", "monitor_every", "capture") -> value; None is not given.

    Raises:
        ConfigError: one line naming the file or flag, the value, and what is allowed.
    """
    return loading.merge(Config, path, flags, lambda values: _is_cpu(str(values.get("training.device", "auto"))))


def _is_cpu(device: str) -> bool:
    if device == "auto":
        try:
            import torch  # not at the top: the configuration works without torch
        except ImportError:
            return True
        return not torch.cuda.is_available()
    return device == "cpu"


def from_dict(values: Mapping[str, Any]) -> Config:
    """Return the configuration that `to_dict` described, such as a checkpoint's.

    Raises:
        ConfigError: a key or a value is unknown or impossible.
    """
    return loading.from_sections(Config, values)


def to_dict(config: Config) -> dict[str, dict[str, Any]]:
    """Return sections of fields as JSON knows them: paths are text."""
    return {
        section: {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
        for section, fields in asdict(config).items()
    }
