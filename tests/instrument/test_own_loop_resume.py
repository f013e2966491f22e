"""A loop of one's own with dropout, a shuffling loader and workers resumes with the losses of a run without a stop."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

stateful = pytest.importorskip("torchdata.stateful_dataloader")

from torch import nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

from instrument import Checkpoints, PrefetchLoader  # noqa: E402

# torchdata calls a function of torch that is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated", "ignore:.*fork.*:DeprecationWarning")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PER_EPOCH, EPOCHS = 10, 3


class OwnLoop:
    """The loop of docs/trainer.md, with dropout; `wraps` puts the loader into a `PrefetchLoader`."""

    def __init__(self, seed: int, workers: int, *, wraps: bool) -> None:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(1)
        samples = TensorDataset(torch.randn(40, 8, generator=generator), torch.randn(40, 1, generator=generator))
        loader = stateful.StatefulDataLoader(samples, batch_size=4, shuffle=True, num_workers=workers)
        self.model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 1)).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.loader: Any = PrefetchLoader(loader, DEVICE) if wraps else loader
        self.parts = {"model": self.model, "optimizer": self.optimizer, "loader": self.loader}

    def losses(self, count: int, first: int = 0, *, finishes_epoch: bool = False) -> list[float]:
        """Train `count` steps, and read until the loader says that the epoch is over if `finishes_epoch`."""
        losses: list[float] = []
        for _epoch in range(first // PER_EPOCH, EPOCHS + 1):
            batches = iter(self.loader)
            for inputs, targets in islice(batches, count - len(losses)):
                loss = nn.functional.mse_loss(self.model(inputs.to(DEVICE)), targets.to(DEVICE))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.item())
            if len(losses) == count:
                assert not finishes_epoch or next(batches, None) is None
                break
        return losses


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wraps", [True, False], ids=["prefetch", "plain"])
@pytest.mark.parametrize(
    ("stop", "finishes_epoch"), [(3, False), (13, False), (10, False), (10, True)], ids=["3", "13", "10", "epoch"]
)
def test_losses_after_a_resume_equal_those_of_a_run_without_a_stop(
    workers: int, wraps: bool, stop: int, finishes_epoch: bool, tmp_path: Path
) -> None:
    expected = OwnLoop(3, workers, wraps=wraps).losses(25)
    first = OwnLoop(3, workers, wraps=wraps)
    assert first.losses(stop, finishes_epoch=finishes_epoch) == expected[:stop]
    Checkpoints(tmp_path).save(stop, first.parts)

    second = OwnLoop(4, workers, wraps=wraps)
    resumed = Checkpoints(tmp_path).load("latest", second.parts, DEVICE)
    assert second.losses(25 - stop, resumed.step) == expected[stop:]
