#!/usr/bin/env python3
r"""Programs whose collectives or copies nothing hides, and the same after the change that hides them.

    torchrun --nproc-per-node 2 benchmarks/studies/hiding_pairs.py time OUT.json --round 0     without a profiler
    torchrun --nproc-per-node 2 --no-python bash -c 'nsys profile -t cuda,nvtx -s none --cpuctxsw=none \
        -c cudaProfilerApi --capture-range-end=repeat -o FOLDER/hiding_rank$RANK \
        python benchmarks/studies/hiding_pairs.py capture NAME ...'
    python benchmarks/studies/hiding_pairs.py table FOLDER     predictions beside the measured times

`table` reads FOLDER/NAME_rank0.sqlite, NAME_one_rank0.sqlite for NAME:1, and the times in benchmarks/results.
`capture` makes one report for each name, in their order. NAME:1 stands for a program that runs with
CUDA_DEVICE_MAX_CONNECTIONS=1; `time` and `capture` use the environment that they have. Two GPUs are needed; the
programs that copy use their own GPU alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results" / "h200_hiding_pairs.json"
WARM_UP, STEPS, CAPTURED = 8, 30, 10
Step = Callable[[], None]


def encoder(width: int, depth: int, feed: int) -> Any:
    """Return pre-norm encoder layers on this rank's GPU, with equal weights on both ranks."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 16, feed, dropout=0.0, batch_first=True, norm_first=True, device="cuda")
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


def vgg() -> Any:
    """Return torchvision's VGG16, whose linear layers have most gradients and are ready first."""
    import torch
    import torchvision

    return torchvision.models.vgg16().cuda().to(memory_format=torch.channels_last)


def training(model: Any, inputs: Any, *, reduce: Callable[[], None] = lambda: None) -> Step:
    """Return a step under autocast; `reduce` runs between the backward pass and the optimizer."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(inputs).float().square().mean()
        loss.backward()
        reduce()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    return step


def distributed(model: Any) -> Any:
    """Return the model in DDP."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(model, device_ids=[torch.cuda.current_device()], gradient_as_bucket_view=True)


def reduced_after(model: Any, inputs: Any) -> Step:
    """Reduce the gradients one by one after the backward pass."""
    import torch.distributed as dist

    def reduce() -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)

    return training(model, inputs, reduce=reduce)


def reduced_flat(model: Any, inputs: Any) -> Step:
    """Reduce all gradients in one message after the backward pass; they are views of one tensor."""
    import torch
    import torch.distributed as dist

    parameters = list(model.parameters())
    flat = torch.zeros(sum(each.numel() for each in parameters), device="cuda")
    for parameter, view in zip(parameters, flat.split([each.numel() for each in parameters]), strict=True):
        parameter.grad = view.view_as(parameter)
    return training(model, inputs, reduce=lambda: dist.all_reduce(flat, dist.ReduceOp.AVG) and None)


def reduced_in_hooks(model: Any, inputs: Any, *, is_async: bool) -> Step:
    """Reduce each gradient when it is ready, on the stream of the backward pass or beside it."""
    import torch.distributed as dist

    works: list[Any] = []

    def hook(parameter: Any) -> None:
        works.append(dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, async_op=is_async))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)

    def wait() -> None:
        for work in works:
            if work is not None:
                work.wait()
        works.clear()

    return training(model, inputs, reduce=wait)


