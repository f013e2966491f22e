"""Data parallel training under torchrun, in the style of the elastic example: rank 0 writes, all ranks read."""

import torch
import torch.distributed as dist
from common import EVERY, Run, parsed_options
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

options = parsed_options()
device = options.device
if device.type == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 1)).to(device)
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
inputs = torch.randn(320, 16, generator=torch.Generator().manual_seed(1))
samples = TensorDataset(inputs, inputs[:, :1] * 2)
sampler = DistributedSampler(samples)
loader = StatefulDataLoader(samples, batch_size=16, sampler=sampler)
if options.parts:
    from instrument import PrefetchLoader

    loader = PrefetchLoader(loader, device)
# Each rank reads its own samples, but all loaders are at the same batch, so the state of rank 0 is that of all.
run = Run(options, {"model": model, "optimizer": optimizer, "loader": loader}, writes=rank == 0)
dist.barrier()  # all ranks have read the checkpoint before the next one is written


def batches():
    """Yield the batches of this rank, epoch after epoch."""
    epoch = max(run.step - 1, 0) // len(loader)  # after the last batch of an epoch, its loader has none left
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


source = batches()
for step in run.steps():
    x, y = next(source)
    loss = nn.functional.mse_loss(wrapped(x.to(device)), y.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(loss.detach())
    figures = {"loss": loss.item()}
    if (step + 1) % EVERY == 0:
        with torch.no_grad():
            known = inputs[:32].to(device)
            figures["validation"] = nn.functional.mse_loss(model(known), known[:, :1]).item()
    run.log(step, **figures)
dist.destroy_process_group()
