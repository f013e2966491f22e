"""Diffusion and flow matching: a transformer of noised images, its data, and the two losses.

    cd docs/examples
    python -m instrument.train --model diffusion:Dit --data diffusion:Images --loss diffusion:diffusion
    python -m instrument.train --model diffusion:Dit --data diffusion:Images --loss diffusion:flow

From a point on a path between an image and noise, the point's time and the image's label the model predicts the noise
(diffusion), or the velocity of the path (flow matching).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import Dataset

from instrument import Config, Model
from instrument.data import generator_for
from instrument.models import Mlp, SelfAttention, Stack

SIDE, CHANNELS, PATCH, CLASSES = 32, 4, 2, 1000  # pixels, channels, pixels of a patch's side, labels
PERIOD_RATIO = 10000.0  # longest period of the time embedding / shortest
TIME_SCALE = 1000.0  # maps times in [0, 1) to the thousand steps of DDPM


class DitBlock(nn.Module):
    """A transformer layer whose norms are shifted, scaled and gated by a condition (adaLN-zero).

    All gates start at zero, so a new block returns its tokens unchanged.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(model.width, elementwise_affine=False)
        self.attention = SelfAttention(model.width, model.heads)
        self.mlp_norm = nn.LayerNorm(model.width, elementwise_affine=False)
        self.mlp = Mlp(model.width)
        self.modulation = _zero_init(nn.Linear(model.width, 6 * model.width))

    def forward(self, tokens: Tensor, condition: Tensor) -> Tensor:
        """Map tokens of shape (batch, tokens, width) to the same shape, with a condition of shape (batch, width)."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulation(F.silu(condition))[:, None].chunk(6, -1)
        tokens = tokens + gate * self.attention(_modulate(self.attention_norm(tokens), shift, scale))
        result: Tensor = tokens + mlp_gate * self.mlp(_modulate(self.mlp_norm(tokens), mlp_shift, mlp_scale))
        return result


class TimeEmbedding(nn.Module):
    """Embeds times in [0, 1) with sines, cosines and an MLP: (batch,) to (batch, width)."""

    frequencies: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        steps = torch.arange(width // 2) / (width // 2)
        self.register_buffer("frequencies", TIME_SCALE * torch.exp(-math.log(PERIOD_RATIO) * steps), persistent=False)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, time: Tensor) -> Tensor:
        """Return the embeddings of `time`."""
        angles = time[:, None] * self.frequencies
        result: Tensor = self.mlp(torch.cat((angles.sin(), angles.cos()), dim=-1))
        return result


class Dit(nn.Module):
    """Maps an image, a time and a label to a prediction of the image's shape.

    Width, heads, layers and checkpointing are those of the run.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        model, inside = config.model, CHANNELS * PATCH**2
        self.embed = nn.Linear(inside, model.width)
        self.positions = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, model.width))
        self.time = TimeEmbedding(model.width)
        self.label = nn.Embedding(CLASSES, model.width)
        self.blocks = Stack((DitBlock(model) for _ in range(model.layers)), checkpointing=model.checkpointing)
        self.norm = nn.LayerNorm(model.width, elementwise_affine=False)
        self.modulation = _zero_init(nn.Linear(model.width, 2 * model.width))
        self.head = _zero_init(nn.Linear(model.width, inside))

    def forward(self, image: Tensor, time: Tensor, label: Tensor) -> Tensor:
        """Map shapes (batch, channels, side, side), (batch,) and (batch,) to (batch, channels, side, side)."""
        condition = self.time(time) + self.label(label)
        tokens = self.blocks(self.embed(patchify(image, PATCH)) + self.positions, condition)
        shift, scale = self.modulation(F.silu(condition))[:, None].chunk(2, -1)
        return unpatchify(self.head(_modulate(self.norm(tokens), shift, scale)), PATCH, image.shape[-1])


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Random images with labels. An image depends on the seed and its index only."""

    def __init__(self, config: Config) -> None:
        self.samples, self.seed = config.data.samples, config.training.seed

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = generator_for(self.seed, index)
        image = torch.randn(CHANNELS, SIDE, SIDE, generator=generator)
        return image, torch.randint(CLASSES, (), generator=generator)


def diffusion(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of a prediction of the noise, with a cosine schedule.

    Noise and times are drawn on the device, so half as many bytes are copied, and the host draws nothing.
    """
    image, noise, time = _drawn(batch)
    angle = math.pi / 2 * time[:, None, None, None]
    return F.mse_loss(model(angle.cos() * image + angle.sin() * noise, time, batch[1]), noise)


def flow(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of a prediction of the velocity on a straight line from noise to image."""
    image, noise, time = _drawn(batch)
    return F.mse_loss(model(noise.lerp(image, time[:, None, None, None]), time, batch[1]), image - noise)


def _drawn(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    image = batch[0]
    return image, torch.randn_like(image), torch.rand(len(image), device=image.device)


def patchify(image: Tensor, patch: int) -> Tensor:
    """Cut an image (batch, channels, side, side) into tokens (batch, (side / patch)², channels · patch²)."""
    batch, channels, side, _ = image.shape
    cells = image.reshape(batch, channels, side // patch, patch, side // patch, patch)
    return cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpatchify(tokens: Tensor, patch: int, side: int) -> Tensor:
    """Reverse `patchify`."""
    cells = tokens.reshape(len(tokens), side // patch, side // patch, -1, patch, patch)
    return cells.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


def _modulate(tokens: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return tokens * (1 + scale) + shift


def _zero_init(linear: nn.Linear) -> nn.Linear:
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear
