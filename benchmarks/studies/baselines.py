#!/usr/bin/env python3
"""Time what people use without this package, on the workloads of strategies.py: ms per step, without a profiler.

    python benchmarks/studies/baselines.py --json baselines.json        all workloads and baselines, three rounds
    python benchmarks/studies/baselines.py --workload small --rounds 1

    loader      a plain loop: DataLoader(pin_memory=True, num_workers=4) and .to(device, non_blocking=True)
    hf-trainer  the stock Trainer of transformers, with the same loader

Model, optimizer, precision and samples are those of strategies.py. The samples are in memory before the first step, and
four worker processes collate them. Nothing waits inside the timed steps but what each baseline does itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from strategies import SETTLING, STEPS, WORKLOADS, flags

from instrument.config.loading import load
from instrument.config.schema import Config
from instrument.data import Synthetic
from instrument.distributed.world import World, select_device
from instrument.models import Transformer, compile_model
from instrument.trainer.learner import Learner

WORKERS = 4


class RepeatedSamples(torch.utils.data.Dataset[Any]):
    """Samples that are made once, and repeated until there are enough for all steps."""

    def __init__(self, config: Config, length: int) -> None:
        made = Synthetic(config.model, config.data, config.training.seed)
        self._samples = [made[index] for index in range(config.data.samples)]
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._samples[index % len(self._samples)]


class Clock:
    """Measures the time of the steps after the settling ones, with a wait for the GPU at both ends."""

    def __init__(self, device: torch.device, steps: int) -> None:
        self.device, self.steps, self.settling = device, steps, min(SETTLING, steps - 1)
        self.step_ms = 0.0
        self._start = 0.0

    def before(self, step: int) -> None:
        """Start the clock before the first timed step and stop it after the last one."""
        if step in (self.settling, self.steps):
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            now = time.perf_counter()
            self.step_ms = 1000 * (now - self._start) / (self.steps - self.settling)
            self._start = now


def loader(config: Config, device: torch.device, steps: int) -> float:
    """Train with a plain loop; return ms per step."""
    torch.manual_seed(config.training.seed)
    learner = Learner(
        compile_model(Transformer(config.model, config.data).to(device), config.model), config.training, steps, device
    )
    batches = torch.utils.data.DataLoader(
        RepeatedSamples(config, steps * config.data.batch),
        batch_size=config.data.batch,
        pin_memory=device.type == "cuda",
        num_workers=WORKERS,
    )
    clock = Clock(device, steps)
    for step, batch in enumerate(batches):
        clock.before(step)
        on_device = {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
        learner.backward(learner.forward(on_device))
        learner.update()
    clock.before(steps)
    return clock.step_ms


def hf_trainer(config: Config, device: torch.device, steps: int) -> float:
    """Train with the stock Trainer; return ms per step."""
    import transformers

    clock = Clock(device, steps)

    class Timed(transformers.TrainerCallback):
        def on_step_begin(self, _args: Any, state: Any, *_: Any, **__: Any) -> None:
            clock.before(state.global_step)

        def on_train_end(self, *_: Any, **__: Any) -> None:
            clock.before(steps)

    class ReturnsLoss(torch.nn.Module):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, **batch: Any) -> dict[str, Any]:
            return {"loss": self.model(batch)}

    torch.manual_seed(config.training.seed)
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=config.data.batch, save_strategy="no",
            logging_strategy="no", report_to=[], disable_tqdm=True, dataloader_num_workers=WORKERS,
            dataloader_pin_memory=device.type == "cuda", remove_unused_columns=False, use_cpu=device.type == "cpu",
            bf16=config.training.precision == "bf16", learning_rate=config.training.learning_rate,
            max_grad_norm=config.training.clip or 0.0,
            optim="adamw_torch_fused" if device.type == "cuda" else "adamw_torch",
        )  # fmt: skip
        transformers.Trainer(
            ReturnsLoss(Transformer(config.model, config.data)),
            arguments,
            train_dataset=RepeatedSamples(config, steps * config.data.batch),
            callbacks=[Timed()],
        ).train()
    return clock.step_ms


BASELINES: dict[str, Callable[[Config, torch.device, int], float]] = {"loader": loader, "hf-trainer": hf_trainer}


def run(workloads: list[str], baselines: list[str], rounds: int, steps: int, **more: Any) -> Iterator[dict[str, Any]]:
    """Yield a row for each workload, round and baseline; `more` are flags that replace those of the workload."""
    for workload in workloads:
        config = load(None, flags(workload, "pinned", **more))
        device = select_device(config, World())
        for number in range(rounds):
            for name in baselines:
                step_ms = BASELINES[name](config, device, steps)
                yield {"workload": workload, "baseline": name, "round": number, "step_ms": step_ms}


def main() -> None:
    """Parse the arguments, run, print a line per run and the medians, and write the raw figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", action="append", choices=WORKLOADS)
    parser.add_argument("--baseline", action="append", choices=BASELINES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    workloads = options.workload or [name for name in WORKLOADS if name != "prompt"]
    rows = []
    for row in run(workloads, options.baseline or list(BASELINES), options.rounds, STEPS):
        rows.append(row)
        print(f"{row['workload']:8} {row['baseline']:12} round {row['round']}  {row['step_ms']:.3f} ms", flush=True)
    for workload, name in dict.fromkeys((row["workload"], row["baseline"]) for row in rows):
        times = [row["step_ms"] for row in rows if (row["workload"], row["baseline"]) == (workload, name)]
        print(f"{workload:8} {name:12} {statistics.median(times):8.2f} ({min(times):.2f} to {max(times):.2f})")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
