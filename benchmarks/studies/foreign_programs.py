"""Training and inference loops of PyTorch, Hugging Face, timm, Lightning and others, before and after one change.

The loops follow the official examples of these libraries and have no NVTX ranges. Weights and data are random. Each
program has the variants `before` and `after`; `traceview whatif` on the capture of `before` should predict `after`:

    nsys profile -t cuda,nvtx -s none --cpuctxsw=none -c cudaProfilerApi --capture-range-end=stop -o NAME.before \
        python benchmarks/studies/foreign_programs.py NAME before

Each run prints its times: STEPS steps before the capture, then STEPS captured ones (an environment variable, 20 if
not set). `python benchmarks/studies/foreign_programs.py` lists the programs and the changes.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

STEPS, WARM_UP, LOG_EVERY = int(os.environ.get("STEPS", "20")), 10, 10
Step = Callable[[int], object]
PROGRAMS: dict[str, tuple[str, Callable[[bool], Step]]] = {}


def program(name: str, changes: str) -> Callable[[Callable[[bool], Step]], Callable[[bool], Step]]:
    """Register a function that gets whether the change is made, and returns the step; `changes` are whatif's names."""

    def register(build: Callable[[bool], Step]) -> Callable[[bool], Step]:
        PROGRAMS[name] = (changes, build)
        return build

    return register


