"""Small, honest models: each takes a batch and returns its loss, without ever making the host wait.

A model is a file here, a line in MODELS, and what its sample holds in `batches.py`. None draws random
numbers in its forward, reads a value back or has a shape that depends on one: all can be CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from instrument.config.schema import Data, Model, ModelName, Precision
from instrument.models.check import check
from instrument.models.dit import Dit
from instrument.models.flow import Flow
from instrument.models.mlm import MaskedLanguageModel
from instrument.models.transformer import Transformer

__all__ = ["MODELS", "build", "check"]

MODELS: Mapping[ModelName, Callable[[Model, Data], nn.Module]] = {
    "transformer": Transformer,
    "dit": Dit,
    "flow": Flow,
    "mlm": MaskedLanguageModel,
}


def build(model: Model, data: Data, device: torch.device | str, *, precision: Precision | None = None) -> nn.Module:
    """Build a model on `device`; its forward takes a batch (`batches.py`) and returns a scalar loss.

    The weights are float32 and drawn from torch's global generator on the CPU, so that a seed gives the same
    ones on every device. A compiled model keeps the names of its weights: a checkpoint fits both.

    Args:
        model: which model, and its sizes.
        data: how long a sequence is.
        device: where it goes.
        precision: what autocast will compute in, to refuse what cannot be; None where not known.

    Raises:
        ConfigError: no such model can be built or run (`check`).
    """
    device = torch.device(device)
    check(model, data, device, precision)
    built = MODELS[model.name](model, data).to(device)
    if model.compile:
        built.compile()
    return built
