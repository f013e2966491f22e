"""An image classifier with loader processes, mixed precision and dropout, in the style of pytorch/examples."""

import torch
from common import EVERY, Run, endless, parsed_options
from torch import nn
from torch.utils.data import TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

options = parsed_options()
device = options.device


def images(seed: int, count: int) -> TensorDataset:
    """Return images whose brightness depends on their class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    return TensorDataset(torch.randn(count, 3, 32, 32, generator=generator) + labels[:, None, None, None] / 5, labels)


def validate() -> float:
    """Return the loss on other images."""
    model.eval()
    with torch.no_grad():
        loss = sum(criterion(model(x.to(device)), y.to(device)).item() for x, y in validation_loader)
    model.train()
    return loss


model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
    nn.Dropout(0.3), nn.Linear(1024, 10),
).to(device)  # fmt: skip
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
loader = StatefulDataLoader(images(1, 640), batch_size=32, shuffle=True, num_workers=2, pin_memory=True)
validation_loader = torch.utils.data.DataLoader(images(2, 64), batch_size=32)
if options.parts:
    from instrument import PrefetchLoader

    loader = PrefetchLoader(loader, device)
parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "loader": loader}
run = Run(options, parts)
batches = endless(loader)
for step in run.steps():
    inputs, labels = next(batches)
    inputs, labels = inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)
    with torch.autocast(device.type, torch.float16 if device.type == "cuda" else torch.bfloat16):
        loss = criterion(model(inputs), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    run.log(step, loss=loss.item(), **({"validation": validate()} if (step + 1) % EVERY == 0 else {}))