def host_batches(*shape: int, classes: int = 1000, pinned: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield four batches of host memory again and again, as a loader with ready batches does."""
    batches = [(torch.randn(shape), torch.randint(classes, (shape[0],))) for _ in range(4)]
    return itertools.cycle([(x.pin_memory(), y.pin_memory()) if pinned else (x, y) for x, y in batches])


class Prefetcher:
    """Copies the next batch on a side stream, as NVIDIA's data_prefetcher example does."""

    def __init__(self, batches: Iterator[tuple[Tensor, Tensor]]) -> None:
        self.batches, self.stream = batches, torch.cuda.Stream()
        self.copy_next()

    def copy_next(self) -> None:
        """Start the copy of the next batch."""
        with torch.cuda.stream(self.stream):
            self.batch = tuple(part.cuda(non_blocking=True) for part in next(self.batches))

    def __next__(self) -> tuple[Tensor, ...]:
        torch.cuda.current_stream().wait_stream(self.stream)
        batch = self.batch
        for part in batch:
            part.record_stream(torch.cuda.current_stream())
        self.copy_next()
        return batch


def classifier_step(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, ...]],
    *,
    log_every: int = LOG_EVERY,
    dtype: torch.dtype | None = None,
) -> Step:
    """Return a step of an image classifier, as in PyTorch's imagenet example."""
    model = model.cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step(index: int) -> None:
        images, target = (part.cuda(non_blocking=True) for part in next(batches))
        with torch.autocast("cuda", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if index % log_every == 0:
            loss.item()

    return step


@program("resnet50-pin", "pin")
def resnet50_pin(after: bool) -> Step:
    """ResNet-50 from ordinary or pinned memory."""
    import torchvision

    batches = host_batches(128, 3, 224, 224, pinned=after)
    return classifier_step(torchvision.models.resnet50(), batches, dtype=torch.bfloat16)


@program("resnet50-prefetch", "prefetch")
def resnet50_prefetch(after: bool) -> Step:
    """ResNet-50, copies on the computing or on a side stream."""
    import torchvision

    batches = host_batches(128, 3, 224, 224, pinned=True)
    model = torchvision.models.resnet50()
    return classifier_step(model, Prefetcher(batches) if after else batches, dtype=torch.bfloat16)


@program("vit-pin-prefetch", "pin,prefetch")
def vit_pin_prefetch(after: bool) -> Step:
    """A vision transformer, copied batch by batch or pinned and prefetched."""
    import timm

    model = timm.create_model("vit_small_patch16_224")
    batches = host_batches(256, 3, 224, 224, pinned=after)
    return classifier_step(model, Prefetcher(batches) if after else batches, dtype=torch.bfloat16)


class Images(torch.utils.data.Dataset):
    """Decoding and augmentation of about 1.5 ms an image on one core."""

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = torch.randint(256, (3, 300, 300), dtype=torch.uint8).float()
        image = nn.functional.interpolate(image[None], size=(224, 224), mode="bilinear", antialias=True)[0]
        return (image - 128) / 64, index % 1000


@program("timm-loader", "load")
def timm_loader(after: bool) -> Step:
    """A loader with 1 or 12 workers."""
    import timm

    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(Images(), batch_size=64, num_workers=12 if after else 1, pin_memory=True)
    return classifier_step(timm.create_model("resnet26"), iter(loader), dtype=torch.bfloat16)


def mnist_net() -> nn.Module:
    """Return the network of PyTorch's MNIST example."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip


@program("mnist-sync", "sync")
def mnist_sync(after: bool) -> Step:
    """PyTorch's MNIST example, loss read in each or in every tenth step."""
    batches = host_batches(64, 1, 28, 28, classes=10, pinned=True)
    return classifier_step(mnist_net(), batches, log_every=LOG_EVERY if after else 1)


def gpt2_step(reads_rarely: bool, *, batch: int, optimizer: Callable[..., torch.optim.Optimizer]) -> Step:
    """Return a training step of a GPT-2 of Hugging Face; the loss is read in each step unless `reads_rarely`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=50304)).cuda().train()
    chosen = optimizer(model.parameters())
    tokens = torch.randint(50257, (batch, 512), device="cuda")

    def step(index: int) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        chosen.step()
        chosen.zero_grad()
        if not reads_rarely or index % LOG_EVERY == 0:
            loss.item()

    return step


@program("gpt2-sync", "sync")
def gpt2_sync(after: bool) -> Step:
    """GPT-2, loss read in each or in every tenth step."""
    return gpt2_step(after, batch=16, optimizer=lambda p: torch.optim.AdamW(p, 1e-4, fused=True))


@program("gpt2-optimizer", "fuse")
def gpt2_optimizer(after: bool) -> Step:
    """GPT-2, AdamW tensor by tensor or fused."""
    options = {"fused": True} if after else {"foreach": False, "fused": False}
    return gpt2_step(True, batch=8, optimizer=lambda p: torch.optim.AdamW(p, 1e-4, **options))


def replayed(step: Callable[[], object]) -> Callable[[], object]:
    """Return a function that replays `step` as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def maybe_replayed(after: bool, step: Callable[[], object]) -> Step:
    """Return a step that launches each kernel, or one that replays all of them."""
    call = replayed(step) if after else step
    return lambda _index: call()


@program("bert-graph", "graph")
def bert_graph(after: bool) -> Step:
    """Inference of BERT, launched or replayed."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(attn_implementation="sdpa")).cuda().eval().half().requires_grad_(False)
    tokens = torch.randint(30000, (8, 128), device="cuda")
    mask = torch.zeros(8, 1, 128, 128, device="cuda", dtype=torch.half)
    return maybe_replayed(after, lambda: model(tokens, attention_mask=mask))


@program("resnet18-graph", "graph")
def resnet18_graph(after: bool) -> Step:
    """A training step of ResNet-18, launched or replayed."""
    import torchvision

    model = torchvision.models.resnet18().cuda().train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, capturable=True)
    images, target = torch.randn(16, 3, 224, 224, device="cuda"), torch.randint(1000, (16,), device="cuda")

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            loss = nn.functional.cross_entropy(model(images), target)
        loss.backward()
        optimizer.step()

    return maybe_replayed(after, step)


@program("gcn-sync", "sync")
def gcn_sync(after: bool) -> Step:
    """A graph network that prints in each or in every tenth step."""
    from torch_geometric.nn import GCNConv

    convolutions = nn.ModuleList([GCNConv(512, 256), GCNConv(256, 256), GCNConv(256, 40)]).cuda()
    features = torch.randn(100_000, 512, device="cuda")
    edges, target = torch.randint(100_000, (2, 1_000_000), device="cuda"), torch.randint(40, (100_000,), device="cuda")
    optimizer = torch.optim.Adam(convolutions.parameters(), 0.01, fused=True)

    def step(index: int) -> None:
        hidden = features
        for convolution in convolutions[:-1]:
            hidden = convolution(hidden, edges).relu()
        output = convolutions[-1](hidden, edges)
        loss = nn.functional.cross_entropy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not after or index % LOG_EVERY == 0:
            print(float(loss), float((output.argmax(1) == target).float().mean()), file=sys.stderr)

    return step


@program("dlrm-pin", "pin")
def dlrm_pin(after: bool) -> Step:
    """A recommendation model from ordinary or pinned memory."""
    tables = nn.ModuleList(nn.EmbeddingBag(200_000, 64, mode="sum") for _ in range(16)).cuda()
    top = nn.Sequential(nn.Linear(17 * 64, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
    bottom = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
    parameters = [*tables.parameters(), *top.parameters(), *bottom.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.01)
    batches = [(torch.randn(8192, 512), torch.randint(200_000, (16, 8192, 8)), torch.rand(8192, 1)) for _ in range(4)]
    batches = [tuple(part.pin_memory() for part in batch) for batch in batches] if after else batches

    def step(index: int) -> None:
        dense, sparse, target = (part.cuda(non_blocking=True) for part in batches[index % 4])
        embedded = [table(sparse[number]) for number, table in enumerate(tables)]
        loss = nn.functional.binary_cross_entropy_with_logits(top(torch.cat([bottom(dense), *embedded], 1)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@program("lstm-sync", "sync")
def lstm_sync(after: bool) -> Step:
    """PyTorch's language model example, loss read in each or in every tenth step."""
    embedding, decoder = nn.Embedding(33278, 1024).cuda(), nn.Linear(1024, 33278).cuda()
    model = nn.LSTM(1024, 1024, 2, dropout=0.2).cuda()
    parameters = [*embedding.parameters(), *model.parameters(), *decoder.parameters()]
    data, total = torch.randint(33278, (4000, 64), device="cuda"), 0.0

    def step(index: int) -> None:
        nonlocal total
        first = 35 * (index % 100)
        output, _ = model(embedding(data[first : first + 35]))
        loss = nn.functional.cross_entropy(decoder(output).flatten(0, 1), data[first + 1 : first + 36].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 0.25)
        with torch.no_grad():
            torch._foreach_add_(parameters, [p.grad for p in parameters], alpha=-0.1)
        for p in parameters:
            p.grad = None
        if not after or index % LOG_EVERY == 0:
            total += loss.item() + norm.item()

    return step


@program("decode-sync", "sync")
def decode_sync(after: bool) -> Step:
    """A GPT-2 that generates token by token, and looks for the end of all texts after each or every tenth token."""
    from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().eval().half().requires_grad_(False)
    tokens, cache = torch.randint(50257, (4, 1), device="cuda"), DynamicCache()
    finished = torch.zeros(4, 1, dtype=torch.bool, device="cuda")

    def step(index: int) -> None:
        nonlocal tokens
        logits = model(tokens, past_key_values=cache, use_cache=True).logits
        tokens = logits[:, -1:].argmax(-1)
        finished.logical_or_(tokens == 50256)
        if not after or index % LOG_EVERY == 0:
            finished.all().item()

    return step


class Window:
    """Times STEPS steps before a capture and STEPS captured ones, without a synchronization between steps."""

    def __init__(self, wait: Callable[[], object] | None = None) -> None:
        """`wait` waits for work that is not PyTorch's; without it, events note the GPU's time of each step too."""
        self.wait, self.has_events = wait or torch.cuda.synchronize, not wait
        self.done, self.parts = -WARM_UP, []

    def step_done(self) -> bool:
        """Note the end of a step; return whether it was the last one."""
        self.done += 1
        if self.done >= 0 and self.done % STEPS == 0:
            self.turn()
        elif self.done > 0:
            self.mark()
        return self.done == 2 * STEPS

    def mark(self) -> None:
        """Note the host's time, and the GPU's by an event."""
        self.host.append(time.perf_counter())
        if not self.has_events:
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.events.append(event)

    def turn(self) -> None:
        """End a part, start or stop the capture, and begin the next part."""
        if self.done:
            self.mark()
            self.wait()
            self.parts.append(self.part(time.perf_counter()))
        self.wait()
        if self.done == STEPS:
            torch.cuda.cudart().cudaProfilerStart()
        if self.done == 2 * STEPS:
            torch.cuda.cudart().cudaProfilerStop()
        self.host, self.events = [], []
        self.mark()
        self.wait()
        self.host[0] = time.perf_counter()

    def part(self, end: float) -> dict[str, object]:
        """Return ms a step up to the synchronization at the end, and each step's by the host and by the GPU."""
        return {
            "ms_per_step": round((end - self.host[0]) * 1000 / STEPS, 4),
            "host_ms": [round((b - a) * 1000, 3) for a, b in itertools.pairwise(self.host)],
            "gpu_ms": [round(a.elapsed_time(b), 3) for a, b in itertools.pairwise(self.events)],
        }

    def times(self) -> dict[str, object]:
        """Return the times of the captured part, and those before the capture as `uncaptured`."""
        uncaptured, captured = self.parts
        return {**captured, "steps": STEPS, "uncaptured": uncaptured}


def run(step: Step) -> dict[str, object]:
    """Warm up, time STEPS steps, capture STEPS more, and return the times."""
    window = Window()
    for index in range(WARM_UP + 2 * STEPS):
        step(index)
        window.step_done()
    return window.times()


def lightning_run(after: bool) -> dict[str, object]:
    """Train the MNIST network with Lightning's Trainer, from ordinary or pinned memory."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16384, 4096), nn.ReLU(), nn.Linear(4096, 10))

        def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    class Capture(lightning.Callback):
        def __init__(self) -> None:
            self.window = Window()

        def on_train_batch_end(self, trainer: lightning.Trainer, *_arguments: object) -> None:
            trainer.should_stop = self.window.step_done()

    data = torch.utils.data.TensorDataset(torch.randn(10 * 1024, 16384), torch.randint(10, (10 * 1024,)))
    sampler = [range(at, at + 1024) for at in range(0, len(data), 1024)] * (2 + 2 * STEPS // 10)
    loader = torch.utils.data.DataLoader(data, sampler=sampler, batch_size=None, pin_memory=after)
    capture = Capture()
    trainer = lightning.Trainer(
        max_steps=WARM_UP + 2 * STEPS, accelerator="gpu", devices=1, logger=False, callbacks=[capture],
        enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Module(), loader)
    return capture.window.times()


def trainer_run(after: bool) -> dict[str, object]:
    """Train a 6-layer GPT-2 with the Trainer of Hugging Face; AdamW tensor by tensor in groups, or fused."""
    import transformers

    class Capture(transformers.TrainerCallback):
        def __init__(self) -> None:
            self.window = Window()

        def on_step_end(self, _arguments: object, _state: object, control: Any, **_more: object) -> None:
            control.should_training_stop = self.window.step_done()

    class Texts(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4096

        def __getitem__(self, index: int) -> dict[str, Tensor]:
            tokens = torch.arange(512) * (index + 1) % 50257
            return {"input_ids": tokens, "labels": tokens}

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6))
    capture = Capture()
    arguments = transformers.TrainingArguments(
        output_dir="trainer_output", per_device_train_batch_size=8, max_steps=WARM_UP + 2 * STEPS, bf16=True,
        optim="adamw_torch_fused" if after else "adamw_torch", report_to=[], save_strategy="no", disable_tqdm=True,
        logging_steps=LOG_EVERY,
    )  # fmt: skip
    transformers.Trainer(model, arguments, train_dataset=Texts(), callbacks=[capture]).train()
    return capture.window.times()


def jax_run(after: bool) -> dict[str, object]:
    """Train a small network compiled by JAX; the loss is read in each or in every tenth step."""
    import jax
    from jax import numpy as jnp

    sizes = [1024] * 9
    keys = jax.random.split(jax.random.key(0), len(sizes))
    weights = [jax.random.normal(key, (a, b)) * a**-0.5 for key, a, b in zip(keys, sizes, sizes[1:], strict=False)]
    inputs = jax.random.normal(keys[-1], (512, 1024))

    def loss(weights: list[Any], inputs: Any) -> Any:
        hidden = inputs
        for weight in weights:
            hidden = jax.nn.gelu(hidden @ weight) + hidden
            hidden = hidden / jnp.sqrt((hidden**2).mean(-1, keepdims=True) + 1e-5)
        return ((hidden - inputs) ** 2).mean()

    @jax.jit
    def update(weights: list[Any], moments: list[Any], inputs: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, inputs)
        moments = [0.9 * moment + gradient for moment, gradient in zip(moments, gradients, strict=True)]
        return [w - 0.01 * moment for w, moment in zip(weights, moments, strict=True)], moments, value

    torch.cuda.init()
    moments, value = [jnp.zeros_like(weight) for weight in weights], None
    window = Window(lambda: jax.block_until_ready((weights, value)))
    for index in range(WARM_UP + 2 * STEPS):
        weights, moments, value = update(weights, moments, inputs)
        if not after or index % LOG_EVERY == 0:
            float(value)
        window.step_done()
    return window.times()


LIBRARY_RUNS = {
    "lightning-pin": ("pin", lightning_run),
    "trainer-fused": ("fused-optimizer", trainer_run),
    "jax-sync": ("sync", jax_run),
}


def main() -> None:
    """Run one program, or list all."""
    if len(sys.argv) < 3:
        print("\n".join(f"{name}: {changes}" for name, (changes, _) in (PROGRAMS | LIBRARY_RUNS).items()))
        return
    name, after = sys.argv[1], sys.argv[2] == "after"
    times = LIBRARY_RUNS[name][1](after) if name in LIBRARY_RUNS else run(PROGRAMS[name][1](after))
    print(json.dumps({"program": name, "variant": sys.argv[2], **times}))


if __name__ == "__main__":
    main()
