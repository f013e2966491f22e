"""Combinations of settings that do not work together, one entry of CONFLICTS each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from instrument.config.settings import FieldError, is_reference
from instrument.strategies import STRATEGIES

if TYPE_CHECKING:
    from instrument.config.schema import Config


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


def _has_prompt(config: Config) -> bool:
    return config.model.prompt != "none"


def _is_own(config: Config) -> bool:
    return ":" in config.model.name


def _lacks_own_data(config: Config) -> bool:
    return _is_own(config) != is_reference(config.data.path)


CONFLICTS = (
    Conflict(
        ("model.name", "data.path"),
        _lacks_own_data,
        "a model of your own and data of your own need each other; use --model MODULE:FUNCTION --data MODULE:NAME",
    ),
    Conflict(
        ("model.checkpointing", "model.name"),
        lambda config: config.model.checkpointing is not None and _is_own(config),
        "only the package's models have it as a setting; call torch.utils.checkpoint in your own model",
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
        ("training.strategy", "data.pin_memory"),
        _disagrees_on_pinning,
        "every strategy but serial copies from pinned memory; use --strategy serial without pinned memory, and "
        "another one with it",
    ),
    Conflict(
        ("model.attention", "training.precision"),
        lambda config: (
            config.model.attention == "flash"
            and config.training.precision == "fp32"
            and config.training.device.startswith("cuda")
        ),
        "flash attention on a GPU supports only half precision; use --precision bf16 or --attention efficient",
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
        ("model.prompt", "model.name"),
        lambda config: _has_prompt(config) and config.model.name != "mlm",
        "only the masked language model has a prompt; use --model mlm or --prompt none",
    ),
    Conflict(
        ("model.prompt_tokens", "data.sequence"),
        lambda config: _has_prompt(config) and config.model.prompt_tokens > config.data.sequence,
        "the prompt is longer than the sequence; use fewer prompt tokens or a longer sequence",
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
