"""Programs that were predicted before they were measured: these are changed in their compute or launches.

Random weights, made data, no NVTX ranges. benchmarks/blind_pairs.txt says what was expected; blind_pairs.py runs them.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from blind_job import READ_EVERY, Job, Step, classes, program, training
from torch import Tensor, nn


@program("dit-compile", "compile")
def dit(job: Job) -> Step:
    """A diffusion transformer whose layers scale and shift by the time step, trained in bf16."""
    width, heads, depth, batch = job.size(768, 32), job.size(12, 2), job.size(4, 1), job.size(48, 2)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out, self.steer = (
                nn.Linear(width, 3 * width),
                nn.Linear(width, width),
                nn.Linear(width, 6 * width),
            )
            self.mlp = nn.Sequential(
                nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
            )

        def forward(self, x: Tensor, time: Tensor) -> Tensor:
            shift, scale, gate, shift2, scale2, gate2 = self.steer(F.silu(time))[:, None].chunk(6, -1)
            inner = F.layer_norm(x, (width,)) * (1 + scale) + shift
            parts = self.qkv(inner).unflatten(-1, (3, heads, width // heads)).permute(2, 0, 3, 1, 4)
            x = x + gate * self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
            return x + gate2 * self.mlp(F.layer_norm(x, (width,)) * (1 + scale2) + shift2)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(depth))

        def forward(self, x: Tensor, time: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, time)
            return x

    make = lambda: (torch.randn(batch, 256, width), torch.randn(batch, width))  # noqa: E731
    loss = lambda net, x, time: F.mse_loss(net(x, time).float(), x)  # noqa: E731
    return training(job, job.model(Net), loss, make, amp=True, fused=True)


@program("ode-tf32", "tf32")
def ode(job: Job) -> Step:
    """A neural ODE of torchdiffeq, 12 steps of Runge-Kutta, trained in FP32."""
    from torchdiffeq import odeint

    hidden, batch = job.size(512, 16), job.size(16384, 8)

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(64, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 64)
            )

        def forward(self, _time: Tensor, y: Tensor) -> Tensor:
            return self.net(y)

    times = torch.linspace(0, 1, 13, device=job.device)
    make = lambda: (torch.randn(batch, 64), torch.randn(batch, 64))  # noqa: E731
    loss = lambda net, y, target: F.mse_loss(odeint(net, y, times, method="rk4")[-1], target)  # noqa: E731
    return training(job, job.model(Field), loss, make)


@program("retinanet-bf16", "bf16")
def retinanet(job: Job) -> Step:
    """RetinaNet of torchvision, 8 images of 512 x 512 with ten boxes each, SGD."""
    import torchvision

    side, batch = job.size(512, 64), job.size(8, 1)
    build = torchvision.models.detection.retinanet_resnet50_fpn
    options = {"weights": None, "weights_backbone": None, "num_classes": 21, "min_size": side, "max_size": side}
    corners = torch.rand(batch, 10, 2) * side / 2
    boxes = torch.cat([corners, corners + side / 4], -1)

    def loss(net: Any, images: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        targets = [{"boxes": own, "labels": kinds} for own, kinds in zip(boxes, labels, strict=True)]
        return sum(net(list(images), targets).values())

    make = lambda: (torch.rand(batch, 3, side, side), boxes, torch.randint(21, (batch, 10)))  # noqa: E731
    return training(job, job.model(lambda: build(**options), dims=4), loss, make, dims=4, kind=torch.optim.SGD)


def attention(job: Job) -> str:
    """Return how a model of Hugging Face computes attention."""
    return "sdpa" if job.has("sdpa") else "eager"


@program("bart-sdpa", "sdpa")
def bart(job: Job) -> Step:
    """BART of Hugging Face, 16 texts of 512 tokens into 256, trained in bf16 with eager attention."""
    from transformers import BartConfig, BartForConditionalGeneration

    width, depth, batch = job.size(768, 32), job.size(6, 1), job.size(16, 1)
    config = BartConfig(d_model=width, encoder_layers=depth, decoder_layers=depth, encoder_ffn_dim=4 * width,
                        decoder_ffn_dim=4 * width, encoder_attention_heads=job.size(12, 2),
                        decoder_attention_heads=job.size(12, 2), attn_implementation=attention(job))  # fmt: skip
    make = lambda: (torch.randint(4, 50000, (batch, 512)), torch.randint(4, 50000, (batch, 256)))  # noqa: E731
    loss = lambda net, text, labels: net(input_ids=text, labels=labels).loss  # noqa: E731
    return training(job, job.model(lambda: BartForConditionalGeneration(config)), loss, make, amp=True, fused=True)


@program("conformer-fused", "fused-optimizer")
def conformer(job: Job) -> Step:
    """Conformer of torchaudio with CTC, 16 sounds of two seconds, trained in bf16 with AdamW."""
    import torchaudio

    batch, length, layers = job.size(16, 2), 200, job.size(12, 1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torchaudio.models.Conformer(144, 4, 576, layers, 31)
            self.head = nn.Linear(144, 32)

        def forward(self, sound: Tensor, lengths: Tensor) -> Tensor:
            return self.head(self.body(sound, lengths)[0])

    def loss(net: Any, sound: Tensor, lengths: Tensor, text: Tensor) -> Tensor:
        chances = net(sound, lengths).float().log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(chances, text, (length,) * batch, (30,) * batch)

    make = lambda: (torch.randn(batch, length, 144), torch.full((batch,), length), torch.randint(1, 32, (batch, 30)))  # noqa: E731
    return training(job, job.model(Net), loss, make, amp=True)


def down(source: int, target: int) -> nn.Module:
    """Return a layer that halves the sides."""
    return nn.Sequential(nn.Conv2d(source, target, 4, 2, 1, bias=False), nn.BatchNorm2d(target), nn.LeakyReLU(0.2))


def up(source: int, target: int) -> nn.Module:
    """Return a layer that doubles the sides."""
    return nn.Sequential(nn.ConvTranspose2d(source, target, 4, 2, 1, bias=False), nn.BatchNorm2d(target), nn.ReLU())


class Draws(nn.Module):
    """A U-Net with skips."""

    def __init__(self, base: int) -> None:
        super().__init__()
        widths = [base, 2 * base, 4 * base, 8 * base, 8 * base, 8 * base]
        self.downs = nn.ModuleList(down(a, b) for a, b in itertools.pairwise([3, *widths]))
        ups = [
            (8 * base, 8 * base),
            (16 * base, 8 * base),
            (16 * base, 4 * base),
            (8 * base, 2 * base),
            (4 * base, base),
        ]
        self.ups, self.last = nn.ModuleList(up(a, b) for a, b in ups), nn.ConvTranspose2d(2 * base, 3, 4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image."""
        kept = []
        for layer in self.downs:
            x = layer(x)
            kept.append(x)
        for layer, skip in zip(self.ups, reversed(kept[:-1]), strict=True):
            x = torch.cat([layer(x), skip], 1)
        return self.last(x).tanh()


