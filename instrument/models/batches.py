"""The samples of each model. Only this module and the models name the keys of a batch.

`sample` makes a synthetic sample; `from_inputs`, `from_image` and `from_tokens` make a sample from data. Noise, times
and masks are drawn here and not in the model, so that a CUDA graph of the model can be replayed. With `model.draw`
"device", a sample lacks them, and `DeviceDraws` adds them to a batch that is on the GPU.

    transformer   inputs (sequence, features) float32    targets (sequence,) int64
    dit, flow     image, noise (channels, side, side) float32    time () float32 in [0, 1)    label () int64
    mlm           tokens (sequence,) int64    labels (sequence,) int64, IGNORED where not masked
                  prompt_positions (prompt_tokens,) int64, distinct and ascending (with a prompt only)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from instrument.config.training import Data, Model
from instrument.data.order import mixed_seed

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
    made = {
        "image": image.to(torch.float32),
        "label": random_label if label is None else torch.tensor(label),
    }
    if model.draw == "host":
        made["noise"] = torch.randn(image.shape, generator=generator)
        made["time"] = torch.rand((), generator=generator)
    return made


def from_tokens(tokens: Tensor, model: Model, generator: torch.Generator) -> Sample:
    """Make a masked language model sample from tokens of shape (sequence,) in [1, vocabulary).

    15% of the tokens, at least one, become MASK; `labels` holds their values. The positions of a prompt are never
    masked, because the prompt changes their embeddings.
    """
    tokens = tokens.to(torch.int64)
    if model.draw == "device":
        return {"tokens": tokens}
    prompts = model.prompt_tokens if model.prompt != "none" else 0
    order = torch.randperm(len(tokens), generator=generator)
    masked = order[prompts : prompts + _masked_count(len(tokens), prompts)]
    labels = torch.full_like(tokens, IGNORED)
    labels[masked] = tokens[masked]
    result = {"tokens": tokens.index_fill(0, masked, MASK), "labels": labels}
    if prompts:
        result["prompt_positions"] = order[:prompts].sort().values
    return result


class DeviceDraws:
    """Draws what the host has left out, on the device of the batch, if `model.draw` is "device".

    A number stands for a batch of the run, so a resumed run draws the same, and ranks draw different numbers.

    Args:
        model: the model and its sizes.
        seed: seed of the run.
        rank: this process.
    """

    def __init__(self, model: Model, seed: int, rank: int = 0) -> None:
        self._model, self._seed, self._rank = model, seed, rank
        self._draw = DRAWS.get(model.name) if model.draw == "device" else None

    def over(self, batches: Iterator[Any], first: int) -> Iterator[Any]:
        """Yield the batches with what is drawn for them; `first` is the number of the first one."""
        return (self(batch, number) for number, batch in enumerate(batches, first))

    def __call__(self, batch: Any, number: int) -> Any:
        """Return a batch with what is drawn for this number."""
        if self._draw is None:
            return batch
        device = next(iter(batch.values())).device
        seed = mixed_seed(self._seed, self._rank, number)
        return self._draw(batch, self._model, torch.Generator(device).manual_seed(seed))


def _draw_noise(batch: Sample, _model: Model, generator: torch.Generator) -> Sample:
    image, device = batch["image"], batch["image"].device
    noise = torch.randn(image.shape, generator=generator, device=device)
    return {**batch, "noise": noise, "time": torch.rand(len(image), generator=generator, device=device)}


def _draw_masks(batch: Sample, model: Model, generator: torch.Generator) -> Sample:
    """Mask as `from_tokens` does, in each row."""
    tokens = batch["tokens"]
    prompts = model.prompt_tokens if model.prompt != "none" else 0
    order = torch.rand(tokens.shape, generator=generator, device=tokens.device).argsort(1)
    masked = order[:, prompts : prompts + _masked_count(tokens.shape[1], prompts)]
    labels = torch.full_like(tokens, IGNORED).scatter(1, masked, tokens.gather(1, masked))
    made = {"tokens": tokens.scatter(1, masked, MASK), "labels": labels}
    return made | {"prompt_positions": order[:, :prompts].sort(1).values} if prompts else made


def _masked_count(length: int, prompts: int) -> int:
    return max(1, round(MASKED_SHARE * (length - prompts)))


DRAWS: Mapping[str, Callable[[Sample, Model, torch.Generator], Sample]] = {
    "dit": _draw_noise,
    "flow": _draw_noise,
    "mlm": _draw_masks,
}


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
