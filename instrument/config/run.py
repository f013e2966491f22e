"""The sections of a configuration about the run around the training: processes, checkpoints, records and captures."""

# ruff: noqa: RUF009 - `setting` makes a dataclass field

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from instrument.config.settings import FieldError, check_section, setting


@dataclass(frozen=True, slots=True)
class Distributed:
    """How several GPUs share the work, under torchrun."""

    shard: bool = setting(False, "shard parameters (FSDP2) instead of replicating them on each GPU (DDP)")
    shard_precision: Literal["fp32", "bf16"] = setting(
        "fp32", "precision in which sharded parameters are gathered; gradients are reduced in fp32 (FSDP2)"
    )
    reshard_after_forward: bool = setting(
        True, "free gathered parameters after the forward and gather them again for the backward (FSDP2)"
    )
    shard_prefetch: int = setting(
        0, "number of blocks whose parameters are gathered ahead; 0: as FSDP2 schedules them", low=0
    )
    bucket_mb: float = setting(25.0, "size of a gradient bucket in MiB (DDP)", above=0)
    gradient_as_bucket_view: bool = setting(True, "store gradients in the buckets, without a copy (DDP)")
    static_graph: bool = setting(False, "declare that every step uses the same parameters (DDP)")
    no_sync: bool = setting(
        True,
        "with accumulation, reduce gradients once per step instead of once per micro-batch",
        flag="ddp-no-sync",
        off="ddp-sync",
    )

    def __post_init__(self) -> None:
        check_section(self)
        if self.shard and self.static_graph:
            reason = "--static-graph applies to DDP, which --shard replaces; use only one of them"
            raise FieldError(reason, "distributed.shard", "distributed.static_graph")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Which checkpoints are written, and where to resume from."""

    folder: Path | None = setting(None, "folder for checkpoints", flag="checkpoint-folder")
    every: int = setting(0, "number of steps between checkpoints; 0: only after the last step", low=0)
    keep: int = setting(3, "number of most recent checkpoints to keep", low=1, flag="checkpoint-keep")
    sharded: bool = setting(
        False,
        "each rank writes its shards in the background (torch.distributed.checkpoint)",
    )
    best: bool = setting(True, "also keep the checkpoint with the lowest loss", flag="checkpoint-best")
    resume: str | None = setting(
        None, "resume from a checkpoint; without a value: the latest", bare="latest", metavar="[latest|best|PATH]"
    )

    def __post_init__(self) -> None:
        check_section(self)
        if self.folder is None and self.every:
            reason = f"every={self.every} needs checkpoint.folder (--checkpoint-folder)"
            raise FieldError(reason, "checkpoint.every")
        if self.folder is None and self.sharded:
            raise FieldError("sharded checkpoints need checkpoint.folder (--checkpoint-folder)", "checkpoint.sharded")
        if self.folder is None and self.resume in ("latest", "best"):
            reason = f"resume={self.resume} needs checkpoint.folder (--checkpoint-folder), or give a path"
            raise FieldError(reason, "checkpoint.resume")


@dataclass(frozen=True, slots=True)
class Monitor:
    """Where metrics of the run are written, and how often."""

    every: int = setting(10, "number of steps between records", low=1)
    jsonl: Path | None = setting(None, "write metrics to this JSON Lines file, one record per line")
    tensorboard: Path | None = setting(None, "write TensorBoard event files to this folder")
    wandb: str | None = setting(
        None, "log to this Weights & Biases project; WANDB_MODE=offline logs locally", metavar="PROJECT"
    )
    progress: bool = setting(True, "show a progress bar, or lines if standard error is not a terminal")
    log_every: int = setting(100, "number of steps between these lines; 0: none", low=0)
    failure_records: Path | None = setting(
        None, "if the run fails, write the GPU's memory history and the collectives of each rank to this folder"
    )

    def __post_init__(self) -> None:
        check_section(self)


@dataclass(frozen=True, slots=True)
class Capture:
    """The steps that a profiler records: from start up to, but not including, stop."""

    start: int | None = setting(
        None, "steps to record, by nsys -c cudaProfilerApi or --profiler: START <= step < STOP", low=0, flag="capture"
    )
    stop: int | None = setting(None, "first step after the capture", low=1, flag="capture")
    profiler: Literal["nsys", "torch"] = setting("nsys", "who records these steps: nsys, or torch.profiler into a file")
    trace_file: Path = setting(Path("trace.json.gz"), "file that torch.profiler writes, for traceview and Perfetto")

    def __post_init__(self) -> None:
        check_section(self)
        if (self.start is None) != (self.stop is None):
            raise FieldError("give both capture.start and capture.stop, or neither", "capture.start", "capture.stop")
        if self.profiler == "torch" and self.start is None:
            raise FieldError("torch.profiler needs the steps to record: --capture START:STOP", "capture.profiler")
        if self.start is not None and self.stop is not None and self.start >= self.stop:
            reason = f"capture {self.start}:{self.stop} is empty; START must be less than STOP"
            raise FieldError(reason, "capture.start", "capture.stop")
