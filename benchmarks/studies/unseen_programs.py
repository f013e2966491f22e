"""Programs that were recorded after the constants of docs/unprofiled.md: random weights, no NVTX ranges.

As foreign_programs.py, whose parts this file uses; STEPS steps before the capture, then STEPS captured ones.
`python benchmarks/studies/unseen_programs.py` lists the programs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from foreign_programs import Step, run
from torch import nn

BF16 = torch.bfloat16
PROGRAMS: dict[str, Callable[[], Step]] = {}


def program(build: Callable[[], Step]) -> Callable[[], Step]:
    """Register a function that returns a step; its name is the program's."""
    PROGRAMS[build.__name__.replace("_", "-")] = build
    return build


def training_step(
    loss_of_batch: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer, read_every: int | None = None
) -> Step:
    """Return a step that trains; it reads the loss in each `read_every`-th step, None: never."""

    def step(index: int) -> None:
        loss = loss_of_batch()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if read_every is not None and index % read_every == 0:
            loss.item()

    return step


def classifier_loss(model: nn.Module, images: torch.Tensor, target: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return a function that computes the loss of a batch in bf16."""

    def loss_of_batch() -> torch.Tensor:
        with torch.autocast("cuda", BF16):
            return nn.functional.cross_entropy(model(images), target)

    return loss_of_batch


@program
def efficientnet() -> Step:
    """EfficientNet-B0 of timm, trained with RMSprop in bf16, batch 32."""
    import timm

    model = timm.create_model("efficientnet_b0").cuda().train()
    optimizer = torch.optim.RMSprop(model.parameters(), 1e-4, momentum=0.9)
    images, target = torch.randn(32, 3, 224, 224, device="cuda"), torch.randint(1000, (32,), device="cuda")
    return training_step(classifier_loss(model, images, target), optimizer, read_every=10)


@program
def distilbert() -> Step:
    """DistilBERT of Hugging Face, trained to classify texts, batch 16; the loss is read in each step."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    model = DistilBertForSequenceClassification(DistilBertConfig()).cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-5)
    batches = [(torch.randint(30000, (16, 128), device="cpu"), torch.randint(2, (16,), device="cpu")) for _ in range(4)]

    def step(index: int) -> None:
        tokens, labels = (part.to("cuda") for part in batches[index % 4])
        with torch.autocast("cuda", BF16):
            loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


@program
def whisper() -> Step:
    """Whisper-tiny of Hugging Face: an encoder pass over 30 s of sound, and a decoder pass over 32 tokens, batch 4."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(d_model=384, encoder_layers=4, decoder_layers=4, encoder_attention_heads=6,
                           decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536)  # fmt: skip
    model = WhisperForConditionalGeneration(config).cuda().eval().half().requires_grad_(False)
    sound = torch.randn(4, 80, 3000, device="cuda", dtype=torch.half)
    tokens = torch.randint(50000, (4, 32), device="cuda")
    return lambda _index: model(input_features=sound, decoder_input_ids=tokens).logits[:, -1].argmax(-1).tolist()


@program
def deeplab() -> Step:
    """DeepLabV3 with ResNet-50 of torchvision, trained on 4 images of 256 x 256 in FP32 with SGD."""
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images = torch.randn(4, 3, 256, 256, device="cuda")
    target = torch.randint(21, (4, 256, 256), device="cuda")
    return training_step(lambda: nn.functional.cross_entropy(model(images)["out"], target), optimizer, read_every=10)


@program
def llama() -> Step:
    """A small Llama that generates token by token, batch 8, in bf16; the token is copied to the host each time."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16)
    model = LlamaForCausalLM(config).cuda().eval().to(BF16).requires_grad_(False)
    cache, tokens = DynamicCache(), torch.randint(32000, (8, 1), device="cuda")

    def step(_index: int) -> None:
        nonlocal tokens
        tokens = model(tokens, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        tokens.cpu()

    return step


@program
def convnext() -> Step:
    """ConvNeXt-tiny of timm, trained with AdamW in bf16, batch 16."""
    import timm

    model = timm.create_model("convnext_tiny").cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    images, target = torch.randn(16, 3, 224, 224, device="cuda"), torch.randint(1000, (16,), device="cuda")
    return training_step(classifier_loss(model, images, target), optimizer)


def main() -> None:
    """Run one program, or list all."""
    if len(sys.argv) < 2:
        print("\n".join(f"{name}: {build.__doc__}" for name, build in PROGRAMS.items()))
        return
    try:
        with torch.device("cuda"):
            step = PROGRAMS[sys.argv[1]]()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        print(f"built on the CPU: {error}", file=sys.stderr)
        step = PROGRAMS[sys.argv[1]]()
    print(json.dumps({"program": sys.argv[1], "variant": "before", **run(step)}))


if __name__ == "__main__":
    main()
