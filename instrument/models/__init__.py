"""The model that a run trains without a model of the user's own: a small transformer.

It takes a batch and returns its loss, without making the host wait. It draws no random numbers in its forward, reads no
value back to the host, and has no shape that depends on a value, so a CUDA graph can capture it. `docs/examples` has
models for other data.
"""

from __future__ import annotations

import torch
from torch import nn

from instrument.config.training import Data, Model, Precision
from instrument.errors import ConfigError
from instrument.models.transformer import Transformer
from instrument.models.tuning import tune

MAX_FLASH_HEAD_WIDTH = 256  # limit of the CUDA kernels of flash attention


def build(model: Model, data: Data, device: torch.device | str, *, precision: Precision | None = None) -> nn.Module:
    """Build the model on `device`. Its forward takes a batch of `instrument.data.datasets` and returns a scalar loss.

    The weights are float32 and drawn from torch's global generator on the CPU, so a seed gives the same weights on
    every device. A compiled model keeps the names of its weights, so checkpoints fit both forms.

    Args:
        model: the sizes of the model.
        data: the sequence length.
        device: the device of the model.
        precision: the autocast precision; None skips the checks that depend on it.

    Raises:
        ConfigError: the device has no kernel for the attention.
    """
    device = torch.device(device)
    check(model, device, precision)
    return tune(Transformer(model, data).to(device), model, device)


def check(model: Model, device: torch.device, precision: Precision | None = None) -> None:
    """Raise ConfigError if the device has no kernel for the attention of the model."""
    name, head = f"attention {model.attention}", model.width // model.heads
    if device.type != "cuda":
        if model.attention == "efficient":
            raise ConfigError(f"{name} has no kernel for {device.type}: use auto, flash or math")
        return
    if model.attention == "flash" and precision == "fp32":
        raise ConfigError(f"{name} has no fp32 kernel for CUDA: use precision bf16 or fp16, or attention efficient")
    if model.attention == "flash" and head > MAX_FLASH_HEAD_WIDTH:
        raise ConfigError(f"{name} has no kernel for heads {head} wide, {MAX_FLASH_HEAD_WIDTH} at most: use more heads")
    multiple = 4 if precision == "fp32" else 8  # the kernels load 16 bytes at a time
    if model.attention == "efficient" and head % multiple:
        raise ConfigError(f"{name} has no kernel for heads {head} wide: make width / heads a multiple of {multiple}")
