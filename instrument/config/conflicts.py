"""Settings of different sections that cannot be together, one line of the table each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from instrument.config.settings import FieldError

if TYPE_CHECKING:
    from instrument.config.schema import Config


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two settings, when they exclude each other, and what to do then."""

    keys: tuple[str, ...]
    holds: Callable[[Config], bool]
    reason: str


def _captures_step(config: Config) -> bool:
    from instrument.strategies import strategy_class  # imports torch

    return strategy_class(config.training.strategy).captures_step


def _counted(config: Config) -> bool:
    """Say whether the run's length is known in steps."""
    return config.training.epochs is None


def _prompted(config: Config) -> bool:
    return config.model.prompt != "none"


CONFLICTS = (
    Conflict(
        ("training.strategy", "model.compile"),
        lambda config: config.model.compile and _captures_step(config),
        "torch.compile of a captured step is not supported: leave compile off, or take another strategy",
    ),
    Conflict(
        ("training.strategy", "training.accumulation"),
        lambda config: config.training.accumulation != 1 and _captures_step(config),
        "a CUDA graph holds one backward pass per step: use accumulation 1, or strategy prefetch",
    ),
    Conflict(
        ("training.strategy", "training.precision"),
        lambda config: config.training.precision == "fp16" and _captures_step(config),
        "fp16 scales its loss by a decision of the host each step, which a CUDA graph cannot hold: use bf16",
    ),
    Conflict(
        ("model.attention", "training.precision"),
        lambda config: (
            config.model.attention == "flash"
            and config.training.precision == "fp32"
            and config.training.device.startswith("cuda")
        ),
        "flash attention on a GPU computes in half precision alone: use bf16, or attention efficient",
    ),
    Conflict(
        ("model.prompt", "model.name"),
        lambda config: _prompted(config) and config.model.name != "mlm",
        "only the masked language model has a prompt: use model mlm, or prompt none",
    ),
    Conflict(
        ("model.prompt_tokens", "data.sequence"),
        lambda config: _prompted(config) and config.model.prompt_tokens > config.data.sequence,
        "the prompt is longer than the sequence that it is put into",
    ),
    Conflict(
        ("training.warmup", "training.steps"),
        lambda config: _counted(config) and 0 < config.training.steps <= config.training.warmup,
        "the run would end before its warm-up does: use fewer warm-up steps",
    ),
    Conflict(
        ("capture.stop", "training.steps"),
        lambda config: _counted(config) and (config.capture.stop or 0) > config.training.steps,
        "the run would end before the capture does: use more steps, or an earlier capture",
    ),
)


def check_together(config: Config) -> None:
    """Raise FieldError for the first conflict that the configuration has."""
    for conflict in CONFLICTS:
        if conflict.holds(config):
            values = " with ".join(_value(config, key) for key in conflict.keys)
            raise FieldError(f"{values}: {conflict.reason}", *conflict.keys)


def _value(config: Config, key: str) -> str:
    section, name = key.split(".")
    return str(getattr(getattr(config, section), name))
