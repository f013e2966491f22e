"""Trainers of Hugging Face for diffusion and flow matching, whose noise and times are drawn on the GPU."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import Trainer

from instrument.hf import AsyncTrainerMixin


class _NoisedImageTrainer(AsyncTrainerMixin, Trainer):  # type: ignore[misc, unused-ignore]
    """Calls `model(noised, time, label)` and compares the prediction with a target of the image's shape.

    A batch has `image` (samples, ...) and `labels` (samples,), as the Trainer's collator calls them, or `label`, or
    neither: then the model is called without them. Noise and times in [0, 1) are drawn on the image's device, so a
    batch has half the bytes, and the host draws nothing.
    """

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_kwargs: Any) -> Any:
        """Return the mean squared error of the prediction."""
        image = inputs["image"]
        noise = torch.randn_like(image)
        time = torch.rand(len(image), device=image.device, dtype=image.dtype)
        point, target = self.path(image, noise, time.reshape(-1, *[1] * (image.dim() - 1)))
        labels = [inputs[name] for name in ("labels", "label") if name in inputs]
        prediction = model(point, time, *labels)
        loss = F.mse_loss(prediction, target)
        return (loss, {"prediction": prediction}) if return_outputs else loss

    def path(self, image: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's input at `time`, which has the image's number of dimensions, and the target."""
        raise NotImplementedError


class DitTrainer(_NoisedImageTrainer):
    """Trains a model to predict the noise in an image, with a cosine schedule.

    DitTrainer(model=model, args=arguments, train_dataset=images).train()
    """

    def path(self, image: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos(πt/2) · image + sin(πt/2) · noise, and the noise."""
        angle = math.pi / 2 * time
        return angle.cos() * image + angle.sin() * noise, noise


class FlowTrainer(_NoisedImageTrainer):
    """Trains a model to predict the velocity from noise to image along a straight line (flow matching)."""

    def path(self, image: Tensor, noise: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Return (1 - t) · noise + t · image, and image - noise."""
        return noise.lerp(image, time), image - noise
