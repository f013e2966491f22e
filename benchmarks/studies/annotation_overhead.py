"""Measure the cost of annotations without a profiler: ns per call, as the median over rounds.

    python benchmarks/studies/annotation_overhead.py [--rounds 25] [--json FILE]

Each figure is the difference between the annotated and the plain form, measured in turns. Figures of modules are ns per
module and step. Run it under `nsys profile -t nvtx` to measure the same calls with a profiler.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter_ns

import nvtx
import torch
from torch import nn

from instrument.modules import annotate_module
from instrument.ranges import annotate, mark, phase

Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of an annotation in ns per call: the median over rounds, and the quartiles."""

    what: str
    calls: int
    bare_ns: float
    added_ns: float
    added_low_ns: float
    added_high_ns: float


def measure(what: str, bare: Work, annotated: Work, *, calls: int, rounds: int, inside: int = 1) -> Cost:
    """Measure both forms in turns, `calls` calls per round. Each call has `inside` annotations."""
    each = [(_ns(bare, calls) / inside, _ns(annotated, calls) / inside) for _ in range(rounds + 1)][1:]
    added = [with_it - without for without, with_it in each]
    low, _middle, high = quantiles(added, n=4)
    return Cost(what, calls * inside, median(without for without, _ in each), median(added), low, high)


def _ns(work: Work, calls: int) -> float:
    start = perf_counter_ns()
    for _ in range(calls):
        work()
    return (perf_counter_ns() - start) / calls


def costs(rounds: int) -> list[Cost]:
    """Measure all kinds of annotations."""
    made = annotate("block")
    return [
        _block("with nvtx.annotate, made each time", lambda: nvtx.annotate("block"), rounds),
        _block("with annotate, made once", lambda: made, rounds),
        _block("with annotate, made each time", lambda: annotate("block"), rounds),
        _block("with phase, made each time", lambda: phase("forward"), rounds),
        _block("with annotate and a payload", lambda: annotate("block", payload=1), rounds),
        measure("mark", _nothing, lambda: mark("block"), calls=20_000, rounds=rounds),
        measure("@annotate function", _nothing, annotate()(_nothing), calls=20_000, rounds=rounds),
        _module("annotate_module, inference", rounds, backward=False, train=False),
        _module("annotate_module, forward and backward", rounds, backward=True, train=True),
    ]


def _nothing() -> None:
    return None


def _block(what: str, make: Callable[[], AbstractContextManager[object]], rounds: int) -> Cost:
    empty = nullcontext()

    def bare() -> None:
        with empty:
            pass

    def annotated() -> None:
        with make():
            pass

    return measure(what, bare, annotated, calls=20_000, rounds=rounds)


def _module(what: str, rounds: int, *, backward: bool, train: bool) -> Cost:
    """Return sixteen linear layers, so small that their own time does not hide the cost."""
    layers = 16
    models = [nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers))) for _ in range(2)]
    for layer in models[1]:
        annotate_module(layer, backward=backward, prefix="layer")
    inputs = torch.ones(1, 4)

    def work(model: nn.Module) -> Work:
        return (lambda: model(inputs).sum().backward()) if train else torch.no_grad()(lambda: model(inputs))

    return measure(what, work(models[0]), work(models[1]), calls=100, rounds=rounds, inside=layers)


def _versions() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{name: version(name) for name in ("torch", "nvtx")},
    }


def main(arguments: list[str] | None = None) -> None:
    """Print the table; write JSON if --json is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25, help="rounds a figure is the median of (default 25)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    chosen = parser.parse_args(arguments)
    if chosen.rounds < 2:
        parser.error(f"--rounds {chosen.rounds}: a spread needs at least 2")
    torch.set_num_threads(1)
    figures = costs(chosen.rounds)
    print(f"{'ns a call':42}{'bare':>9}{'added':>9}{'middle half':>18}")
    for cost in figures:
        spread = f"{cost.added_low_ns:,.0f} to {cost.added_high_ns:,.0f}"
        print(f"{cost.what:42}{cost.bare_ns:9,.0f}{cost.added_ns:9,.0f}{spread:>18}")
    if chosen.json is not None:
        made = {"versions": _versions(), "rounds": chosen.rounds, "costs": [asdict(cost) for cost in figures]}
        chosen.json.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
