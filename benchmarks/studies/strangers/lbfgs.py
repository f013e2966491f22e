"""A fit by LBFGS, whose closure computes the loss several times a step, in the style of time_sequence_prediction."""

import torch
from common import EVERY, Run, parsed_options
from torch import nn

options = parsed_options()
device = options.device
generator = torch.Generator().manual_seed(1)
times = torch.rand(256, 1, generator=generator) * 6
inputs, targets = times.to(device), (torch.sin(times) + 0.3 * torch.sin(3 * times)).to(device)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.3, max_iter=4, history_size=5)
criterion = nn.MSELoss()
run = Run(options, {"model": model, "optimizer": optimizer})


def closure() -> torch.Tensor:
    """Compute the loss and its gradients."""
    optimizer.zero_grad()
    loss = criterion(model(inputs[:192]), targets[:192])
    loss.backward()
    return loss


for step in run.steps():
    loss = optimizer.step(closure)
    figures = {"loss": loss.item()}
    if (step + 1) % EVERY == 0:
        with torch.no_grad():
            figures["validation"] = criterion(model(inputs[192:]), targets[192:]).item()
    run.log(step, **figures)
