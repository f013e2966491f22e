"""Flow matching: the diffusion transformer's backbone says how fast a point moves from noise to image."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from instrument.config.schema import Data, Model
from instrument.models.dit import DitBackbone


class Flow(nn.Module):
    """Straight paths x(t) = (1 - t) · noise + t · image, whose velocity is image - noise everywhere."""

    def __init__(self, model: Model, _data: Data) -> None:
        super().__init__()
        self.backbone = DitBackbone(model)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mean squared error, a scalar, of the velocity predicted at the batch's times."""
        image, noise, time = batch["image"], batch["noise"], batch["time"]
        along = noise.lerp(image, time[:, None, None, None])
        return F.mse_loss(self.backbone(along, time, batch["label"]), image - noise)
