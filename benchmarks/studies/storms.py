#!/usr/bin/env python3
"""Programs with a loop over elements, and without it, to check the `fuse` predictions of `traceview whatif`.

    nsys profile -t cuda,nvtx -s none --cpuctxsw=none -c cudaProfilerApi --capture-range-end=stop -o rows_loop \
        python benchmarks/studies/storms.py rows loop
    nsys export --type sqlite -o rows_loop.sqlite rows_loop.nsys-rep          the same for `rows whole`
    python benchmarks/whatif_pairs.py --list benchmarks/whatif_storms.txt --folder FOLDER

rows    normalise each row of the input                   loss    sum the cross-entropy of each row
mask    set a tail of varying length to 0 in each row     adam    AdamW with foreach=False
tables  look up 32 embedding tables                       nested  scale each position by its weights, in a range
pool    mean of each row over its length                  clip    clip the gradients one by one

The first five have small layers around the loop, the others six transformer layers. Captures have 12 iterations.
Needs a GPU and PyTorch.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

SMALL = ("rows", "loss", "mask", "adam", "tables")
DEEP = ("nested", "pool", "clip")
WARM, CAPTURED = 20, 12
TABLES, ROWS = 32, 128
BATCH, POSITIONS, WIDTH = 16, 96, 768
push, pop = torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop


class Block(nn.Module):
    """A small residual layer."""

    def __init__(self, width: int) -> None:
        """Create the two linear layers and the norm."""
        super().__init__()
        self.a, self.b, self.n = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the layer's output."""
        return x + self.b(F.gelu(self.a(self.n(x))))


class Small(nn.Module):
    """Six small layers on ROWS rows, with the loop `name`."""

    def __init__(self, name: str, loop: bool) -> None:
        """Create the layers, and random rows with labels."""
        super().__init__()
        self.name, self.loop = name, loop
        self.blocks = nn.Sequential(*(Block(512) for _ in range(6)))
        self.head = nn.Linear(512, ROWS)
        if name == "tables":
            self.tables = nn.ParameterList(nn.Parameter(0.02 * torch.randn(1000, 32)) for _ in range(TABLES))
            self.join = nn.Linear(32 * TABLES, 512)
            self.register_buffer("x", torch.randint(0, 1000, (ROWS, TABLES)))
        else:
            self.register_buffer("x", torch.randn(ROWS, 512))
        self.register_buffer("y", torch.randint(0, ROWS, (ROWS,)))
        self.lengths = torch.randint(1, ROWS, (ROWS,)).tolist()
        self.register_buffer("keep", torch.arange(ROWS) < torch.tensor(self.lengths)[:, None])

    def entering(self) -> Tensor:
        """Return the input of the first layer."""
        x: Tensor = self.x
        if self.name == "tables" and self.loop:
            return self.join(torch.cat([F.embedding(x[:, i], parameter) for i, parameter in enumerate(self.tables)], 1))
        if self.name == "tables":
            flat = x + 1000 * torch.arange(TABLES, device=x.device)
            return self.join(F.embedding(flat, torch.cat(list(self.tables))).flatten(1))
        if self.name == "rows" and self.loop:
            return torch.stack([(row - row.mean()) / (row.std() + 1e-5) for row in x.unbind()])
        if self.name == "rows":
            return (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)
        return x

    def forward(self) -> Tensor:
        """Return the loss."""
        out: Tensor = self.head(self.blocks(self.entering()))
        if self.name == "loss" and self.loop:
            total = torch.zeros((), device=out.device)
            for i in range(len(out)):
                total = total + F.cross_entropy(out[i : i + 1], self.y[i : i + 1])
            return total / len(out)
        if self.name == "mask" and self.loop:
            out = out.clone()
            for i, length in enumerate(self.lengths):
                out[i, length:] = 0.0
        elif self.name == "mask":
            out = out.masked_fill(~self.keep, 0.0)
        return F.cross_entropy(out, self.y)


class Deep(nn.Module):
    """Six transformer layers, with the loop `name`."""

    def __init__(self, name: str, loop: bool) -> None:
        """Create the layers and random sequences."""
        super().__init__()
        self.name, self.loop = name, loop
        layers = (
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True, dropout=0.0, norm_first=True)
            for _ in range(6)
        )
        self.body, self.head = nn.Sequential(*layers), nn.Linear(WIDTH, 64)
        if name == "nested":
            self.scale = nn.Parameter(torch.ones(POSITIONS, WIDTH))
        self.register_buffer("x", torch.randn(BATCH, POSITIONS, WIDTH))
        self.register_buffer("y", torch.randint(0, 64, (BATCH, POSITIONS)))
        self.lengths = torch.randint(8, POSITIONS, (BATCH,)).tolist()
        self.register_buffer("keep", torch.arange(POSITIONS) < torch.tensor(self.lengths)[:, None])

    def scaled(self, h: Tensor) -> Tensor:
        """Return each position scaled by its weights."""
        if not self.loop:
            return h * self.scale + 0.1 * h.tanh()
        return torch.stack([h[:, i] * self.scale[i] + 0.1 * h[:, i].tanh() for i in range(POSITIONS)], 1)

    def pooled(self, h: Tensor) -> Tensor:
        """Return the mean of each row over its length."""
        if self.loop:
            return torch.stack([h[i, :length].mean(0) for i, length in enumerate(self.lengths)])
        return (h * self.keep[..., None]).sum(1) / self.keep.sum(1, keepdim=True)

    def forward(self) -> Tensor:
        """Return the loss."""
        h: Tensor = self.x
        if self.name == "nested":
            push("scale")
            h = self.scaled(h)
            pop()
        h = self.body(h)
        if self.name == "pool":
            return F.cross_entropy(self.head(self.pooled(h)), self.y[:, 0])
        return F.cross_entropy(self.head(h).flatten(0, 1), self.y.flatten())


def clip(parameters: Iterable[nn.Parameter], loop: bool) -> None:
    """Clip the gradients to a norm of 1."""
    parameters = list(parameters)
    if not loop:
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        return
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    total = torch.zeros((), device=grads[0].device)
    for grad in grads:
        total = total + grad.pow(2).sum()
    scale = (1.0 / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(scale)


def main() -> None:
    """Run the warm-up, then the captured iterations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=(*SMALL, *DEEP))
    parser.add_argument("form", choices=("loop", "whole"))
    options = parser.parse_args()
    loop = options.form == "loop"
    torch.manual_seed(0)
    model = (Small if options.name in SMALL else Deep)(options.name, loop).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=not (loop and options.name == "adam"))
    for number in range(WARM + CAPTURED):
        if number == WARM:
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
        push(f"iteration {number}")
        push("forward")
        loss = model()
        pop()
        push("backward")
        loss.backward()
        pop()
        if options.name == "clip":
            clip(model.parameters(), loop)
        push("optimizer")
        optimizer.step()
        optimizer.zero_grad()
        pop()
        pop()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


if __name__ == "__main__":
    main()
