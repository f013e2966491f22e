"""Programs that were predicted before they were measured: what limits most of these is the host, copies or a loader.

Random weights, made data, no NVTX ranges. benchmarks/blind_pairs.txt says what was expected; blind_pairs.py runs them.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from blind_job import READ_EVERY, Job, Loop, Step, classes, program, training
from torch import Tensor, nn


@program("speech-pin", "pin")
def speech(job: Job) -> Step:
    """Words in one second of sound: torchaudio's mel spectrogram on the GPU, then convolutions."""
    import torchaudio

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mel = torchaudio.transforms.MelSpectrogram(16000, n_fft=512, hop_length=160, n_mels=64)
            parts: list[nn.Module] = []
            for source, target in itertools.pairwise((1, 64, 128, 256, 256)):
                parts += [nn.Conv2d(source, target, 3, 2, 1, bias=False), nn.BatchNorm2d(target), nn.ReLU()]
            self.net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 35))

        def forward(self, sound: Tensor) -> Tensor:
            return self.net((self.mel(sound) + 1e-6).log().unsqueeze(1))

    batch = job.size(512, 4)
    make = lambda: (torch.randn(batch, 16000), torch.randint(35, (batch,)))  # noqa: E731
    return training(job, job.model(Words), classes, make, host="pageable")


