"""Compute-bound loops of PyTorch, Hugging Face and timm, before and after one change to the compute.

As foreign_programs.py, whose parts this file uses: random weights and data, no NVTX ranges, `before` and `after`.
`python benchmarks/studies/compute_programs.py` lists the programs and the changes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from foreign_programs import Step, run
from torch import nn

PROGRAMS: dict[str, tuple[str, Callable[[bool], Step]]] = {}
BF16 = torch.bfloat16


def program(name: str, changes: str) -> Callable[[Callable[[bool], Step]], None]:
    """Register a function that gets whether the change is made, and returns the step; `changes` are whatif's names."""

    def register(build: Callable[[bool], Step]) -> None:
        PROGRAMS[name] = (changes, build)

    return register


def training_step(
    model: nn.Module, inputs: Any, loss: Callable[[Any], torch.Tensor], *, autocast: bool = False, **adamw: Any
) -> Step:
    """Return a training step with AdamW on data that are on the GPU."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, **({"fused": True} | adamw))

    def step(_index: int) -> None:
        with torch.autocast("cuda", BF16, enabled=autocast):
            value = loss(model(**inputs) if isinstance(inputs, dict) else model(inputs))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def gpt2(*, batch: int = 16, attention: str = "sdpa", compiled: bool = False, **options: Any) -> Step:
    """Return a training step of GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(attn_implementation=attention)).cuda().train()
    tokens = torch.randint(50257, (batch, 512), device="cuda")
    called = torch.compile(model) if compiled else model
    return training_step(called, {"input_ids": tokens, "labels": tokens}, lambda output: output.loss, **options)


def images(model: nn.Module, *, batch: int, channels_last: bool = False, **options: Any) -> Step:
    """Return a training step of an image classifier."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.cuda().train().to(memory_format=layout)
    pixels = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=layout)
    target = torch.randint(1000, (batch,), device="cuda")
    return training_step(model, pixels, lambda output: nn.functional.cross_entropy(output, target), **options)


def resnet50() -> nn.Module:
    """Return torchvision's ResNet-50."""
    import torchvision

    return torchvision.models.resnet50()


def bert(*, train: bool, attention: str = "sdpa", **options: Any) -> Step:
    """Return a training step of BERT in FP32, or an inference in FP16."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(attn_implementation=attention)).cuda()
    tokens = torch.randint(30000, (32, 512), device="cuda")
    if train:
        pooled = lambda output: output.pooler_output.square().mean()  # noqa: E731
        return training_step(model.train(), {"input_ids": tokens}, pooled, **options)
    model = model.eval().half().requires_grad_(False)
    return lambda _index: model(tokens)


@program("gpt2-tf32", "tf32")
def _gpt2_tf32(after: bool) -> Step:
    torch.set_float32_matmul_precision("high" if after else "highest")
    return gpt2()


@program("gpt2-bf16", "bf16")
def _gpt2_bf16(after: bool) -> Step:
    return gpt2(autocast=after)


@program("gpt2-sdpa", "sdpa")
def _gpt2_sdpa(after: bool) -> Step:
    return gpt2(attention="sdpa" if after else "eager", autocast=True)


@program("gpt2-fused", "fused-optimizer")
def _gpt2_fused(after: bool) -> Step:
    return gpt2(batch=4, autocast=True, fused=after)


@program("gpt2-compile", "compile")
def _gpt2_compile(after: bool) -> Step:
    return gpt2(autocast=True, compiled=after)


@program("resnet50-tf32", "tf32")
def _resnet50_tf32(after: bool) -> Step:
    torch.backends.cudnn.allow_tf32 = after
    torch.backends.cudnn.benchmark = True
    return images(resnet50(), batch=128)


@program("resnet50-bf16", "bf16")
def _resnet50_bf16(after: bool) -> Step:
    torch.backends.cudnn.benchmark = True
    return images(resnet50(), batch=128, autocast=after)


@program("resnet50-channels-last", "channels-last")
def _resnet50_channels_last(after: bool) -> Step:
    torch.backends.cudnn.benchmark = True
    return images(resnet50(), batch=128, autocast=True, channels_last=after)


@program("vit-bf16", "bf16")
def _vit_bf16(after: bool) -> Step:
    import timm

    return images(timm.create_model("vit_base_patch16_224"), batch=64, autocast=after)


@program("vit-tf32", "tf32")
def _vit_tf32(after: bool) -> Step:
    import timm

    torch.set_float32_matmul_precision("high" if after else "highest")
    return images(timm.create_model("vit_small_patch16_224"), batch=128)


@program("bert-tf32", "tf32")
def _bert_tf32(after: bool) -> Step:
    torch.set_float32_matmul_precision("high" if after else "highest")
    return bert(train=True)


@program("bert-sdpa", "sdpa")
def _bert_sdpa(after: bool) -> Step:
    return bert(train=False, attention="sdpa" if after else "eager")


@program("experts-batch", "batch")
def _experts_batch(after: bool) -> Step:
    inputs = torch.randn(64, 128, 512, device="cuda", dtype=BF16)
    weights = torch.randn(64, 512, 512, device="cuda", dtype=BF16)

    def step(_index: int) -> None:
        for _layer in range(8):
            if after:
                torch.bmm(inputs, weights)
            else:
                for row, weight in zip(inputs, weights, strict=True):
                    row @ weight

    return step


@program("moe-batch", "batch")
def _moe_batch(after: bool) -> Step:
    experts, layers, width = 32, 8, 512
    first, second = (
        torch.randn(layers, experts, a, b, device="cuda", dtype=BF16) * a**-0.5
        for a, b in ((width, 4 * width), (4 * width, width))
    )
    embedding = torch.randn(1000, width, device="cuda", dtype=BF16)
    tokens = torch.randint(1000, (experts, 64), device="cuda")

    def products(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if after:
            return torch.bmm(rows, weights)
        out = rows.new_empty(*rows.shape[:2], weights.shape[2])
        for row, weight, part in zip(rows, weights, out, strict=True):
            torch.mm(row, weight, out=part)
        return out

    def step(_index: int) -> None:
        hidden = embedding[tokens]
        for up, down in zip(first, second, strict=True):
            inner = nn.functional.gelu(products(nn.functional.layer_norm(hidden, (width,)), up))
            hidden = hidden + products(inner, down)
        nn.functional.log_softmax(hidden @ embedding.T, -1).argmax(-1)

    return step


@program("activations-compile", "compile")
def _activations_compile(after: bool) -> Step:
    values = torch.randn(64, 1024, 1024, device="cuda")

    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.tanh(x * 1.01 + 0.1).mul(0.5).add(x).clamp(-3, 3)
        return x

    called = torch.compile(chain) if after else chain
    return lambda _index: called(values)


# Programs whose predictions were written down before their captures of `after` were read (docs/whatif.md).


def t5(**options: Any) -> Step:
    """Return a training step of T5."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).cuda().train()
    tokens, labels = (torch.randint(32000, (16, length), device="cuda") for length in (512, 128))
    return training_step(model, {"input_ids": tokens, "labels": labels}, lambda output: output.loss, **options)


