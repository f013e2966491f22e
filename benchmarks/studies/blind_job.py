"""What the programs of blind_host_programs.py and blind_gpu_programs.py are made of: a Job says which changes are on.

Each change can be made alone or with others, by the name that `traceview whatif` has for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from foreign_programs import Prefetcher, replayed
from torch import Tensor, nn

Step = Callable[[int], object]
Batch = tuple[Tensor, ...]
READ_EVERY = 10
PROGRAMS: dict[str, tuple[str, Callable[[Job], Step | Loop]]] = {}


class Job:
    """The changes that are on; `known` collects those that the program can make."""

    def __init__(self, changes: set[str], *, tiny: bool = False) -> None:
        """Small sizes if `tiny`: for a test on a machine without a GPU."""
        self.changes, self.tiny, self.known = changes, tiny, set[str]()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def has(self, change: str) -> bool:
        """Return whether a change is on, and note that the program can make it."""
        self.known.add(change)
        return change in self.changes

    def size(self, full: int, tiny: int) -> int:
        """Return a size."""
        return tiny if self.tiny else full

    def model(self, build: Callable[[], nn.Module], *, dims: int = 0) -> Any:
        """Return a model on the device; `dims`, 4 or 5: those of its images, which can have the channels last."""
        if self.has("tf32"):
            torch.backends.cuda.matmul.allow_tf32 = True
        try:
            with torch.device(self.device):
                model = build().train()
        except (RuntimeError, TypeError, NotImplementedError):  # some models can only be made on the CPU
            model = build().train()
        return model.to(self.device, memory_format=self.layout(dims)) if dims else model.to(self.device)

    def layout(self, dims: int) -> torch.memory_format:
        """Return the layout of images."""
        last = torch.channels_last if dims == 4 else torch.channels_last_3d
        return last if self.has("channels-last") else torch.contiguous_format

    def compiled(self, function: Any) -> Any:
        """Return a model, or what torch.compile makes of it."""
        return torch.compile(function) if self.has("compile") else function

    def optimizer(
        self, parameters: Any, kind: Any = torch.optim.AdamW, *, fused: bool = False
    ) -> torch.optim.Optimizer:
        """Return an optimizer; it can be captured in a graph."""
        options: dict[str, Any] = {"fused": fused or self.has("fused-optimizer")}
        if "graph" in self.changes and kind is not torch.optim.SGD:
            options["capturable"] = True
        return kind(parameters, 1e-4, **options)

    def autocast(self, always: bool = False) -> torch.autocast:
        """Return the context of the forward pass."""
        enabled = always or self.has("bf16")
        return torch.autocast(self.device, torch.bfloat16, enabled=enabled, cache_enabled="graph" not in self.changes)

    def reads(self, index: int, every: int) -> bool:
        """Return whether the host reads results in this step."""
        return index % (READ_EVERY if every == READ_EVERY or self.has("sync") else every) == 0

    def captured(self, function: Callable[..., Tensor], inputs: Batch) -> Callable[..., Tensor]:
        """Return a function, or one that copies arguments other than `inputs` there, and replays a graph."""
        if not self.has("graph"):
            return function
        static, outputs = inputs, []
        replay = replayed(lambda: outputs.append(function(*static)))

        def call(*parts: Tensor) -> Tensor:
            for own, part in zip(static, parts, strict=True):
                if own is not part:
                    own.copy_(part, non_blocking=True)
            replay()
            return outputs[-1]

        return call

    def batches(self, make: Callable[[], Batch], host: str, dims: int) -> Iterator[Batch]:
        """Return batches on the GPU: one again and again, or four of "pageable" or "pinned" memory in turn."""

        def made() -> Batch:
            parts = make()
            return tuple(
                part.contiguous(memory_format=self.layout(dims)) if part.dim() == dims else part for part in parts
            )

        if not host:
            return itertools.repeat(tuple(part.to(self.device) for part in made()))
        pinned = host == "pinned" or self.has("pin")
        ready = [tuple(part.pin_memory() if pinned else part for part in made()) for _ in range(4)]
        source = itertools.cycle(ready)
        if self.has("prefetch"):
            return iter(Prefetcher(source).__next__, None)  # type: ignore[arg-type]
        return (tuple(part.to(self.device, non_blocking=True) for part in batch) for batch in source)


class Loop:
    """A program whose library has the loop; it calls `advance` after each step, and ends when that returns True."""

    def __init__(self, run: Callable[[Callable[[], bool]], object]) -> None:
        self.run = run


def program(name: str, changes: str) -> Callable[[Callable[[Job], Step | Loop]], Callable[[Job], Step | Loop]]:
    """Register a program, and the changes between `before` and `after`."""

    def register(build: Callable[[Job], Step | Loop]) -> Callable[[Job], Step | Loop]:
        PROGRAMS[name] = (changes, build)
        return build

    return register


def training(
    job: Job,
    model: Any,
    loss: Callable[..., Tensor],
    make: Callable[[], Batch],
    *,
    host: str = "",
    dims: int = 0,
    amp: bool = False,
    every: int = READ_EVERY,
    **options: Any,
) -> Step:
    """Return a training step; `loss` gets the model and a batch."""
    called, optimizer = job.compiled(model), job.optimizer(model.parameters(), **options)

    def compute(*batch: Tensor) -> Tensor:
        with job.autocast(amp):
            value = loss(called, *batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    batches = job.batches(make, host, dims)
    first = next(batches)
    update = job.captured(compute, tuple(part.clone() for part in first) if host else first)

    def step(index: int) -> None:
        value = update(*next(batches))
        if job.reads(index, every):
            value.item()

    return step


def classes(model: Any, inputs: Tensor, target: Tensor) -> Tensor:
    """Return the loss of a classifier."""
    return F.cross_entropy(model(inputs), target)
