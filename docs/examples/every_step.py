"""Log the loss of every step into a file and print some, and the GPU never waits for it.

    python docs/examples/every_step.py losses.csv

`log` starts the copy of a loss to the host. It returns losses of earlier steps that have arrived, in order; `wait`
returns the rest after the last step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from instrument import SyncPolicy, usable_device

STEPS, PRINTED = 1000, 100


def main(path: Path) -> None:
    """Train a small model and write the loss of each step."""
    device = usable_device("cuda")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    late = SyncPolicy(every=10).metrics(device)
    with path.open("w") as file:

        def write(arrived: list[tuple[int, dict[str, float]]]) -> None:
            for step, figures in arrived:
                file.write(f"{step},{figures['loss']},{figures['norm']}\n")
                if (step + 1) % PRINTED == 0:
                    print(f"step {step + 1}  loss {figures['loss']:.4f}")

        for step in range(STEPS):
            inputs = torch.randn(32, 64, device=device)
            loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            write(late.log(step, {"loss": loss, "norm": norm}))
        write(late.wait())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
