"""What one sample of each model holds: the only place that names the keys of a batch.

`sample` invents one; `from_inputs`, `from_image` and `from_tokens` make one of a user's own data. What a
model draws at random (noise, times, masks) is drawn here, so that a model computes and a CUDA graph of it
can be replayed.

    transformer   inputs (sequence, features) float32    targets (sequence,) int64
    dit, flow     image, noise (channels, side, side) float32    time () float32 in [0, 1)    label () int64
    mlm           tokens (sequence,) int64    labels (sequence,) int64, IGNORED where nothing is asked
                  prompt_positions (prompt_tokens,) int64, distinct and ascending; only with a prompt
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from instrument.config.schema import Data, Model, ModelName

IGNORED = -100  # what torch's cross_entropy leaves out
MASK = 0  # the token that stands for a hidden one; no other token is 0
MASKED_SHARE = 0.15

Sample = dict[str, Tensor]


def sample(model: Model, data: Data, generator: torch.Generator) -> Sample:
    """Invent one sample, without a batch dimension, on the CPU.

    Args:
        model: which model, and its sizes.
        data: how long a sequence is.
        generator: where all of the sample's randomness comes from; equal states give equal samples.
    """
    return SAMPLES[model.name](model, data, generator)


def from_inputs(inputs: Tensor, model: Model) -> Sample:
    """Make a transformer's sample of (sequence, features) numbers: the first feature decides the target.

    So there is something to learn: the target is the first feature's quantile, in steps of 1/vocabulary,
    were it normally distributed.
    """
    inputs = inputs.to(torch.float32)
    quantile = torch.special.ndtr(inputs[:, 0])
    return {"inputs": inputs, "targets": (quantile * model.vocabulary).long().clamp_(0, model.vocabulary - 1)}


def from_image(image: Tensor, model: Model, generator: torch.Generator, label: int | None = None) -> Sample:
    """Make a diffusion or flow sample of one (channels, side, side) image; a random label where None."""
    drawn = torch.randint(model.classes, (), generator=generator)
    return {
        "image": image.to(torch.float32),
        "noise": torch.randn(image.shape, generator=generator),
        "time": torch.rand((), generator=generator),
        "label": drawn if label is None else torch.tensor(label),
    }


def from_tokens(tokens: Tensor, model: Model, generator: torch.Generator) -> Sample:
    """Make a masked language model's sample of (sequence,) tokens in [1, vocabulary).

    15% of the tokens, at least one, become MASK and are asked for in `labels`. A prompt's positions are
    never among them: what stands there is replaced.
    """
    tokens = tokens.to(torch.int64)
    prompts = model.prompt_tokens if model.prompt != "none" else 0
    order = torch.randperm(len(tokens), generator=generator)
    masked = order[prompts : prompts + max(1, round(MASKED_SHARE * (len(tokens) - prompts)))]
    labels = torch.full_like(tokens, IGNORED)
    labels[masked] = tokens[masked]
    made = {"tokens": tokens.index_fill(0, masked, MASK), "labels": labels}
    if prompts:
        made["prompt_positions"] = order[:prompts].sort().values
    return made


def _transformer(model: Model, data: Data, generator: torch.Generator) -> Sample:
    return from_inputs(torch.randn(data.sequence, model.features, generator=generator), model)


def _image(model: Model, data: Data, generator: torch.Generator) -> Sample:
    image = torch.randn(model.channels, model.side, model.side, generator=generator)
    return from_image(image, model, generator)


def _tokens(model: Model, data: Data, generator: torch.Generator) -> Sample:
    """Count up from a random token in random steps: what is hidden follows from what is not."""
    start = torch.randint(model.vocabulary - 1, (), generator=generator)
    step = torch.randint(1, 4, (), generator=generator)
    tokens = (start + step * torch.arange(data.sequence)) % (model.vocabulary - 1) + 1
    return from_tokens(tokens, model, generator)


SAMPLES: Mapping[ModelName, Callable[[Model, Data, torch.Generator], Sample]] = {
    "transformer": _transformer,
    "dit": _image,
    "flow": _image,
    "mlm": _tokens,
}
