"""What the programs here share: their options, the file of their losses, and with --parts their checkpoints."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

EVERY = 5  # steps between checkpoints, and between validations


def parsed_options() -> argparse.Namespace:
    """Return the options of a program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="folder of the losses and checkpoints")
    parser.add_argument("--parts", action="store_true", help="use the parts of instrument, and continue a run")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) if torch.cuda.is_available() else 0)
    if not torch.cuda.is_available():
        options.device = torch.device("cpu")
    torch.manual_seed(0)
    return options


class Run:
    """The steps of a program. With --parts it continues after its last checkpoint and writes one every few steps.

    Args:
        options: the options of the program.
        parts: what a checkpoint holds, by name.
        writes: whether this process writes the losses and the checkpoints.
        random: whether a checkpoint also holds the random generators.
    """

    def __init__(
        self, options: argparse.Namespace, parts: Mapping[str, Any], *, writes: bool = True, random: bool = True
    ) -> None:
        self.options, self.parts, self.writes, self.step = options, parts, writes, 0
        self._log = (options.folder / "losses.jsonl").open("a") if writes else None
        self.checkpoints: Any = None
        if options.parts:
            from instrument import Checkpoints

            self.checkpoints = Checkpoints(options.folder / "checkpoints", keep=2)
            if self.checkpoints.latest() is not None:
                self.step = self.checkpoints.load("latest", parts, options.device, random=random).step

    def steps(self) -> Iterator[int]:
        """Yield the steps that are left, and save after each fifth one."""
        while self.step < self.options.steps:
            yield self.step
            self.step += 1
            if self.step % EVERY == 0 and self.checkpoints is not None and self.writes:
                self.checkpoints.save(self.step, self.parts)

    def log(self, step: int, **values: float) -> None:
        """Write the figures of a step."""
        if self._log is not None:
            self._log.write(json.dumps({"step": step, **values}) + "\n")
            self._log.flush()


def endless(loader: Any) -> Iterator[Any]:
    """Yield the batches of a loader, epoch after epoch."""
    while True:
        yield from loader
