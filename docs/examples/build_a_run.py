"""Build a run in Python: a model, data, a loss with a metric, an optimizer and hooks.

python docs/examples/build_a_run.py
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from instrument import Config, Data, Hooks, Monitor, Training, train


class Net(nn.Module):
    """Two layers with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (batch, 64) to (batch, 10)."""
        logits: Tensor = self.layers(inputs)
        return logits


def samples(count: int, seed: int) -> TensorDataset:
    """Return inputs and the index of the largest of their first ten features."""
    inputs = torch.randn(count, 64, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs[:, :10].argmax(1))


def loss(outputs: Tensor, targets: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss, and figures for the records of training and validation."""
    accuracy = (outputs.argmax(1) == targets).float().mean()
    return nn.functional.cross_entropy(outputs, targets), {"accuracy": accuracy}


def optimizer(groups: list[dict[str, Any]], lr: float) -> Any:
    """Return an optimizer and its scheduler. Biases and norms are in a group without weight decay."""
    made = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))
    return made, torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=200)


class Average(Hooks):
    """Keeps the mean of the weights."""

    def start(self, model: nn.Module, _optimizer: torch.optim.Optimizer) -> None:
        """Copy the model."""
        self.model, self.average = model, torch.optim.swa_utils.AveragedModel(model)

    def after_step(self, step: int, _loss: Tensor) -> None:
        """Add the weights after each tenth step."""
        if step % 10 == 9:
            self.average.update_parameters(self.model)


def main() -> None:
    """Train, and print the losses."""
    config = Config(
        Training(steps=200, learning_rate=3e-3, validate_every=50),
        data=Data(batch=32, workers=0),
        monitor=Monitor(log_every=50),
    )
    hooks = Average()
    outcome = train(
        config,
        model=Net(),
        data=samples(4096, seed=0),
        validation=samples(512, seed=1),
        loss=loss,
        optimizer=optimizer,
        hooks=hooks,
    )
    print(f"loss {outcome.losses[0]:.3f} to {outcome.losses[-1]:.3f}, mean of {int(hooks.average.n_averaged)} weights")


if __name__ == "__main__":
    main()
