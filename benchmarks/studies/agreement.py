#!/usr/bin/env python3
"""Diagnose six programs without a profiler and capture them: both should name the same first cause.

    python benchmarks/studies/agreement.py diagnose FOLDER [NAME ...]                  on a GPU: N.json of each
    python benchmarks/studies/agreement.py capture FOLDER [NAME ...] [--nsys PROGRAM]  N.nsys-rep; export them to SQLite
    python benchmarks/studies/agreement.py table FOLDER                                what both say

Three programs train the trainer's own model, three a model and data in the style of others: torchvision's ResNet-50
with images that the CPU prepares, GPT-2 of transformers, and the VAE of pytorch/examples.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

OWN = "--batch 32 --sequence 256"
HERE = "benchmarks/studies/agreement.py"
NSYS = ("-t", "cuda,nvtx", "-s", "none", "--cpuctxsw=none", "-c", "cudaProfilerApi", "--capture-range-end=stop")
PROGRAMS = {
    "samples made when needed": f"{OWN} --features 2048 --distinct-batches 0 --workers 2 --width 512 --layers 2",
    "pageable copies": f"{OWN} --features 4096 --samples 128 --preload --strategy serial",
    "small kernels": "--batch 4 --sequence 32 --features 64 --width 256 --layers 12 --samples 128 --preload",
    "ResNet-50": f"--model {HERE}:resnet --data {HERE}:Images --loss torch.nn:CrossEntropyLoss --batch 32 --workers 4",
    "GPT-2": f"--model {HERE}:gpt2 --data {HERE}:Tokens --batch 4 --workers 4",
    "VAE": f"--model {HERE}:Vae --data {HERE}:Digits --loss {HERE}:vae_loss --batch 128 --workers 1 --precision fp32",
}


class Images(Dataset[tuple[Tensor, int]]):
    """Images that are enlarged and flipped when they are read."""

    def __len__(self) -> int:
        """Return the number of images."""
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return an image and its class."""
        image = torch.randint(256, (1, 3, 500, 375), dtype=torch.uint8, generator=torch.Generator().manual_seed(index))
        large = nn.functional.interpolate(image.float(), (256, 256), mode="bicubic", antialias=True)
        return large[0, :, 16:240, 16:240].flip(-1) / 255, index % 1000


class Tokens(Dataset[dict[str, Tensor]]):
    """Sequences of 512 random tokens."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        return 100_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return a sequence and its labels."""
        tokens = torch.randint(50257, (512,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Digits(Dataset[Tensor]):
    """Digits of 28 x 28 pixels, normalised one by one, as torchvision's MNIST with ToTensor does."""

    def __len__(self) -> int:
        """Return the number of digits."""
        return 600_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return a digit."""
        pixels = torch.randint(256, (1, 28, 28), dtype=torch.uint8, generator=torch.Generator().manual_seed(index))
        return pixels.float() / 255, index % 10


def resnet() -> nn.Module:
    """Return torchvision's ResNet-50."""
    from torchvision.models import resnet50

    model: nn.Module = resnet50()
    return model


def gpt2() -> nn.Module:
    """Return GPT-2 of 124 million parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model: nn.Module = GPT2LMHeadModel(GPT2Config())
    return model


class Vae(nn.Module):
    """The variational autoencoder of pytorch/examples."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(784, 400), nn.Linear(400, 20), nn.Linear(400, 20)
        self.fc3, self.fc4 = nn.Linear(20, 400), nn.Linear(400, 784)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the pixels, the reconstruction, and the mean and the logarithm of the variance."""
        flat = x.view(-1, 784)
        hidden = torch.relu(self.fc1(flat))
        mean, logvar = self.fc21(hidden), self.fc22(hidden)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * logvar)
        return flat, torch.sigmoid(self.fc4(torch.relu(self.fc3(z)))), mean, logvar


def vae_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of the example."""
    flat, made, mean, logvar = model(batch[0])
    likelihood = nn.functional.binary_cross_entropy(made, flat, reduction="sum")
    return likelihood - 0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())


def diagnose(folder: Path, names: Sequence[str]) -> None:
    """Diagnose each program."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name, flags in chosen(names):
        words = [sys.executable, "-m", "instrument.diagnose", *flags, "--iterations", "10", "--warm-up", "3"]
        done = subprocess.run([*words, "--json", str(folder / f"{number}.json")], capture_output=True, text=True)
        print(name, done.returncode, done.stderr[-300:] if done.returncode else "", flush=True)


def capture(folder: Path, names: Sequence[str], nsys: str) -> None:
    """Capture twenty steps of each program, after its workers' first batches are used up."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name, flags in chosen(names):
        train = [sys.executable, "-m", "instrument.train", *flags, "--steps", "80", "--capture", "60:80"]
        words = [
            nsys,
            "profile",
            *NSYS,
            "-o",
            str(folder / str(number)),
            *train,
            "--checkpoint-folder",
            f"/tmp/{number}",
        ]
        done = subprocess.run(words, capture_output=True, text=True)
        print(name, done.returncode, done.stderr[-300:] if done.returncode else "", flush=True)


def chosen(names: Sequence[str]) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the number, the name and the flags of the programs with these names; of all, if there are none."""
    for number, (name, flags) in enumerate(PROGRAMS.items()):
        if name in names or not names:
            yield number, name, flags.split()


def table(folder: Path) -> None:
    """Print what both say about each program."""
    for number, name in enumerate(PROGRAMS):
        verdict = json.loads((folder / f"{number}.json").read_text())["verdict"]
        words = [sys.executable, "-m", "traceview", "analyze", str(folder / f"{number}.sqlite")]
        words += ["--no-html", "--quiet", "--json", "-"]
        found = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
        findings = [(row["id"], row.get("title")) for row in found["findings"][:3]]
        share = "" if verdict["lost_percent"] is None else f" {verdict['lost_percent']:.0f}%"
        print(f"{name}: diagnose {verdict['bound']}{share} ({verdict['because']}); traceview {findings}")


def main() -> None:
    """Record, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["diagnose", "capture", "table"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="programs; all, if none is named")
    parser.add_argument("--nsys", default="nsys")
    options = parser.parse_args()
    if options.what == "diagnose":
        diagnose(options.folder, options.names)
    elif options.what == "capture":
        capture(options.folder, options.names, options.nsys)
    else:
        table(options.folder)


if __name__ == "__main__":
    main()
