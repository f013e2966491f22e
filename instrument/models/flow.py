"""Flow matching: the diffusion transformer's backbone predicts the velocity from noise to image."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from instrument.config.training import Data, Model
from instrument.models.dit import DitBackbone


class Flow(nn.Module):
    """Straight paths x(t) = (1 - t) · noise + t · image, with the constant velocity image - noise."""

    def __init__(self, model: Model, _data: Data) -> None:
        super().__init__()
        self.backbone = DitBackbone(model)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mean squared error of the predicted velocity, a scalar."""
        image, noise, time = batch["image"], batch["noise"], batch["time"]
        point = noise.lerp(image, time[:, None, None, None])
        return F.mse_loss(self.backbone(point, time, batch["label"]), image - noise)
