"""Measure what `python -m instrument.run` adds on the CPU, without a profiler: ns a range, or a call without one.

    python benchmarks/studies/run_overhead.py [--rounds 15]

Each call is measured in turns as torch has it and as `instrument.run` replaces it. The last row is a whole step.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from statistics import median, quantiles
from time import thread_time_ns
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from instrument.run.patches import patch_torch
from instrument.run.steps import ProgramSteps

Work = Callable[[], object]
REPLACED = (
    *((nn.Module, "__call__"), (Tensor, "to"), (torch.autograd, "backward"), (_BaseDataLoaderIter, "__next__")),
    *((optimizers, "_global_optimizer_pre_hooks"), (optimizers, "_global_optimizer_post_hooks")),
)


class Nothing(nn.Module):
    """A module that returns its input, through another one if it has one."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        """Return the input."""
        return x if self.inner is None else self.inner(x)


class Endless(_BaseDataLoaderIter):
    """An iterator that returns the same batch for ever."""

    def _next_data(self) -> Tensor:
        return torch.ones(1)


def current() -> list[Any]:
    """Return what stands in torch now."""
    return [getattr(owner, name).copy() if "hooks" in name else getattr(owner, name) for owner, name in REPLACED]


def put(values: list[Any]) -> None:
    """Put back what `current` returned."""
    for (owner, name), value in zip(REPLACED, values, strict=True):
        setattr(owner, name, value)


def works() -> dict[str, tuple[Work, int, int]]:
    """Return each kind of call, the ranges in it, and how often it is called in a round."""
    x, leaf = torch.ones(1), torch.ones(1, requires_grad=True)
    outer, inner = Nothing(Nothing()), Nothing()
    loader = Endless(DataLoader(TensorDataset(x)))
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(4, 8)

    def step() -> None:
        optimizer.zero_grad()
        model(batch.to("cpu")).sum().backward()
        optimizer.step()

    step()
    model(batch)  # an iteration is open from here
    return {
        "forward": (lambda: inner(x), 1, 5000),
        "forward of two modules": (lambda: outer(x), 1, 5000),
        "h2d": (lambda: x.to("cpu"), 1, 5000),
        ".to(dtype), no range": (lambda: x.to(torch.float32), 1, 5000),
        "data_load": (lambda: next(loader), 1, 2000),
        "backward": (lambda: leaf.backward(), 1, 2000),
        "step: iteration and four phases": (step, 5, 500),
    }


def main() -> None:
    """Print a row for each kind of call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    plain = current()
    patch_torch(ProgramSteps(), depth=0)
    replaced = current()
    calls_of = works()
    gc.collect()
    gc.freeze()  # a collection of torch's own objects costs more than all calls
    print(f"{'ns a range':32}{'bare call':>12}{'added':>9}{'middle half':>20}")
    for name, (work, ranges, calls) in calls_of.items():
        spent: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(rounds + 1):
            for with_ranges in (False, True):
                put(replaced if with_ranges else plain)
                start = thread_time_ns()
                for _ in range(calls):
                    work()
                spent[with_ranges].append((thread_time_ns() - start) / calls)
        added = [(after - before) / ranges for before, after in zip(spent[False], spent[True], strict=True)][1:]
        low, _middle, high = quantiles(added, n=4)
        print(f"{name:32}{median(spent[False]):12,.0f}{median(added):9,.0f}{f'{low:,.0f} to {high:,.0f}':>20}")


if __name__ == "__main__":
    main()