@program("t5-tf32", "tf32")
def _t5_tf32(after: bool) -> Step:
    torch.set_float32_matmul_precision("high" if after else "highest")
    return t5()


@program("t5-bf16", "bf16")
def _t5_bf16(after: bool) -> Step:
    return t5(autocast=after)


@program("timm-vit-sdpa", "sdpa")
def _timm_vit_sdpa(after: bool) -> Step:
    import timm

    timm.layers.set_fused_attn(after)
    return images(timm.create_model("vit_base_patch16_224"), batch=64, autocast=True)


@program("densenet-channels-last", "channels-last")
def _densenet_channels_last(after: bool) -> Step:
    import torchvision

    torch.backends.cudnn.benchmark = True
    return images(torchvision.models.densenet121(), batch=64, autocast=True, channels_last=after)


@program("bert-large-fused", "fused-optimizer")
def _bert_large_fused(after: bool) -> Step:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    model = BertForSequenceClassification(config).cuda().train()
    tokens, labels = torch.randint(30000, (16, 128), device="cuda"), torch.randint(2, (16,), device="cuda")
    inputs = {"input_ids": tokens, "labels": labels}
    return training_step(model, inputs, lambda output: output.loss, autocast=True, fused=after)


@program("gpt2-medium-pad", "pad")
def _gpt2_medium_pad(after: bool) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=1024, n_layer=24, n_head=16, vocab_size=50304 if after else 50257)
    model = GPT2LMHeadModel(config).cuda().train()
    tokens = torch.randint(50257, (8, 512), device="cuda")
    return training_step(model, {"input_ids": tokens, "labels": tokens}, lambda output: output.loss, autocast=True)


@program("llama-compile", "compile")
def _llama_compile(after: bool) -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=6, num_attention_heads=16)
    model = LlamaForCausalLM(config).cuda().train()
    tokens = torch.randint(32000, (8, 1024), device="cuda")
    called = torch.compile(model) if after else model
    return training_step(called, {"input_ids": tokens, "labels": tokens}, lambda output: output.loss, autocast=True)


@program("torchvision-vit-tf32", "tf32")
def _torchvision_vit_tf32(after: bool) -> Step:
    import torchvision

    torch.set_float32_matmul_precision("high" if after else "highest")
    model = torchvision.models.vit_b_16().cuda().eval().requires_grad_(False)
    pixels = torch.randn(128, 3, 224, 224, device="cuda")
    return lambda _index: model(pixels)


def main() -> None:
    """Run one program, or list all."""
    if len(sys.argv) < 3:
        print("\n".join(f"{name}: {changes}" for name, (changes, _) in PROGRAMS.items()))
        return
    times = run(PROGRAMS[sys.argv[1]][1](sys.argv[2] == "after"))
    print(json.dumps({"program": sys.argv[1], "variant": sys.argv[2], **times}))


if __name__ == "__main__":
    main()