def judge(base: int) -> nn.Module:
    """Return a network that judges patches of two images."""
    return nn.Sequential(down(6, base), down(base, 2 * base), down(2 * base, 4 * base), nn.Conv2d(4 * base, 1, 4, 1, 1))


@program("pix2pix-channels-last", "channels-last")
def pix2pix(job: Job) -> Step:
    """Pix2pix: a U-Net that draws and a network that judges patches, each with its Adam, in bf16."""
    base, batch, side = job.size(64, 4), job.size(32, 2), job.size(256, 128)

    draws, judges = job.model(lambda: Draws(base), dims=4), job.model(lambda: judge(base), dims=4)
    drawn_by, judged_by = job.compiled(draws), job.compiled(judges)
    optimizers = [job.optimizer(net.parameters(), torch.optim.Adam) for net in (draws, judges)]
    pairs = job.batches(lambda: (torch.randn(batch, 3, side, side), torch.randn(batch, 3, side, side)), "", 4)

    def verdict(judged: Tensor, real: float) -> Tensor:
        return F.binary_cross_entropy_with_logits(judged, torch.full_like(judged, real))

    def step(index: int) -> None:
        source, real = next(pairs)
        with job.autocast(always=True):
            drawn = drawn_by(source)
            fakes = verdict(judged_by(torch.cat([source, drawn.detach()], 1)), 0.0)
            loss = fakes + verdict(judged_by(torch.cat([source, real], 1)), 1.0)
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        with job.autocast(always=True):
            cheat = verdict(judged_by(torch.cat([source, drawn], 1)), 1.0)
            total = cheat + 100 * F.l1_loss(drawn, real)
        optimizers[0].zero_grad()
        total.backward()
        optimizers[0].step()
        if job.reads(index, READ_EVERY):
            total.item()

    return step


