"""The package's model and those of docs/examples, small enough for a test, and batches for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate

from docs.examples import diffusion, masked_language
from instrument.config.schema import Config, Data, Model
from instrument.data import Synthetic
from instrument.models import Transformer, compile_model
from instrument.trainer.learner import call_model

DATA = Data(sequence=20)


def build(model: Model, data: Data, device: torch.device | str) -> nn.Module:
    """Return the package's model on a device, as a run of the trainer builds it."""
    return compile_model(Transformer(model, data).to(device), model)


class Example(NamedTuple):
    """A model, its data and its loss."""

    make: Callable[[Config], nn.Module]
    data: Callable[[Config], Dataset[Any]]
    loss: Callable[[nn.Module, Any], Tensor]


def _masked(make: Callable[[Config], nn.Module], data: Any = masked_language.PromptTokens) -> Example:
    return Example(make, data, masked_language.loss)


EXAMPLES: Mapping[str, Example] = {
    "transformer": Example(
        lambda config: build(config.model, config.data, "cpu"),
        lambda config: Synthetic(config.model, config.data, config.training.seed),
        call_model,
    ),
    "diffusion": Example(diffusion.Dit, diffusion.Images, diffusion.diffusion),
    "flow": Example(diffusion.Dit, diffusion.Images, diffusion.flow),
    "plain": _masked(masked_language.plain, masked_language.Tokens),
    "loop": _masked(masked_language.loop),
    "vectorised": _masked(masked_language.vectorised),
    "gated": _masked(masked_language.gated),
    "gated_scatter": _masked(masked_language.gated_scatter),
}
NAMES = tuple(EXAMPLES)
WITHOUT_DRAWS = tuple(name for name in NAMES if name not in ("diffusion", "flow"))


class WithLoss(nn.Module):
    """A model with its loss. What a loss draws is the same in every call."""

    def __init__(self, inner: nn.Module, loss: Callable[[nn.Module, Any], Tensor]) -> None:
        super().__init__()
        self.inner, self.loss = inner, loss

    def forward(self, batch: Any) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)
            return self.loss(self.inner, batch)


def tiny(**chosen: Any) -> Model:
    sizes = {"layers": 2, "width": 16, "heads": 2, "vocabulary": 11, "features": 5}
    return Model(**{**sizes, **chosen})


def config(**chosen: Any) -> Config:
    return Config(model=tiny(**chosen), data=DATA)


def built(name: str, seed: int = 0, **chosen: Any) -> WithLoss:
    torch.manual_seed(seed)
    return WithLoss(EXAMPLES[name].make(config(**chosen)), EXAMPLES[name].loss)


def batch(name: str, size: int = 4) -> Any:
    samples = EXAMPLES[name].data(config())
    return default_collate([samples[index] for index in range(size)])


def awakened(net: nn.Module) -> nn.Module:
    """Return the model without zeros in its weights, because a gate of zero hides other weights."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    return net


def gradients(net: nn.Module, given: Any) -> dict[str, Tensor]:
    net.zero_grad()
    net(given).backward()
    return {name: weight.grad.clone() for name, weight in net.named_parameters() if weight.grad is not None}
