"""Combinations of values that no model can be built from, each said in one line before anything is made."""

from __future__ import annotations

import torch

from instrument.config import Data, Model, Precision
from instrument.errors import ConfigError

FLASH_HEAD_WIDTH = 256  # the widest head that flash attention's CUDA kernels are written for


def check(model: Model, data: Data, device: torch.device, precision: Precision | None = None) -> None:
    """Refuse what cannot be built or cannot run.

    Args:
        model: which model, and its sizes.
        data: how long a sequence is.
        device: where it will run.
        precision: what autocast will compute in; None skips what depends on it.

    Raises:
        ConfigError: a size is below one, two values exclude each other, or the device cannot do it.
    """
    _check_sizes(model, data)
    if model.name in ("dit", "flow"):
        _check_image(model)
    if model.prompt != "none":
        _check_prompt(model, data)
    if model.attention != "auto":
        _check_attention(model, device, precision)


def _check_sizes(model: Model, data: Data) -> None:
    sizes = ("layers", "width", "heads", "features", "prompt_tokens", "side", "channels", "patch", "classes")
    for name, value in [(name, getattr(model, name)) for name in sizes] + [("sequence", data.sequence)]:
        if value < 1:
            raise ConfigError(f"{name} {value}: a model needs at least 1")
    if model.vocabulary < 2:
        raise ConfigError(f"vocabulary {model.vocabulary}: at least 2 are needed, or there is nothing to predict")
    if model.width % model.heads:
        raise ConfigError(
            f"width {model.width} cannot be split into {model.heads} heads: make width a multiple of heads"
        )


def _check_image(model: Model) -> None:
    if model.side % model.patch:
        raise ConfigError(
            f"side {model.side} cannot be cut into patches of {model.patch}: make side a multiple of patch"
        )
    if model.width % 2:
        raise ConfigError(f"width {model.width} is odd: {model.name} pairs sines and cosines, make it even")


def _check_prompt(model: Model, data: Data) -> None:
    if model.name != "mlm":
        raise ConfigError(f"prompt {model.prompt} with model {model.name}: only mlm has prompts, use --prompt none")
    if model.prompt_tokens >= data.sequence:
        raise ConfigError(
            f"prompt_tokens {model.prompt_tokens} leave no token of a sequence of {data.sequence} to predict: "
            "use fewer, or a longer sequence"
        )


def _check_attention(model: Model, device: torch.device, precision: Precision | None) -> None:
    asked, head = f"attention {model.attention}", model.width // model.heads
    if model.attention == "efficient" and device.type != "cuda":
        raise ConfigError(f"{asked} has no kernel for {device.type}: use auto, flash or math")
    if device.type != "cuda":
        return
    if model.attention == "flash" and precision == "fp32":
        raise ConfigError(f"{asked} has no fp32 kernel for CUDA: use --precision bf16 or fp16, or efficient")
    if model.attention == "flash" and head > FLASH_HEAD_WIDTH:
        raise ConfigError(f"{asked} has no kernel for heads {head} wide, {FLASH_HEAD_WIDTH} at most: use more heads")
    step = 4 if precision == "fp32" else 8
    if model.attention == "efficient" and head % step:
        raise ConfigError(f"{asked} has no kernel for heads {head} wide: make width / heads a multiple of {step}")
