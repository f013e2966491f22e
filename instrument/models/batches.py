"""The samples of each model. Only this module and the models name the keys of a batch.

`sample` makes a synthetic sample; `from_inputs`, `from_image` and `from_tokens` make a sample from data. Noise, times
and masks are drawn here and not in the model, so that a CUDA graph of the model can be replayed.

    transformer   inputs (sequence, features) float32    targets (sequence,) int64
    dit, flow     image, noise (channels, side, side) float32    time () float32 in [0, 1)    label () int64
    mlm           tokens (sequence,) int64    labels (sequence,) int64, IGNORED where not masked
                  prompt_positions (prompt_tokens,) int64, distinct and ascending (with a prompt only)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from instrument.config.schema import Data, Model

IGNORED = -100  # the default ignore_index of torch's cross_entropy
MASK = 0  # the mask token; data tokens start at 1
MASKED_SHARE = 0.15

Sample = dict[str, Tensor]


def sample(model: Model, data: Data, generator: torch.Generator) -> Sample:
    """Make one synthetic sample on the CPU, without a batch dimension.

    Args:
        model: the model and its sizes.
        data: the sequence length.
        generator: the only source of randomness; equal states give equal samples.
    """
    return SAMPLES[model.name](model, data, generator)


def from_inputs(inputs: Tensor, model: Model) -> Sample:
    """Make a transformer sample from numbers of shape (sequence, features).

    The target is the quantile of the first feature under the normal distribution, in steps of 1/vocabulary, so the
    model can learn it.
    """
    inputs = inputs.to(torch.float32)
    quantile = torch.special.ndtr(inputs[:, 0])
    return {"inputs": inputs, "targets": (quantile * model.vocabulary).long().clamp_(0, model.vocabulary - 1)}


def from_image(image: Tensor, model: Model, generator: torch.Generator, label: int | None = None) -> Sample:
    """Make a diffusion or flow sample from an image (channels, side, side); None draws a random label."""
    random_label = torch.randint(model.classes, (), generator=generator)
    return {
        "image": image.to(torch.float32),
        "noise": torch.randn(image.shape, generator=generator),
        "time": torch.rand((), generator=generator),
        "label": random_label if label is None else torch.tensor(label),
    }


def from_tokens(tokens: Tensor, model: Model, generator: torch.Generator) -> Sample:
    """Make a masked language model sample from tokens of shape (sequence,) in [1, vocabulary).

    15% of the tokens, at least one, become MASK; `labels` holds their values. The positions of a prompt are never
    masked, because the prompt changes their embeddings.
    """
    tokens = tokens.to(torch.int64)
    prompts = model.prompt_tokens if model.prompt != "none" else 0
    order = torch.randperm(len(tokens), generator=generator)
    masked = order[prompts : prompts + max(1, round(MASKED_SHARE * (len(tokens) - prompts)))]
    labels = torch.full_like(tokens, IGNORED)
    labels[masked] = tokens[masked]
    result = {"tokens": tokens.index_fill(0, masked, MASK), "labels": labels}
    if prompts:
        result["prompt_positions"] = order[:prompts].sort().values
    return result


def _transformer(model: Model, data: Data, generator: torch.Generator) -> Sample:
    return from_inputs(torch.randn(data.sequence, model.features, generator=generator), model)


def _image(model: Model, data: Data, generator: torch.Generator) -> Sample:
    image = torch.randn(model.channels, model.side, model.side, generator=generator)
    return from_image(image, model, generator)


def _tokens(model: Model, data: Data, generator: torch.Generator) -> Sample:
    """Count up from a random token by a random step, so that masked tokens can be predicted from the others."""
    start = torch.randint(model.vocabulary - 1, (), generator=generator)
    step = torch.randint(1, 4, (), generator=generator)
    tokens = (start + step * torch.arange(data.sequence)) % (model.vocabulary - 1) + 1
    return from_tokens(tokens, model, generator)


SAMPLES: Mapping[str, Callable[[Model, Data, torch.Generator], Sample]] = {
    "transformer": _transformer,
    "dit": _image,
    "flow": _image,
    "mlm": _tokens,
}