@program("r3d-channels-last", "channels-last")
def r3d(job: Job) -> Step:
    """R3D-18 of torchvision, 16 clips of 16 pictures of 112 x 112, trained in bf16 with SGD."""
    import torchvision

    batch, side = job.size(16, 1), job.size(112, 32)
    model = job.model(lambda: torchvision.models.video.r3d_18(weights=None), dims=5)
    make = lambda: (torch.randn(batch, 3, 16, side, side), torch.randint(400, (batch,)))  # noqa: E731
    return training(job, model, classes, make, dims=5, amp=True, kind=torch.optim.SGD)


@program("multitask-batch", "batch")
def multitask(job: Job) -> Step:
    """48 heads of two layers on common features in TF32: a product for each head, or one for all."""
    torch.backends.cuda.matmul.allow_tf32 = True
    tasks, width, batch = job.size(48, 3), job.size(512, 16), job.size(1024, 8)
    together = job.has("batch")

    def products(rows: Tensor, weights: Tensor) -> Tensor:
        if together:
            return torch.bmm(rows, weights)
        return torch.stack([row @ weight for row, weight in zip(rows.unbind(), weights.unbind(), strict=True)])

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU())
            self.first = nn.Parameter(torch.randn(tasks, width, width // 2) * width**-0.5)
            self.second = nn.Parameter(torch.randn(tasks, width // 2, 64) * width**-0.5)

        def forward(self, x: Tensor) -> Tensor:
            features = self.trunk(x).expand(tasks, -1, -1)
            return products(products(features, self.first).relu(), self.second)

    make = lambda: (torch.randn(batch, width), torch.randint(64, (tasks * batch,)))  # noqa: E731
    loss = lambda net, x, target: classes(lambda x: net(x).flatten(0, 1), x, target)  # noqa: E731
    return training(job, job.model(Net), loss, make, fused=True)


@program("clip-tf32-sdpa", "tf32,sdpa")
def clip(job: Job) -> Step:
    """CLIP of Hugging Face, 64 pictures and texts, trained in FP32 with eager attention."""
    from transformers import CLIPConfig, CLIPModel

    batch, small = (
        job.size(64, 2),
        {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
    )
    own = small if job.tiny else {}
    config = CLIPConfig(text_config=own, vision_config={**own, "patch_size": 16}, attn_implementation=attention(job))
    make = lambda: (torch.randint(3, 49000, (batch, 77)), torch.randn(batch, 3, 224, 224))  # noqa: E731
    loss = lambda net, text, images: net(input_ids=text, pixel_values=images, return_loss=True).loss  # noqa: E731
    return training(job, job.model(lambda: CLIPModel(config)), loss, make, fused=True)


@program("decode-graph", "graph")
def decode(job: Job) -> Step:
    """A decoder of 24 layers writes one token a step for 8 texts in bf16, with a cache of 1024 places."""
    width, heads, depth, places = job.size(1024, 32), job.size(16, 2), job.size(24, 2), job.size(1024, 64)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 8 * width, bias=False), nn.Linear(4 * width, width, bias=False)
            self.register_buffer("cache", torch.zeros(2, 8, heads, places, width // heads))

        def forward(self, hidden: Tensor, place: Tensor, mask: Tensor) -> Tensor:
            query, *pair = self.qkv(self.first(hidden)).view(8, 3, heads, 1, width // heads).unbind(1)
            keys, values = (own.index_copy_(2, place, new) for own, new in zip(self.cache, pair, strict=True))
            mixed = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask).view(8, width)
            hidden = hidden + self.out(mixed)
            gate, inner = self.up(self.second(hidden)).chunk(2, -1)
            return hidden + self.down(F.silu(gate) * inner)

    def build() -> nn.Module:
        return nn.ModuleDict(
            {"words": nn.Embedding(32000, width), "layers": nn.ModuleList(Layer() for _ in range(depth))}
        )

    model = job.model(build).to(torch.bfloat16).requires_grad_(False)
    layers = [job.compiled(layer) for layer in model["layers"]]
    tokens, place = (
        torch.zeros(8, dtype=torch.long, device=job.device),
        torch.zeros(1, dtype=torch.long, device=job.device),
    )
    every = torch.arange(places, device=job.device)

    def write(tokens: Tensor, place: Tensor) -> Tensor:
        hidden, mask = model["words"](tokens), (every <= place)[None]
        for layer in layers:
            hidden = layer(hidden, place, mask)
        tokens.copy_((hidden @ model["words"].weight.T).argmax(-1))
        place.add_(1).remainder_(places)
        return tokens

    call = job.captured(write, (tokens, place))

    def step(index: int) -> None:
        written = call(tokens, place)
        if job.reads(index, READ_EVERY):
            written.tolist()

    return step


@program("ssm-graph", "graph")
def ssm(job: Job) -> Step:
    """A selective state-space model as in Mamba, whose scan is a Python loop over 48 positions, trained."""
    width, states, length = job.size(256, 16), 16, job.size(48, 6)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.enter, self.leave = (
                nn.LayerNorm(width),
                nn.Linear(width, 2 * width),
                nn.Linear(width, width),
            )
            self.conv = nn.Conv1d(width, width, 4, groups=width, padding=3)
            self.choose, self.pace = nn.Linear(width, 2 * states), nn.Linear(width, width)
            self.decay = nn.Parameter(torch.arange(1.0, states + 1).log().repeat(width, 1))

        def forward(self, hidden: Tensor) -> Tensor:
            inner, gate = self.enter(self.norm(hidden)).chunk(2, -1)
            inner = F.silu(self.conv(inner.mT)[..., :length].mT)
            write, read = self.choose(inner).chunk(2, -1)
            pace = F.softplus(self.pace(inner))
            keep = (pace[..., None] * -self.decay.exp()).exp()
            new = (pace * inner)[..., None] * write[:, :, None]
            state, outputs = torch.zeros_like(new[:, 0]), []
            for kept, added, seen in zip(keep.unbind(1), new.unbind(1), read.unbind(1), strict=True):
                state = kept * state + added
                outputs.append((state @ seen[..., None])[..., 0])
            return hidden + self.leave(torch.stack(outputs, 1) * F.silu(gate))

    batch = job.size(32, 2)
    model = job.model(lambda: nn.Sequential(nn.Embedding(256, width), Block(), Block(), nn.Linear(width, 256)))
    make = lambda: (torch.randint(256, (batch, length)), torch.randint(256, (batch, length)))  # noqa: E731
    return training(
        job, model, lambda net, text, next_: classes(lambda t: net(t).flatten(0, 1), text, next_.flatten()), make
    )
