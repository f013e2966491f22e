"""A dense encoder that classifies each vector of a sequence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from instrument.config.training import Data, Model
from instrument.models.blocks import encoder


class Transformer(nn.Module):
    """Pre-norm encoder with learned positions that predicts one class per element of the sequence.

    The inputs are wide (4096 floats by default), so that the copy of a batch to the device takes a measurable time.
    """

    def __init__(self, model: Model, data: Data) -> None:
        super().__init__()
        self.project = nn.Linear(model.features, model.width)
        self.positions = nn.Parameter(0.02 * torch.randn(data.sequence, model.width))
        self.blocks = encoder(model)
        self.norm = nn.LayerNorm(model.width)
        self.head = nn.Linear(model.width, model.vocabulary)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mean cross-entropy, a scalar, for `inputs` of shape (batch, sequence, features)."""
        hidden = self.norm(self.blocks(self.project(batch["inputs"]) + self.positions))
        logits: Tensor = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
