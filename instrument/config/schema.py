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


@dataclass(frozen=True, slots=True)
class Conflict:
    """Settings that do not work together.

    Attributes:
        keys: the settings, as "section.field".
        applies: returns whether a configuration has the conflict.
        reason: what is wrong and how to resolve it.
    """

    keys: tuple[str, ...]
    applies: Callable[[Config], bool]
    reason: str


def _captures_step(config: Config) -> bool:
    return STRATEGIES[config.training.strategy].captures_step


def _disagrees_on_pinning(config: Config) -> bool:
    wanted = config.data.pin_memory
    return wanted is not None and wanted != (STRATEGIES[config.training.strategy].pins != "none")


def _has_fixed_length(config: Config) -> bool:
    """Return whether the run's length is given in steps."""
    return config.training.epochs is None


def _is_own(config: Config) -> bool:
    return ":" in config.model.name


CONFLICTS = (
    Conflict(
        ("model.name", "data.path"),
        lambda config: _is_own(config) != is_reference(config.data.path),
        "a model of your own and data of your own need each other; use --model MODULE:FUNCTION --data MODULE:NAME",
    ),
    Conflict(
        ("model.checkpointing", "model.name"),
        lambda config: config.model.checkpointing is not None and _is_own(config),
        "only the package's models have it as a setting; call torch.utils.checkpoint in your own model, "
        "not with --strategy staged",
    ),
    Conflict(
        ("model.loss", "model.name"),
        lambda config: config.model.loss is not None and not _is_own(config),
        "the package's models have their own losses; use --loss with --model MODULE:FUNCTION",
    ),
    Conflict(
        ("training.strategy", "model.compile"),
        lambda config: config.model.compile is not None and _captures_step(config),
        "a CUDA graph cannot hold a compiled model; remove --compile or use --strategy prefetch",
    ),
    Conflict(
        ("training.strategy", "training.accumulation"),
        lambda config: config.training.accumulation != 1 and _captures_step(config),
        "a CUDA graph holds one backward pass per step; use --accumulation 1 or --strategy prefetch",
    ),
    Conflict(
        ("training.strategy", "training.precision"),
        lambda config: config.training.precision == "fp16" and _captures_step(config),
        "fp16 loss scaling needs a decision on the host in each step, which a CUDA graph cannot hold; "
        "use --precision bf16 or --strategy prefetch",
    ),
    Conflict(
        ("training.strategy", "training.optimizer"),
        lambda config: is_reference(config.training.optimizer) and _captures_step(config),
        "a CUDA graph holds the trainer's own optimizer; use --strategy prefetch",
    ),
    Conflict(
        ("training.strategy", "data.pin_memory"),
        _disagrees_on_pinning,
        "every strategy but serial copies from pinned memory; use --strategy serial without pinned memory, and "
        "another one with it",
    ),
    Conflict(
        ("distributed.shard_precision", "training.precision"),
        lambda config: config.distributed.shard_precision == "bf16" and config.training.precision != "bf16",
        "parameters that are gathered in bf16 are computed with in bf16; use --precision bf16",
    ),
    Conflict(
        ("training.schedule", "training.validate_every"),
        lambda config: config.training.schedule == "plateau" and not config.training.validate_every,
        "plateau needs a validation loss; use --validate-every N",
    ),
    Conflict(
        ("training.validate_every", "data.path"),
        lambda config: bool(
            config.training.validate_every and config.data.path is not None and config.data.validation is None
        ),
        "the run needs data that it does not train on; use --validation with data of the same kind",
    ),
    Conflict(
        ("training.warmup", "training.steps"),
        lambda config: _has_fixed_length(config) and 0 < config.training.steps <= config.training.warmup,
        "the run ends before the warm-up does; use fewer warm-up steps or more steps",
    ),
    Conflict(
        ("capture.stop", "training.steps"),
        lambda config: _has_fixed_length(config) and (config.capture.stop or 0) > config.training.steps,
        "the run ends before the capture does; use more steps or an earlier capture",
    ),
)


def check_conflicts(config: Config) -> None:
    """Raise FieldError for the first conflict of a configuration."""
    for conflict in CONFLICTS:
        if conflict.applies(config):
            values = " with ".join(_value_text(config, key) for key in conflict.keys)
            raise FieldError(f"{values}: {conflict.reason}", *conflict.keys)


def _value_text(config: Config, key: str) -> str:
    section, name = key.split(".")
    return str(getattr(getattr(config, section), name))
