"""Models small enough for a test, and batches for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from instrument.config.schema import Data, Model
from instrument.models import build
from instrument.models.batches import sample

NAMES = ("transformer", "dit", "flow", "mlm")
DATA = Data(sequence=12)


def tiny(name: str, **chosen: Any) -> Model:
    sizes = {"layers": 2, "width": 16, "heads": 2, "vocabulary": 11, "features": 5, "side": 8, "classes": 7}
    return Model(**{"name": name, **sizes, "prompt_tokens": 3, **chosen})


def built(model: Model, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build(model, DATA, "cpu")


def batch(model: Model, size: int = 4, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return default_collate([sample(model, DATA, generator) for _ in range(size)])


def awakened(net: nn.Module) -> nn.Module:
    """Return the model without zeros in its weights, because a gate of zero hides other weights."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    return net


def gradients(net: nn.Module, given: dict[str, Tensor]) -> dict[str, Tensor]:
    net.zero_grad()
    net(given).backward()
    return {name: weight.grad.clone() for name, weight in net.named_parameters() if weight.grad is not None}