@program("autoencoder-prefetch", "prefetch")
def autoencoder(job: Job) -> Step:
    """An autoencoder of table rows in TF32, from pinned memory."""
    torch.backends.cuda.matmul.allow_tf32 = True
    width, batch = job.size(4096, 64), job.size(16384, 8)
    widths = (width, width // 2, width // 8, width // 2, width)
    parts = [part for a, b in itertools.pairwise(widths) for part in (nn.ReLU(), nn.Linear(a, b))]
    model = job.model(lambda: nn.Sequential(*copy.deepcopy(parts[1:])))
    loss = lambda net, rows: F.mse_loss(net(rows), rows)  # noqa: E731
    return training(job, model, loss, lambda: (torch.randn(batch, width),), host="pinned")


@program("lightning-load", "load")
def lightning(job: Job) -> Loop:
    """ShuffleNet under Lightning's Trainer; torchvision augments each image in 2 or 12 worker processes."""
    import pytorch_lightning as lightning
    import torchvision
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    augment = v2.Compose([v2.RandomResizedCrop(224, antialias=True), v2.RandomHorizontalFlip(),
                          v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)])  # fmt: skip

    class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return augment(torch.randint(256, (3, 320, 320), dtype=torch.uint8)), index % 1000

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torchvision.models.shufflenet_v2_x1_0(weights=None)

        def training_step(self, batch: list[Tensor], _index: int) -> Tensor:
            return classes(self.net, *batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return job.optimizer(self.parameters())

    def run(advance: Callable[[], bool]) -> None:
        class Ends(lightning.Callback):
            def on_train_batch_end(self, trainer: Any, *_arguments: object) -> None:
                trainer.should_stop = advance()

        workers = job.size(12, 2) if job.has("load") else job.size(2, 1)
        loader = torch.utils.data.DataLoader(
            Images(), job.size(64, 4), num_workers=workers, pin_memory=job.device == "cuda"
        )
        precision = "bf16-mixed" if job.has("bf16") else "32-true"
        quiet = {
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
        }
        trainer = lightning.Trainer(max_steps=100_000, precision=precision, devices=1, callbacks=[Ends()], **quiet)
        trainer.fit(Module(), loader)

    return Loop(run)


@program("gin-load", "load")
def gin(job: Job) -> Step:
    """A graph isomorphism network on molecules of 20 to 30 atoms; batches made in the loop or by 8 workers."""
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, global_add_pool

    torch.set_num_threads(1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            mlp = lambda a: nn.Sequential(nn.Linear(a, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 128))  # noqa: E731
            self.layers = nn.ModuleList(GINConv(mlp(a)) for a in (16, 128, 128, 128, 128))
            self.head = nn.Linear(128, 1)

        def forward(self, batch: Any) -> Tensor:
            hidden = batch.x
            for layer in self.layers:
                hidden = layer(hidden, batch.edge_index).relu()
            return self.head(global_add_pool(hidden, batch.batch, batch.num_graphs))

    atoms = [20 + number % 11 for number in range(2000)]
    graphs = [Data(x=torch.randn(n, 16), edge_index=torch.randint(n, (2, 2 * n)), y=torch.randn(1, 1)) for n in atoms]
    sampler = torch.utils.data.RandomSampler(graphs, replacement=True, num_samples=1 << 22)
    workers = 8 if job.has("load") else 0
    pinned = job.has("pin")
    loader = iter(DataLoader(graphs, job.size(256, 8), sampler=sampler, num_workers=workers, pin_memory=pinned))
    model = job.model(Net)
    optimizer = job.optimizer(model.parameters(), torch.optim.Adam)

    def step(index: int) -> None:
        batch = next(loader).to(job.device, non_blocking=True)
        with job.autocast():
            value = F.mse_loss(model(batch).float(), batch.y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if job.reads(index, READ_EVERY):
            value.item()

    return step


@program("a2c-sync", "sync")
def a2c(job: Job) -> Step:
    """Advantage actor-critic; 4096 poles are balanced by tensor operations; three figures are read in each step."""
    count, length = job.size(4096, 8), 5
    net = job.model(
        lambda: nn.Sequential(nn.Linear(4, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 3))
    )
    called, optimizer = job.compiled(net), job.optimizer(net.parameters(), torch.optim.Adam)
    start = torch.zeros(count, 4, device=job.device)

    def moved(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        x, speed, angle, turn = state.unbind(1)
        force = (action * 2 - 1) * 10.0
        push = (force + 0.05 * turn.square() * angle.sin()) / 1.1
        pull = (9.8 * angle.sin() - angle.cos() * push) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
        rate = push - 0.05 * pull * angle.cos() / 1.1
        state = torch.stack([x + 0.02 * speed, speed + 0.02 * rate, angle + 0.02 * turn, turn + 0.02 * pull], 1)
        done = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 0.2)
        return torch.where(done[:, None], torch.randn_like(state) * 0.05, state), (~done).float()

    def update(state: Tensor) -> Tensor:
        logs, values, rewards, entropies = [], [], [], []
        for _ in range(length):
            out = called(state)
            chances = F.log_softmax(out[:, :2], -1)
            action = (chances.detach() - torch.empty_like(chances).exponential_().log()).argmax(-1, keepdim=True)
            logs.append(chances.gather(1, action)[:, 0])
            entropies.append(-(chances.exp() * chances).sum(-1).mean())
            values.append(out[:, 2])
            state, reward = moved(state, action[:, 0].float())
            rewards.append(reward)
        total, loss = values[-1].detach(), 0.0
        for log, value, reward in zip(reversed(logs), reversed(values), reversed(rewards), strict=True):
            total = reward + 0.99 * total
            gain = total - value
            loss = loss + gain.square().mean() - (log * gain.detach()).mean()
        entropy = torch.stack(entropies).mean()
        optimizer.zero_grad()
        (loss - 0.01 * entropy).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        start.copy_(state.detach())
        return torch.stack([loss.detach(), entropy.detach(), torch.stack(rewards).mean()])

    called_update = job.captured(update, (start,))

    def step(index: int) -> None:
        figures = called_update(start)
        if job.reads(index, 1):
            [figure.item() for figure in figures]

    return step


class Mixer(nn.Module):
    """An MLP-Mixer: linear layers over the patches of an image, and over their channels."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        mlp = lambda a: nn.Sequential(nn.Linear(a, 2 * a), nn.GELU(), nn.Linear(2 * a, a))  # noqa: E731
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.mixes = nn.ModuleList(mlp(196 if number % 2 == 0 else width) for number in range(2 * depth))
        self.head = nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        hidden = self.patches(images).flatten(2).mT
        for number, (norm, mix) in enumerate(zip(self.norms, self.mixes, strict=True)):
            hidden = hidden + (mix(norm(hidden).mT).mT if number % 2 == 0 else mix(norm(hidden)))
        return self.head(hidden.mean(1))


@program("mixer-sync", "sync")
def mixer(job: Job) -> Step:
    """An MLP-Mixer that asks before each backward pass whether the loss is finite, and reads an accuracy after it."""
    import torchmetrics

    batch = job.size(32, 2)
    model = job.model(lambda: Mixer(job.size(512, 32), job.size(12, 1)))
    called, optimizer = job.compiled(model), job.optimizer(model.parameters())
    accuracy = torchmetrics.MeanMetric(nan_strategy="disable").to(job.device)
    images, target = (
        torch.randn(batch, 3, 224, 224, device=job.device),
        torch.randint(1000, (batch,), device=job.device),
    )

    def step(index: int) -> None:
        with job.autocast(always=True):
            output = called(images)
            loss = F.cross_entropy(output, target)
        if job.reads(index, 1) and not torch.isfinite(loss).item():
            raise ValueError("the loss is not finite")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy.update((output.argmax(-1) == target).float())
        if job.reads(index, 1):
            accuracy.compute().item()

    return step


@program("gp-allocate", "allocate")
def gp(job: Job) -> Step:
    """A Gaussian process of GPyTorch with 2000 points, by Cholesky; the cache of memory is emptied in each step."""
    import gpytorch

    count = job.size(2000, 20)
    x, y = torch.rand(count, 8, device=job.device), torch.randn(count, device=job.device)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()

    class Process(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5, ard_num_dims=8))

        def forward(self, points: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(points), self.kernel(points))

    model = job.model(Process)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = job.optimizer(model.parameters(), torch.optim.Adam)
    keeps = job.has("allocate")

    def step(index: int) -> None:
        optimizer.zero_grad()
        with gpytorch.settings.max_cholesky_size(4096):
            loss = -marginal(model(x), y)
            loss.backward()
        optimizer.step()
        if job.reads(index, 1):
            loss.item()
        if not keeps:
            torch.cuda.empty_cache()

    return step


def staged_step(
    model: nn.Module, forward: Callable[[Any, Tensor], Tensor], micro: list[Tensor], update: Callable[[], None]
) -> Step:
    """Return a step that runs micro-batches on two streams, and their backward passes from a second thread."""
    other = copy.deepcopy(model)
    pairs = list(zip(model.parameters(), other.parameters(), strict=True))
    for own, second in pairs:
        second.data = own.data
    streams, backwards = [torch.cuda.Stream() for _ in range(2)], ThreadPoolExecutor(1)

    def backward(loss: Tensor, stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            loss.backward()

    def step(index: int) -> None:
        current, waits = torch.cuda.current_stream(), []
        for stream in streams:
            stream.wait_stream(current)
        for number, tokens in enumerate(micro):
            stream = streams[number % 2]
            with torch.cuda.stream(stream):
                loss = forward((model, other)[number % 2], tokens)
            waits.append(backwards.submit(backward, loss, stream))
        for wait in waits:
            wait.result()
        for stream in streams:
            current.wait_stream(stream)
        torch._foreach_add_([own.grad for own, _ in pairs], [second.grad for _, second in pairs])
        other.zero_grad()
        update()

    return step


@program("accumulate-staged", "staged")
def accumulate(job: Job) -> Step:
    """A transformer in bf16, four micro-batches a step: one after the other, or on two streams by two threads."""
    width, depth, batch, length = job.size(512, 32), job.size(6, 1), job.size(32, 2), job.size(256, 8)

    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True, norm_first=True)
        return nn.Sequential(nn.Embedding(8192, width), nn.TransformerEncoder(layer, depth), nn.Linear(width, 8192))

    model = job.model(build)
    optimizer = job.optimizer(model.parameters(), fused=True)
    micro = list(torch.randint(8192, (4, batch, length), device=job.device))

    def forward(net: Any, tokens: Tensor) -> Tensor:
        with job.autocast(always=True):
            return F.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten()) / 4

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    if job.has("staged"):
        return staged_step(model, forward, micro, update)
    called = job.compiled(model)

    def step(index: int) -> None:
        for tokens in micro:
            forward(called, tokens).backward()
        update()

    return step


@program("twotower-pin-sync", "pin,sync")
def twotower(job: Job) -> Step:
    """A recommender: features and ids of users and items from ordinary memory, every pair of a batch compared."""
    batch, width, rows = job.size(8192, 8), job.size(512, 16), job.size(500_000, 100)

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ids = nn.EmbeddingBag(rows, 64, mode="mean")
            self.net = nn.Sequential(nn.Linear(width + 64, 1024), nn.ReLU(), nn.Linear(1024, 128))

        def forward(self, features: Tensor, ids: Tensor) -> Tensor:
            return F.normalize(self.net(torch.cat([features, self.ids(ids)], 1)), dim=-1)

    def make() -> tuple[Tensor, ...]:
        sides = ((torch.randn(batch, width), torch.randint(rows, (batch, 20))) for _ in range(2))
        return tuple(itertools.chain(*sides))

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = Tower(), Tower()

        def forward(self, *parts: Tensor) -> Tensor:
            return self.users(*parts[:2]) @ self.items(*parts[2:]).T * 20

    def loss(net: Any, *parts: Tensor) -> Tensor:
        return F.cross_entropy(net(*parts), torch.arange(batch, device=job.device))

    model = job.model(Towers)
    return training(job, model, loss, make, host="pageable", every=1, kind=torch.optim.SGD)
