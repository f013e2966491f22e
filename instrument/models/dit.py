"""A transformer of noised images, for diffusion and for flow matching.

From a point on a path between an image and noise, the point's time and the image's label it predicts the noise
(diffusion), or the velocity of the path (flow matching).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from instrument.config.training import Data, Model
from instrument.models.blocks import Mlp, SelfAttention, Stack

PERIOD_RATIO = 10000.0  # longest period of the time embedding / shortest
TIME_SCALE = 1000.0  # maps times in [0, 1) to the thousand steps of DDPM


class DitBlock(nn.Module):
    """A transformer layer whose norms are shifted, scaled and gated by a condition (adaLN-zero).

    All gates start at zero, so a new block returns its tokens unchanged.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(model.width, elementwise_affine=False)
        self.attention = SelfAttention(model.width, model.heads, model.attention)
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


class DitBackbone(nn.Module):
    """Shared by the diffusion and the flow model: maps an image, a time and a label to a prediction of image shape."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.patch, inside = model.patch, model.channels * model.patch**2
        patches = (model.side // model.patch) ** 2
        self.embed = nn.Linear(inside, model.width)
        self.positions = nn.Parameter(0.02 * torch.randn(patches, model.width))
        self.time = TimeEmbedding(model.width)
        self.label = nn.Embedding(model.classes, model.width)
        self.blocks = Stack((DitBlock(model) for _ in range(model.layers)), checkpointing=model.checkpointing)
        self.norm = nn.LayerNorm(model.width, elementwise_affine=False)
        self.modulation = _zero_init(nn.Linear(model.width, 2 * model.width))
        self.head = _zero_init(nn.Linear(model.width, inside))

    def forward(self, image: Tensor, time: Tensor, label: Tensor) -> Tensor:
        """Map shapes (batch, channels, side, side), (batch,) and (batch,) to (batch, channels, side, side)."""
        condition = self.time(time) + self.label(label)
        tokens = self.blocks(self.embed(patchify(image, self.patch)) + self.positions, condition)
        shift, scale = self.modulation(F.silu(condition))[:, None].chunk(2, -1)
        return unpatchify(self.head(_modulate(self.norm(tokens), shift, scale)), self.patch, image.shape[-1])


class _NoisedImages(nn.Module):
    """The loss is the squared error of the predicted target of a path."""

    def __init__(self, model: Model, _data: Data) -> None:
        super().__init__()
        self.backbone = DitBackbone(model)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mean squared error, a scalar."""
        image, noise, time = batch["image"], batch["noise"], batch["time"]
        point, target = self.path(image, noise, time[:, None, None, None])
        return F.mse_loss(self.backbone(point, time, batch["label"]), target)

    def path(self, image: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return the point at `time`, which has the image's number of dimensions, and the target."""
        raise NotImplementedError


class Dit(_NoisedImages):
    """Diffusion with a cosine schedule, which predicts the noise."""

    def path(self, image: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos(πt/2) · image + sin(πt/2) · noise, and the noise."""
        angle = math.pi / 2 * time
        return angle.cos() * image + angle.sin() * noise, noise


class Flow(_NoisedImages):
    """Flow matching: straight paths with a constant velocity, which is predicted."""

    def path(self, image: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return (1 - t) · noise + t · image, and image - noise."""
        return noise.lerp(image, time), image - noise


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
