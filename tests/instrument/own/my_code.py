"""What a user has: a model, data in three forms, and losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from instrument import Hooks


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        outputs = self.body(inputs)
        return outputs if labels is None else {"logits": outputs, "loss": loss(outputs, labels)}


def dataset() -> TensorDataset:
    inputs = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


def loader() -> DataLoader[Any]:
    return DataLoader(dataset(), batch_size=4, shuffle=True)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(dataset())


def dictionaries() -> list[dict[str, Tensor]]:
    return [{"inputs": inputs, "labels": labels} for inputs, labels in DataLoader(dataset(), batch_size=4)]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


def loss_of_batch(model: nn.Module, batch: Any) -> Tensor:
    return loss(model(batch[0]), batch[1])


def each_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def broken() -> None:
    raise ValueError("no weights")


def number() -> int:
    return 3


class Frozen(nn.Module):
    """A fixed batch norm and dropout that the user switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.head = nn.BatchNorm1d(4).eval(), nn.Dropout().eval(), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Any:
        return self.head(self.drop(self.norm(inputs)))


def noisy_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return loss(outputs + 0.1 * torch.randn_like(outputs), targets)


class Normed(nn.Module):
    """Its running statistics follow the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Any:
        return self.head(self.norm(inputs))


def with_a_nan() -> list[tuple[Tensor, Tensor]]:
    batches = [(inputs.clone(), labels) for inputs, labels in DataLoader(dataset(), batch_size=4)]
    batches[4][0][0, 0] = float("nan")
    return batches


def uneven() -> list[tuple[Tensor, Tensor]]:
    inputs, labels = dataset()[:20]
    return [(inputs[start:stop], labels[start:stop]) for start, stop in ((0, 8), (8, 10), (10, 12), (12, 20))]


def tens() -> list[tuple[Tensor, Tensor]]:
    inputs, labels = dataset()[:20]
    return [(inputs[:10], labels[:10]), (inputs[10:], labels[10:])]


def labelled_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, ignore_index=0)


def label_count(batch: Any) -> Tensor:
    return (batch[1] != 0).sum()


labelled_loss.count = label_count  # type: ignore[attr-defined]


seen: list[float] = []


def recording_loss(model: nn.Module, batch: Any) -> Tensor:
    seen.extend(batch[0][:, 0].tolist())
    return loss(model(batch[0]), batch[1])


class Recomputing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 2)

    def forward(self, inputs: Tensor) -> Any:
        return self.head(checkpoint(lambda values: self.drop(self.body(values)), inputs, use_reentrant=False))


class Augmented(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        inputs, label = dataset()[index]
        return inputs + torch.randn(4), label


def augmented_loader() -> DataLoader[Any]:
    return DataLoader(Augmented(), batch_size=4, shuffle=True)


def own_generator() -> DataLoader[Any]:
    return DataLoader(dataset(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(7))


def weighted() -> DataLoader[Any]:
    return DataLoader(dataset(), batch_size=4, sampler=WeightedRandomSampler([1.0] * 24, 24))


class Wide(Net):
    """Its inputs have another size than the data."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 2))


calls: list[Any] = []


class FailingHooks(Hooks):
    def after_step(self, step: int, loss: Tensor) -> None:
        calls.append(step)
        if step == 1:
            raise ValueError(f"step {step} fails")

    def end(self, done: int) -> None:
        calls.append(f"end {done}")
