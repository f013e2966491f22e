"""A GAN of two small networks, in the style of the DCGAN example."""

from itertools import pairwise

import torch
from common import EVERY, Run, endless, parsed_options
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

options = parsed_options()
device = options.device


def network(*sizes: int) -> nn.Sequential:
    """Return layers of these sizes."""
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers[:-1]).to(device)


generator, critic = network(16, 128, 128, 64), network(64, 128, 128, 1)
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
real_data = TensorDataset(torch.randn(320, 64, generator=torch.Generator().manual_seed(1)) * 0.3 + 1)
loader = StatefulDataLoader(real_data, batch_size=32, shuffle=True)
if options.parts:
    from instrument import PrefetchLoader

    loader = PrefetchLoader(loader, device)
parts = {
    "generator": generator, "critic": critic, "of_generator": of_generator, "of_critic": of_critic, "loader": loader,
}  # fmt: skip
run = Run(options, parts)
batches = endless(loader)
fixed = torch.randn(8, 16, generator=torch.Generator().manual_seed(2)).to(device)
for step in run.steps():
    (real,) = next(batches)
    real = real.to(device)
    fake = generator(torch.randn(len(real), 16, device=device))
    of_critic.zero_grad()
    loss_of_critic = criterion(critic(real), torch.ones(len(real), 1, device=device))
    loss_of_critic = loss_of_critic + criterion(critic(fake.detach()), torch.zeros(len(real), 1, device=device))
    loss_of_critic.backward()
    of_critic.step()
    of_generator.zero_grad()
    loss_of_generator = criterion(critic(fake), torch.ones(len(real), 1, device=device))
    loss_of_generator.backward()
    of_generator.step()
    figures = {"loss": loss_of_critic.item(), "generator": loss_of_generator.item()}
    if (step + 1) % EVERY == 0:
        with torch.no_grad():
            figures["validation"] = generator(fixed).mean().item()
    run.log(step, **figures)
