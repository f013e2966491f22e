"""The configuration of a run, read from a YAML file and flags and checked when it is created.

    training:
      strategy: prefetch
      steps: 200
    monitor:
      jsonl: run.jsonl

Each section is a frozen dataclass. A field is a key of its section in the YAML file and a flag of the commands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from instrument.config.sections import Capture, Checkpoint, Data, Distributed, Model, Monitor, Training
from instrument.config.settings import FieldError, is_reference
from instrument.config.strategies import STRATEGIES


@dataclass(frozen=True, slots=True)
class Config:
    """The complete configuration of a run."""

    training: Training = field(default_factory=Training)
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    distributed: Distributed = field(default_factory=Distributed)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    monitor: Monitor = field(default_factory=Monitor)
    capture: Capture = field(default_factory=Capture)

    def __post_init__(self) -> None:
        check_conflicts(self)

    @property
    def writes_shards(self) -> bool:
        """Whether each rank writes its own shards of a checkpoint; with a sharded model, no rank has all weights."""
        return self.checkpoint.sharded or self.distributed.shard


def to_dict(config: Config) -> dict[str, dict[str, Any]]:
    """Return a dictionary of sections with values that JSON can hold; paths become text."""
    return {
        section: {name: str(value) if isinstance(value, Path) else value for name, value in fields.items()}
        for section, fields in asdict(config).items()
    }


def _captures_step(run: Config) -> bool:
    return STRATEGIES[run.training.strategy].captures_step


def _is_own(run: Config) -> bool:
    return ":" in run.model.name


def _ends_before(run: Config, step: int) -> bool:
    """Return whether a run whose length is given in steps ends before `step` steps are done."""
    return run.training.epochs is None and run.training.steps < step


# Settings that do not work together: their names, whether a configuration has the conflict, and how to resolve it.
CONFLICTS: tuple[tuple[str, Callable[[Config], object], str], ...] = (
    ("model.name data.path", lambda run: _is_own(run) != is_reference(run.data.path),
     "a model of your own and data of your own need each other; use --model MODULE:FUNCTION --data MODULE:NAME"),
    ("model.checkpointing model.name", lambda run: run.model.checkpointing is not None and _is_own(run),
     "only the package's models have it as a setting; call torch.utils.checkpoint in your own model, "
     "not with --strategy staged"),
    ("model.loss model.name", lambda run: run.model.loss is not None and not _is_own(run),
     "the package's models have their own losses; use --loss with --model MODULE:FUNCTION"),
    ("model.width model.heads", lambda run: run.model.width % run.model.heads,
     "the heads must divide the width"),
    ("training.strategy model.compile", lambda run: run.model.compile is not None and _captures_step(run),
     "a CUDA graph cannot hold a compiled model; remove --compile or use --strategy prefetch"),
    ("training.strategy training.accumulation", lambda run: run.training.accumulation != 1 and _captures_step(run),
     "a CUDA graph holds one backward pass per step; use --accumulation 1 or --strategy prefetch"),
    ("training.strategy training.precision", lambda run: run.training.precision == "fp16" and _captures_step(run),
     "fp16 loss scaling needs a decision on the host in each step, which a CUDA graph cannot hold; "
     "use --precision bf16 or --strategy prefetch"),
    ("training.strategy training.optimizer", lambda run: is_reference(run.training.optimizer) and _captures_step(run),
     "a CUDA graph holds the trainer's own optimizer; use --strategy prefetch"),
    ("distributed.shard_precision training.precision",
     lambda run: run.distributed.shard_precision == "bf16" and run.training.precision != "bf16",
     "parameters that are gathered in bf16 are computed with in bf16; use --precision bf16"),
    ("training.schedule training.validate_every",
     lambda run: run.training.schedule == "plateau" and not run.training.validate_every,
     "plateau needs a validation loss; use --validate-every N"),
    ("training.validate_every data.path",
     lambda run: run.training.validate_every and run.data.path is not None and run.data.validation is None,
     "the run needs data that it does not train on; use --validation with data of the same kind"),
    ("training.warmup training.steps",
     lambda run: run.training.steps and _ends_before(run, run.training.warmup + 1),
     "the run ends before the warm-up does; use fewer warm-up steps or more steps"),
    ("data.preload data.path", lambda run: run.data.preload and run.data.path is not None,
     "synthetic samples are preloaded; a data set of your own can keep its samples itself"),
    ("data.prefetch_factor data.workers", lambda run: run.data.prefetch_factor and not run.data.workers,
     "prefetch_factor needs workers of at least 1"),
    ("data.persistent_workers data.workers", lambda run: run.data.persistent_workers and not run.data.workers,
     "persistent_workers needs workers of at least 1"),
    ("checkpoint.every", lambda run: run.checkpoint.folder is None and run.checkpoint.every,
     "needs checkpoint.folder (--checkpoint-folder)"),
    ("checkpoint.sharded", lambda run: run.checkpoint.folder is None and run.checkpoint.sharded,
     "needs checkpoint.folder (--checkpoint-folder)"),
    ("checkpoint.resume", lambda run: run.checkpoint.folder is None and run.checkpoint.resume in ("latest", "best"),
     "needs checkpoint.folder (--checkpoint-folder), or give a path"),
    ("capture.start capture.stop", lambda run: (run.capture.start is None) != (run.capture.stop is None),
     "give both capture.start and capture.stop, or neither"),
    ("capture.start capture.stop",
     lambda run: run.capture.start is not None and (run.capture.stop or 0) <= run.capture.start,
     "the capture is empty; START must be less than STOP"),
    ("capture.profiler", lambda run: run.capture.profiler == "torch" and run.capture.start is None,
     "torch.profiler needs the steps to record: --capture START:STOP"),
    ("capture.stop training.steps", lambda run: _ends_before(run, run.capture.stop or 0),
     "the run ends before the capture does; use more steps or an earlier capture"),
)  # fmt: skip


def check_conflicts(config: Config) -> None:
    """Raise FieldError for the first conflict of a configuration."""
    for names, applies, reason in CONFLICTS:
        if applies(config):
            keys = names.split()
            values = " with ".join(str(attrgetter(key)(config)) for key in keys)
            raise FieldError(f"{values}: {reason}", *keys)
