"""torch.compile for a model or its blocks, and float8 for its linear layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from instrument.config.training import Model
from instrument.errors import ConfigError

FLOAT8_MULTIPLE = 16  # float8 matrix products take dimensions that are multiples of this
FLOAT8_CAPABILITY = (8, 9)  # the first GPUs with float8 tensor cores


def repeated_blocks(model: nn.Module) -> Iterator[nn.ModuleList]:
    """Yield the lists of blocks of a model (its ModuleLists), inner lists first."""
    # modules() yields outer modules first.
    yield from [module for module in model.modules() if isinstance(module, nn.ModuleList)][::-1]


def tune(model: nn.Module, settings: Model, device: torch.device) -> nn.Module:
    """Return a model on its device, with its linear layers in float8 and compiled as the settings say.

    Raises:
        ConfigError: the device or the model does not support it.
    """
    if settings.float8:
        convert_to_float8(model, device)
    compile_model(model, settings)
    return model


def compile_model(model: nn.Module, settings: Model) -> None:
    """Compile a model in place as `compile`, `compile_mode` and `compile_dynamic` say.

    Of equal blocks torch compiles the first one and uses its code for all. The names of weights do not change.

    Raises:
        ConfigError: `compile` is "blocks", and the model has no ModuleList.
    """
    if settings.compile is None:
        return
    options: dict[str, Any] = {"mode": settings.compile_mode, "dynamic": settings.compile_dynamic}
    if settings.compile == "full":
        model.compile(**options)
        return
    blocks = [block for blocks in repeated_blocks(model) for block in blocks]
    if not blocks:
        raise ConfigError("--compile blocks: the model has no nn.ModuleList of blocks; use --compile full")
    for block in blocks:
        block.compile(**options)


def convert_to_float8(model: nn.Module, device: torch.device, **options: Any) -> None:
    """Replace linear layers by those of torchao that compute in float8. Weights and their names stay.

    Layers whose sizes are not multiples of 16 stay as they are.

    Args:
        model: the model, on its device.
        device: a CUDA GPU with float8 tensor cores.
        **options: attributes of torchao's Float8LinearConfig.

    Raises:
        ConfigError: torchao is not installed, or the device cannot compute in float8.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise ConfigError("--float8 needs torchao: pip install torchao") from error
    if not options.get("emulate") and not _has_float8(device):
        raise ConfigError(f"--float8 needs an H100, L40 or newer GPU, and the device is {device}; use --no-float8")

    def fits(module: nn.Module, _name: str) -> bool:
        return isinstance(module, nn.Linear) and all(size % FLOAT8_MULTIPLE == 0 for size in module.weight.shape)

    convert_to_float8_training(model, module_filter_fn=fits, config=Float8LinearConfig(**options))


def _has_float8(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= FLOAT8_CAPABILITY
