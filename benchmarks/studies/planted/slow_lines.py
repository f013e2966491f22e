"""Training loops, each with one planted slow line of Python while the GPU has nothing to do.

    nsys profile --python-sampling=true --python-sampling-frequency=1000 -t cuda,nvtx -s none --cpuctxsw=none \
        -c cudaProfilerApi --capture-range-end=stop -o sleep python benchmarks/studies/planted/slow_lines.py sleep

Each program prints the line and its time in the captured steps: `line_ms` on the host, and `idle_ms`, what is left of
it after the GPU's last work before the line. Each step reads its loss before the line, so that the two hardly differ.
In `item`, kernels and copies run inside the line; subtract them.
"""

from __future__ import annotations

import gc
import inspect
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

STEPS, WARM_UP = int(os.environ.get("STEPS", "160")), 20
clock = time.perf_counter


class SlowLine:
    """Measures the planted line: `begin` is called before it, and `end` behind it."""

    def __init__(self) -> None:
        self.parts: list[tuple[float, float, torch.cuda.Event]] = []

    def begin(self) -> None:
        """Note the host's time, and by an event when the GPU has finished what was launched before."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.parts.append((clock(), 0.0, event))

    def end(self) -> None:
        """Note the end of the line."""
        start, _, event = self.parts[-1]
        self.parts[-1] = (start, clock(), event)

    def capture(self) -> None:
        """Forget the warm-up, and start the capture; the first event ties the GPU's clock to the host's."""
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStart()
        self.first = torch.cuda.Event(enable_timing=True)
        self.start = clock()
        self.first.record()
        torch.cuda.synchronize()
        self.parts = []

    def stop(self) -> None:
        """Stop the capture."""
        torch.cuda.synchronize()
        self.step_ms = (clock() - self.start) * 1000 / STEPS
        torch.cuda.cudart().cudaProfilerStop()

    def report(self, name: str) -> dict[str, object]:
        """Return ms a step."""
        idle = [
            end - max(start, self.start + self.first.elapsed_time(event) / 1000) for start, end, event in self.parts
        ]
        text = Path(__file__).read_text().splitlines()
        return {
            "program": name,
            "line": next(at for at, line in enumerate(text, 1) if line.endswith(f"# planted: {name}")),
            "function": PROGRAMS[name].__name__,
            "steps": STEPS,
            "ms_per_step": round(self.step_ms, 4),
            "line_ms": round(sum(end - start for start, end, _ in self.parts) * 1000 / STEPS, 4),
            "idle_ms": round(sum(max(0, part) for part in idle) * 1000 / STEPS, 4),
            "line_in_steps_ms": [round((end - start) * 1000, 3) for start, end, _ in self.parts[:40]],
        }


def gpt2() -> tuple[nn.Module, Callable[[Tensor | None], float]]:
    """Return a small GPT-2 and its training step, which returns the loss."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=8192)).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    fixed = torch.randint(8192, (8, 128), device="cuda")

    def step(tokens: Tensor | None = None) -> float:
        tokens = fixed if tokens is None else tokens.cuda()
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return model, step


def resnet18() -> tuple[nn.Module, Callable[[Tensor | None], float]]:
    """Return a ResNet-18 and its training step, which returns the loss."""
    import torchvision

    model = torchvision.models.resnet18().cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    fixed, target = torch.randn(16, 3, 96, 96, device="cuda"), torch.randint(1000, (16,), device="cuda")

    def step(images: Tensor | None = None) -> float:
        images = fixed if images is None else images.cuda()
        loss = nn.functional.cross_entropy(model(images), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return model, step


def train(step: Callable[[], object], extra: Callable[[], object], line: SlowLine) -> None:
    """Run the warm-up and STEPS captured steps."""
    for index in range(WARM_UP + STEPS):
        if index == WARM_UP:
            line.capture()
        step()
        extra()
    line.stop()


def sleep(line: SlowLine) -> None:
    """Wait for 6 ms."""
    _, step = gpt2()

    def poll() -> None:
        line.begin()
        time.sleep(0.006)  # planted: sleep
        line.end()

    train(step, poll, line)


def items(line: SlowLine) -> None:
    """Read the norm and the largest value of each weight."""
    model, step = resnet18()

    def norms() -> None:
        line.begin()
        {name: (w.norm().item(), w.abs().max().item()) for name, w in model.named_parameters()}  # planted: item
        line.end()

    train(step, norms, line)


def dumps(line: SlowLine) -> None:
    """Make JSON of a record of the training."""
    _, step = gpt2()
    history = [{"step": index, "loss": index / 7, "name": f"step {index}"} for index in range(4000)]

    def write() -> None:
        line.begin()
        json.dumps(history)  # planted: json
        line.end()

    train(step, write, line)


def log(line: SlowLine) -> None:
    """Log 800 lines into a file."""
    _, step = resnet18()
    logger = logging.getLogger("training")
    handler = logging.FileHandler("training.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    logger.setLevel(logging.INFO)

    def describe() -> None:
        line.begin()
        for number in range(800):
            logger.info("weight %d of the model has changed by %f", number, number / 7)  # planted: logging
        line.end()

    train(step, describe, line)


def locked(line: SlowLine) -> None:
    """Wait for a lock that another thread holds for most of the time."""
    _, step = gpt2()
    lock, ended = threading.Lock(), threading.Event()

    def hold() -> None:
        while not ended.is_set():
            with lock:
                time.sleep(0.008)
            time.sleep(0.0005)

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()

    def snapshot() -> None:
        line.begin()
        lock.acquire()  # planted: lock
        line.end()
        lock.release()

    train(step, snapshot, line)
    ended.set()
    holder.join()


def dataset(line: SlowLine) -> None:
    """Compute each sample by a Python loop."""
    _, step = gpt2()

    class Texts(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, index: int) -> Tensor:
            line.begin()
            tokens = [(index * 7919 + place * place) % 8192 for place in range(6400)][:128]  # planted: getitem
            line.end()
            return torch.tensor(tokens)

    batches = iter(torch.utils.data.DataLoader(Texts(), batch_size=8))
    batch: list[Tensor] = [next(batches)]

    def load() -> None:
        batch[0] = next(batches)

    train(lambda: step(batch[0]), load, line)


def collect(line: SlowLine) -> None:
    """Collect garbage among many objects; those of the libraries are left out."""
    _, step = resnet18()
    step()
    gc.freeze()
    kept = [{"number": index, "list": [index]} for index in range(40_000)]

    def tidy() -> None:
        line.begin()
        gc.collect()  # planted: gc
        line.end()

    train(step, tidy, line)
    del kept


def expression(line: SlowLine) -> None:
    """Search a text by a regular expression."""
    _, step = gpt2()
    text = " ".join(f"word{index} {index}." for index in range(9000))
    pattern = re.compile(r"(\w+)\s+(\d+)\.")

    def search() -> None:
        line.begin()
        pattern.findall(text)  # planted: regex
        line.end()

    train(step, search, line)


PROGRAMS = {
    "sleep": sleep, "item": items, "json": dumps, "logging": log, "lock": locked, "getitem": dataset, "gc": collect,
    "regex": expression,
}  # fmt: skip


def main() -> None:
    """Run one program, or list all."""
    if len(sys.argv) < 2:
        print("\n".join(f"{name}: {inspect.getdoc(run)}" for name, run in PROGRAMS.items()))
        return
    line = SlowLine()
    PROGRAMS[sys.argv[1]](line)
    print(json.dumps(line.report(sys.argv[1])))


if __name__ == "__main__":
    main()
