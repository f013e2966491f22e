"""What no model can be built from or run on, said in one line before anything is made.

Sizes that are impossible by themselves are refused where they are set (`instrument.config.schema`).
"""

from __future__ import annotations

import torch

from instrument.config.schema import Data, Model, Precision
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
        ConfigError: two values exclude each other, or the device has no kernel for them.
    """
    if model.name in ("dit", "flow") and model.width % 2:
        raise ConfigError(f"width {model.width} is odd: {model.name} pairs sines and cosines, make it even")
    if model.prompt != "none":
        _check_prompt(model, data)
    if device.type == "cuda":
        _check_cuda_attention(model, precision)
    elif model.attention == "efficient":
        raise ConfigError(f"attention efficient has no kernel for {device.type}: use auto, flash or math")


def _check_prompt(model: Model, data: Data) -> None:
    if model.name != "mlm":
        raise ConfigError(f"prompt {model.prompt} with model {model.name}: only mlm has prompts, use prompt none")
    if model.prompt_tokens >= data.sequence:
        raise ConfigError(
            f"prompt_tokens {model.prompt_tokens} leave no token of a sequence of {data.sequence} to predict: "
            "use fewer, or a longer sequence"
        )


def _check_cuda_attention(model: Model, precision: Precision | None) -> None:
    asked, head = f"attention {model.attention}", model.width // model.heads
    if model.attention == "flash" and precision == "fp32":
        raise ConfigError(f"{asked} has no fp32 kernel for CUDA: use precision bf16 or fp16, or attention efficient")
    if model.attention == "flash" and head > FLASH_HEAD_WIDTH:
        raise ConfigError(f"{asked} has no kernel for heads {head} wide, {FLASH_HEAD_WIDTH} at most: use more heads")
    step = 4 if precision == "fp32" else 8  # 16 bytes, which its kernels load at once
    if model.attention == "efficient" and head % step:
        raise ConfigError(f"{asked} has no kernel for heads {head} wide: make width / heads a multiple of {step}")
