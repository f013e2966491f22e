"""What a run is: frozen, checked when made, from YAML and flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

StrategyName = Literal["serial", "pinned", "prefetch", "staged", "graph"]
ModelName = Literal["transformer", "dit", "flow", "mlm"]
Precision = Literal["fp32", "bf16", "fp16"]
Attention = Literal["auto", "flash", "efficient", "math"]
Schedule = Literal["constant", "linear", "cosine"]
PromptForm = Literal["none", "loop", "vectorised"]


@dataclass(frozen=True, slots=True)
class Training:
    """How the run trains."""

    strategy: StrategyName = "prefetch"
    sync: str = "10"
    steps: int = 100
    epochs: int | None = None
    seed: int = 0
    device: str = "auto"
    precision: Precision = "bf16"
    accumulation: int = 1
    clip: float | None = 1.0
    learning_rate: float = 3e-4
    weight_decay: float = 0.01
    schedule: Schedule = "cosine"
    warmup: int = 0
    empty_cache: int = 0
    annotate_modules: int = 0
    retries: int = 3


@dataclass(frozen=True, slots=True)
class Model:
    """What is trained."""

    name: ModelName = "transformer"
    layers: int = 4
    width: int = 1024
    heads: int = 16
    vocabulary: int = 8192
    features: int = 4096
    attention: Attention = "auto"
    checkpointing: bool = False
    compile: bool = False
    prompt: PromptForm = "none"
    prompt_tokens: int = 16
    side: int = 32
    channels: int = 4
    patch: int = 2
    classes: int = 1000


@dataclass(frozen=True, slots=True)
class Data:
    """What it is trained on, and how that reaches the device."""

    path: Path | None = None
    batch: int = 32
    sequence: int = 256
    samples: int = 4096
    workers: int = 0
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    preload: bool = False
    depth: int = 1
    pinned_budget: int = 2 << 30


@dataclass(frozen=True, slots=True)
class Distributed:
    """How several GPUs share the work; used under torchrun."""

    shard: bool = False
    bucket_mb: float = 25.0
    gradient_as_bucket_view: bool = True
    static_graph: bool = False
    no_sync: bool = True


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is kept of a run, and where it goes on."""

    folder: Path | None = None
    every: int = 0
    keep: int = 3
    best: bool = True
    resume: str | None = None


@dataclass(frozen=True, slots=True)
class Monitor:
    """What is said about the run, where, and how often (in steps)."""

    every: int = 10
    jsonl: Path | None = None
    tensorboard: Path | None = None
    wandb: str | None = None
    progress: bool = True
    power_every: int = 10


@dataclass(frozen=True, slots=True)
class Capture:
    """The steps that nsys records under `-c cudaProfilerApi`: [start, stop)."""

    start: int | None = None
    stop: int | None = None


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