def fsdp2(model: Any, layers: Any, inputs: Any, *, prefetches: bool) -> Step:
    """Shard each layer with fully_shard; without prefetch, a layer's weights come when its backward pass begins."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for layer in layers:
        fully_shard(layer, mp_policy=policy)
        if not prefetches:
            layer.set_modules_to_backward_prefetch([layer])
    fully_shard(model, mp_policy=policy)
    return training(model, inputs)


def sharded_encoder(inputs: Any, *, width: int, depth: int, feed: int, prefetches: bool) -> Step:
    """Shard the layers of an encoder."""
    model = encoder(width, depth, feed)
    return fsdp2(model, model.layers, inputs, prefetches=prefetches)


def sharded_llama(inputs: Any, *, prefetches: bool) -> Step:
    """Shard the layers of a Llama."""
    model = llama(8)
    return fsdp2(model, model.model.layers, inputs, prefetches=prefetches)


def fsdp1(inputs: Any, *, prefetches: bool) -> Step:
    """Shard each layer with FullyShardedDataParallel."""
    import torch
    from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from torch.nn import TransformerEncoderLayer

    kind = torch.bfloat16
    model = FullyShardedDataParallel(
        encoder(2048, 12, 8192),
        auto_wrap_policy=ModuleWrapPolicy({TransformerEncoderLayer}),
        mixed_precision=MixedPrecision(param_dtype=kind, reduce_dtype=kind),
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE if prefetches else None,
        device_id=torch.cuda.current_device(),
        use_orig_params=True,
    )
    return training(model, inputs)


def gathered(width: int, depth: int, tokens: int, *, ahead: bool) -> Step:
    """Run layers whose weights are sharded over the ranks: gather those of a layer just before it, or one ahead."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import gelu

    size = 2 * 4 * width * width
    shards = [torch.randn(size // 2, device="cuda", dtype=torch.bfloat16) * 0.01 for _ in range(depth)]
    full = [torch.empty(size, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)

    def layer(x: Any, weights: Any) -> Any:
        up, down = weights.view(2, 4 * width * width)
        return x + gelu(x @ up.view(width, 4 * width)) @ down.view(4 * width, width)

    @torch.no_grad()
    def step() -> None:
        y, coming = x, None
        if ahead:
            coming = dist.all_gather_into_tensor(full[0], shards[0], async_op=True)
        for row in range(depth):
            if not ahead:
                dist.all_gather_into_tensor(full[row % 2], shards[row])
            else:
                coming.wait()
                if row + 1 < depth:
                    coming = dist.all_gather_into_tensor(full[(row + 1) % 2], shards[row + 1], async_op=True)
            y = layer(y, full[row % 2])

    return step


def tensor_parallel(width: int, depth: int, tokens: int, *, chunks: int) -> Step:
    """Run layers split over the ranks, whose outputs are summed; with chunks, one's sum runs beside another's layer."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import gelu

    def weight(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.01

    up = [weight(width, 2 * width) for _ in range(depth)]
    down = [weight(2 * width, width) for _ in range(depth)]
    x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)

    @torch.no_grad()
    def step() -> None:
        parts = list(x.chunk(chunks))
        sums: list[Any] = [None] * chunks
        for first, second in zip(up, down, strict=True):
            for row in range(chunks):
                if sums[row] is not None:
                    sums[row][1].wait()
                    parts[row] = parts[row] + sums[row][0]
                out = gelu(parts[row] @ first) @ second
                if chunks == 1:
                    dist.all_reduce(out)
                    parts[row] = parts[row] + out
                else:
                    sums[row] = out, dist.all_reduce(out, async_op=True)
        for each in sums:
            if each is not None:
                each[1].wait()

    return step


def batches(shape: tuple[int, ...], model: Any, *, inputs_apart: bool, outputs_apart: bool) -> Step:
    """Copy a pinned batch to the GPU, run a model on it, and copy the result to pinned memory.

    What has a stream of its own has two buffers on the GPU, which the streams hand over by events.
    """
    import torch

    source = torch.randn(shape).pin_memory()
    main, copy_in, copy_out = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    buffers = [torch.empty(shape, device="cuda") for _ in range(2)]
    loaded, used, saved = ([torch.cuda.Event() for _ in range(2)] for _ in range(3))
    results: list[Any] = [None, None]
    state = {"step": 0}
    with torch.no_grad():
        target = torch.empty_like(model(source.cuda()), device="cpu").pin_memory()

    def load(row: int) -> None:
        with torch.cuda.stream(copy_in):
            copy_in.wait_event(used[row])
            buffers[row].copy_(source, non_blocking=True)
            loaded[row].record(copy_in)

    def save(row: int) -> None:
        if not outputs_apart:
            target.copy_(results[row], non_blocking=True)
            return
        copy_out.wait_stream(main)
        with torch.cuda.stream(copy_out):
            target.copy_(results[row], non_blocking=True)
            saved[row].record(copy_out)

    @torch.no_grad()
    def step() -> None:
        row = state["step"] % 2
        if not inputs_apart:
            buffers[row].copy_(source, non_blocking=True)
        else:
            if not state["step"]:
                load(row)
            load(1 - row)
            main.wait_event(loaded[row])
        main.wait_event(saved[row])
        results[row] = model(buffers[row])
        used[row].record(main)
        save(row)
        state["step"] += 1

    return step


def stencil(rounds: int) -> Any:
    """Return a function of memory-bound kernels."""

    def apply(batch: Any) -> Any:
        out = batch * 1.01
        for _ in range(rounds):
            out = out.mul_(1.0001).add_(0.001)
        return out

    return apply


def vision(name: str, **more: Any) -> Any:
    """Return a model of torchvision in evaluation, under autocast."""
    import torch
    import torchvision

    part = torchvision.models.segmentation if name.startswith("fcn") else torchvision.models
    made = getattr(part, name)(weights=None, **more).cuda().eval()

    def apply(batch: Any) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            out = made(batch)
        return out["out"] if isinstance(out, dict) else out

    return apply


def with_embeddings(model: Any) -> Any:
    """Return a model of transformers that takes embeddings and returns its last hidden state."""
    from torch import nn

    class Outputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, inputs: Any) -> Any:
            return self.model(inputs_embeds=inputs, use_cache=False).last_hidden_state

    return Outputs()


def llama(layers: int) -> Any:
    """Return layers of a Llama of transformers, which take embeddings."""
    import torch
    from torch import nn
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024, hidden_size=2048, intermediate_size=5632, num_hidden_layers=layers, num_attention_heads=16
    )
    made = LlamaModel(config).cuda()
    made.embed_tokens = nn.Identity()
    return with_embeddings(made)


def gpt2() -> Any:
    """Return GPT-2 medium of transformers, which takes embeddings."""
    import torch
    from torch import nn
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    made = GPT2Model(GPT2Config(n_embd=1024, n_layer=24, n_head=16, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)).cuda()
    made.wte = nn.Identity()
    return with_embeddings(made)


def vit() -> Any:
    """Return a ViT-L of timm."""
    import timm
    import torch

    torch.manual_seed(0)
    return timm.create_model("vit_large_patch16_224").cuda()


def convnext() -> Any:
    """Return torchvision's ConvNeXt-L."""
    import torch
    import torchvision

    torch.manual_seed(0)
    return torchvision.models.convnext_large().cuda().to(memory_format=torch.channels_last)


def tokens(count: int, width: int) -> Any:
    """Return a batch of `count` sequences of 512 tokens."""
    import torch

    return torch.randn(count, 512, width, device="cuda")


def images(count: int = 48) -> Any:
    """Return a batch of images."""
    import torch

    return torch.randn(count, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)


PROGRAMS: dict[str, Callable[[], Step]] = {
    "gpt_after": lambda: reduced_after(encoder(2048, 12, 8192), tokens(8, 2048)),
    "gpt_ddp": lambda: training(distributed(encoder(2048, 12, 8192)), tokens(8, 2048)),
    "small_flat": lambda: reduced_flat(encoder(1024, 16, 4096), tokens(8, 1024)),
    "small_ddp": lambda: training(distributed(encoder(1024, 16, 4096)), tokens(8, 1024)),
    "vgg_after": lambda: reduced_after(vgg(), images()),
    "vgg_ddp": lambda: training(distributed(vgg()), images()),
    "hooks_sync": lambda: reduced_in_hooks(encoder(2048, 8, 8192), tokens(8, 2048), is_async=False),
    "hooks_async": lambda: reduced_in_hooks(encoder(2048, 8, 8192), tokens(8, 2048), is_async=True),
    "vgg_hooks_sync": lambda: reduced_in_hooks(vgg(), images(), is_async=False),
    "vgg_hooks_async": lambda: reduced_in_hooks(vgg(), images(), is_async=True),
    "fsdp2_late": lambda: sharded_encoder(tokens(8, 2048), width=2048, depth=12, feed=8192, prefetches=False),
    "fsdp2": lambda: sharded_encoder(tokens(8, 2048), width=2048, depth=12, feed=8192, prefetches=True),
    "fsdp2_wide_late": lambda: sharded_encoder(tokens(2, 4096), width=4096, depth=6, feed=16384, prefetches=False),
    "fsdp2_wide": lambda: sharded_encoder(tokens(2, 4096), width=4096, depth=6, feed=16384, prefetches=True),
    "fsdp1_late": lambda: fsdp1(tokens(8, 2048), prefetches=False),
    "fsdp1": lambda: fsdp1(tokens(8, 2048), prefetches=True),
    "gather_late": lambda: gathered(4096, 12, 4096, ahead=False),
    "gather_ahead": lambda: gathered(4096, 12, 4096, ahead=True),
    "gather_small_late": lambda: gathered(2048, 24, 8192, ahead=False),
    "gather_small_ahead": lambda: gathered(2048, 24, 8192, ahead=True),
    "tp": lambda: tensor_parallel(4096, 16, 8192, chunks=1),
    "tp_chunks": lambda: tensor_parallel(4096, 16, 8192, chunks=2),
    "copy_in": lambda: batches((1 << 25,), stencil(24), inputs_apart=False, outputs_apart=True),
    "copy_out": lambda: batches((1 << 25,), stencil(24), inputs_apart=True, outputs_apart=False),
    "copy_apart": lambda: batches((1 << 25,), stencil(24), inputs_apart=True, outputs_apart=True),
    # The second group was predicted by the version that the first group had formed.
    "gpt2_after": lambda: reduced_after(gpt2(), tokens(16, 1024)),
    "gpt2_ddp": lambda: training(distributed(gpt2()), tokens(16, 1024)),
    "vit_flat": lambda: reduced_flat(vit(), images(64).contiguous()),
    "vit_ddp": lambda: training(distributed(vit()), images(64).contiguous()),
    "llama_after": lambda: reduced_after(llama(8), tokens(16, 2048)),
    "llama_hooks_sync": lambda: reduced_in_hooks(llama(8), tokens(16, 2048), is_async=False),
    "llama_ddp": lambda: training(distributed(llama(8)), tokens(16, 2048)),
    "convnext_hooks_sync": lambda: reduced_in_hooks(convnext(), images(96), is_async=False),
    "convnext_ddp": lambda: training(distributed(convnext()), images(96)),
    "llama_fsdp_late": lambda: sharded_llama(tokens(32, 2048), prefetches=False),
    "llama_fsdp": lambda: sharded_llama(tokens(32, 2048), prefetches=True),
    "gather_wide_late": lambda: gathered(8192, 6, 4096, ahead=False),
    "gather_wide_ahead": lambda: gathered(8192, 6, 4096, ahead=True),
    "gather_long_late": lambda: gathered(3072, 24, 6144, ahead=False),
    "gather_long_ahead": lambda: gathered(3072, 24, 6144, ahead=True),
    "tp_wide": lambda: tensor_parallel(8192, 8, 4096, chunks=1),
    "tp_wide_chunks": lambda: tensor_parallel(8192, 8, 4096, chunks=2),
    "tp_narrow": lambda: tensor_parallel(2048, 24, 32768, chunks=1),
    "tp_narrow_chunks": lambda: tensor_parallel(2048, 24, 32768, chunks=2),
    "resnet_in": lambda: batches((256, 3, 224, 224), vision("resnet50"), inputs_apart=False, outputs_apart=False),
    "resnet_ahead": lambda: batches((256, 3, 224, 224), vision("resnet50"), inputs_apart=True, outputs_apart=False),
    "fcn_out": lambda: batches((16, 3, 512, 512), vision("fcn_resnet50"), inputs_apart=False, outputs_apart=False),
    "fcn_apart": lambda: batches((16, 3, 512, 512), vision("fcn_resnet50"), inputs_apart=False, outputs_apart=True),
}
# The programs before and after each change.
PAIRS = (
    ("gpt_after", "reorder", "gpt_ddp"),
    ("small_flat", "reorder", "small_ddp"),
    ("vgg_after", "reorder", "vgg_ddp"),
    ("hooks_sync", "separate-stream", "hooks_async"),
    ("vgg_hooks_sync", "separate-stream", "vgg_hooks_async"),
    ("fsdp2_late", "prefetch-collective", "fsdp2"),
    ("fsdp2_wide_late", "prefetch-collective", "fsdp2_wide"),
    ("fsdp1_late", "prefetch-collective", "fsdp1"),
    ("gather_late", "prefetch-collective", "gather_ahead"),
    ("gather_small_late", "prefetch-collective", "gather_small_ahead"),
    ("tp", "overlap", "tp_chunks"),
    ("fsdp2:1", "connections", "fsdp2"),
    ("gpt_ddp:1", "connections", "gpt_ddp"),
    ("copy_apart:1", "connections", "copy_apart"),
    ("copy_in", "prefetch", "copy_apart"),
    ("copy_out", "output", "copy_apart"),
    ("gpt2_after", "reorder", "gpt2_ddp"),
    ("vit_flat", "reorder", "vit_ddp"),
    ("llama_after", "reorder", "llama_ddp"),
    ("llama_hooks_sync", "separate-stream", "llama_ddp"),
    ("convnext_hooks_sync", "separate-stream", "convnext_ddp"),
    ("llama_fsdp_late", "prefetch-collective", "llama_fsdp"),
    ("gather_wide_late", "prefetch-collective", "gather_wide_ahead"),
    ("gather_long_late", "prefetch-collective", "gather_long_ahead"),
    ("tp_wide", "overlap", "tp_wide_chunks"),
    ("tp_narrow", "overlap", "tp_narrow_chunks"),
    ("llama_fsdp:1", "connections", "llama_fsdp"),
    ("tp_wide_chunks:1", "connections", "tp_wide_chunks"),
    ("resnet_in", "prefetch", "resnet_ahead"),
    ("fcn_out", "output", "fcn_apart"),
)


def each_step(names: list[str]) -> Iterator[tuple[str, Step]]:
    """Yield the step of each program after its warm-up, and free what it took; a program that fails is named."""
    import torch
    import torch.distributed as dist

    for name in names:
        try:
            step = PROGRAMS[name]()
            for _ in range(WARM_UP):
                step()
            torch.cuda.synchronize()
            dist.barrier()
            yield name, step
            del step
        except (RuntimeError, TypeError, AttributeError, ImportError) as error:
            print(f"{name} failed: {error}", flush=True)
        gc.collect()
        torch.cuda.empty_cache()


def timed(names: list[str]) -> dict[str, float]:
    """Return ms per step of each program, of the slower rank."""
    import torch
    import torch.distributed as dist

    found = {}
    for name, step in each_step(names):
        start = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        taken = torch.tensor(1000 * (time.perf_counter() - start) / STEPS, device="cuda")
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        found[name] = round(taken.item(), 3)
        if dist.get_rank() == 0:
            print(f"{name} {found[name]} ms", flush=True)
    return found


def captured(names: list[str]) -> None:
    """Run CAPTURED steps of each program between cudaProfilerStart and cudaProfilerStop."""
    import torch

    for name, step in each_step(names):
        torch.cuda.cudart().cudaProfilerStart()
        for row in range(CAPTURED):
            with torch.cuda.nvtx.range(f"step {row}"):
                step()
        torch.cuda.synchronize()
        torch.cuda.cudart().cudaProfilerStop()
        print(f"captured {name}", flush=True)


def table(folder: Path) -> None:
    """Print each pair: ms before, the part of it that is predicted after the change and its range, and what came."""
    from traceview import analyze
    from traceview.errors import RequestError
    from traceview.replay.gains import base_ns
    from traceview.replay.prediction import predict

    results = json.loads(RESULTS.read_text())
    print("| before | change | ms | predicted | range | came | program after |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    for before, change, after in PAIRS:
        name, _, one = before.partition(":")
        times = results["ms_one_connection" if one else "ms"].get(name)
        capture = folder / f"{name}{'_one' if one else ''}_rank0.sqlite"
        if times is None or after not in results["ms"] or not capture.is_file():
            continue
        came = sum(results["ms"][after]) / sum(times)
        analysis = analyze(capture)
        try:
            made = predict(analysis, [change])
            parts = [ns / base_ns(analysis) for ns in (made.iteration_ns, made.low_ns, made.high_ns)]
            told = f"{parts[0]:.2f} | {parts[1]:.2f} to {parts[2]:.2f}"
        except RequestError as error:
            told = f"1 | {str(error).partition(': ')[2]}"
        print(
            f"| `{before}` | `{change}` | {sum(times) / len(times):.1f} | {told} | {came:.2f} | `{after}` |", flush=True
        )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("time", "capture", "table"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--round", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[])
    arguments = parser.parse_args()
    if arguments.command == "table":
        table(Path(arguments.names[0]))
        return
    import os

    import torch
    import torch.distributed as dist

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    if arguments.command == "capture":
        captured(arguments.names)
    else:
        every = arguments.only or list(PROGRAMS)
        place = arguments.round * len(every) // 2
        found = timed([*every[place:], *every[:place]])
        if dist.get_rank() == 0:
            Path(arguments.names[0]).write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
