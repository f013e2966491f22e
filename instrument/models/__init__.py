"""Small models. Each takes a batch and returns its loss, without making the host wait.

To add a model, write a module here, add a line to `MODELS`, and define its samples in `batches.py`. A model draws no
random numbers in its forward, reads no value back to the host, and has no shape that depends on a value, so every model
can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from instrument.config.training import Data, Model, Precision
from instrument.errors import ConfigError
from instrument.models.dit import Dit, Flow
from instrument.models.mlm import MaskedLanguageModel
from instrument.models.transformer import Transformer
from instrument.models.tuning import tune

MODELS: Mapping[str, Callable[[Model, Data], nn.Module]] = {
    "transformer": Transformer,
    "dit": Dit,
    "flow": Flow,
    "mlm": MaskedLanguageModel,
}
MAX_FLASH_HEAD_WIDTH = 256  # limit of the CUDA kernels of flash attention


def build(model: Model, data: Data, device: torch.device | str, *, precision: Precision | None = None) -> nn.Module:
    """Build a model on `device`. Its forward takes a batch (see `batches.py`) and returns a scalar loss.

    The weights are float32 and drawn from torch's global generator on the CPU, so a seed gives the same weights on
    every device. A compiled model keeps the names of its weights, so checkpoints fit both forms.

    Args:
        model: the model and its sizes.
        data: the sequence length.
        device: the device of the model.
        precision: the autocast precision, to refuse combinations without a kernel; None if unknown.

    Raises:
        ConfigError: the model cannot be built or run, see `check`.
    """
    device = torch.device(device)
    check(model, device, precision)
    return tune(MODELS[model.name](model, data).to(device), model, device)


def check(model: Model, device: torch.device, precision: Precision | None = None) -> None:
    """Check that a model can be built and run. `instrument.config.schema` checks each setting alone.

    Args:
        model: the model and its sizes.
        device: the device of the model.
        precision: the autocast precision; None skips the checks that depend on it.

    Raises:
        ConfigError: two settings exclude each other, or the device has no kernel for them.
    """
    if model.name in ("dit", "flow") and model.width % 2:
        raise ConfigError(f"width {model.width} is odd: {model.name} pairs sines and cosines, use an even width")
    if device.type == "cuda":
        _check_cuda_attention(model, precision)
    elif model.attention == "efficient":
        raise ConfigError(f"attention efficient has no kernel for {device.type}: use auto, flash or math")


def _check_cuda_attention(model: Model, precision: Precision | None) -> None:
    name, head = f"attention {model.attention}", model.width // model.heads
    if model.attention == "flash" and precision == "fp32":
        raise ConfigError(f"{name} has no fp32 kernel for CUDA: use precision bf16 or fp16, or attention efficient")
    if model.attention == "flash" and head > MAX_FLASH_HEAD_WIDTH:
        raise ConfigError(f"{name} has no kernel for heads {head} wide, {MAX_FLASH_HEAD_WIDTH} at most: use more heads")
    multiple = 4 if precision == "fp32" else 8  # the kernels load 16 bytes at a time
    if model.attention == "efficient" and head % multiple:
        raise ConfigError(f"{name} has no kernel for heads {head} wide: make width / heads a multiple of {multiple}")
