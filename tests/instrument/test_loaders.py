"""The loaders of docs/trainer.md resume at the next batch, and accelerate prepares before PrefetchLoader wraps."""

from __future__ import annotations

import io
import re
import tarfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from instrument import Checkpoints, PrefetchLoader
from instrument.trees import tensors

# torchdata calls a function of torch that is deprecated.
# webdataset leaves the file of an iteration that is not finished open.
pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated",
    "ignore:.*fork.*:DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "trainer.md"
VALUES = torch.arange(40.0)[:, None]


def codes(*, containing: str) -> list[str]:
    """Return the examples of the document that have this text, in its order."""
    section = DOCUMENT.read_text().partition("## Loaders that resume")[2]
    return [code for code in re.findall(r"```python\n(.*?)```", section, re.DOTALL) if containing in code]


def write_tar(folder: Path) -> str:
    path = folder / "samples.tar"
    with tarfile.open(path, "w") as tar:
        for index, value in enumerate(VALUES.numpy()):
            content = io.BytesIO()
            np.save(content, value)
            member = tarfile.TarInfo(f"{index:04}.x.npy")
            member.size = content.tell()
            content.seek(0)
            tar.addfile(member, content)
    return str(path)


def names(folder: Path, loader: str, workers: int) -> dict[str, Any]:
    """Return what the examples use; `loader` is the library that an example needs."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    model = nn.Linear(1, 1)
    given: dict[str, Any] = {
        "StatefulDataLoader": stateful, "PrefetchLoader": PrefetchLoader, "IterableDataset": IterableDataset,
        "torch": torch, "device": "cuda" if torch.cuda.is_available() else "cpu", "workers": workers,
        "dataset": TensorDataset(VALUES), "model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }  # fmt: skip
    if loader == "hf_dataset":
        given[loader] = pytest.importorskip("datasets").Dataset.from_dict({"x": VALUES.tolist()})
    if loader == "webdataset":
        given |= {loader: pytest.importorskip(loader), "tar_files": [write_tar(folder)]}
    return given


def values(batch: Any) -> list[float]:
    return torch.cat([tensor.flatten() for tensor in tensors(batch)]).tolist()


@pytest.mark.parametrize(
    ("loader", "workers"),
    [("shuffle=True", 0), ("shuffle=True", 1), ("Numbers", 0), ("hf_dataset", 0), ("webdataset", 0)],
)
def test_loader_resumes_at_the_next_batch(loader: str, workers: int, tmp_path: Path) -> None:
    (code,) = codes(containing=loader)
    first = names(tmp_path, loader, workers)
    torch.manual_seed(3)
    exec(code, first)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    batches = iter(first["batches"])
    seen = [values(next(batches)) for _ in range(3)]
    checkpoints.save(3, first["parts"])
    rest = [values(batch) for batch in batches]
    offset = 1 if loader == "Numbers" else 0
    assert sorted(chain(*seen, *rest)) == (VALUES.flatten() + offset).tolist()
    torch.manual_seed(4)
    second = names(tmp_path, loader, workers)
    exec(code, second)
    checkpoints.load("latest", second["parts"], second["device"])
    assert [values(batch) for batch in second["batches"]] == rest
    assert len(rest) == 7


def test_accelerate_prepares_first() -> None:
    accelerate = pytest.importorskip("accelerate")
    (code,) = codes(containing="accelerator.prepare(")
    accelerator = accelerate.Accelerator(cpu=not torch.cuda.is_available())
    try:
        given: dict[str, Any] = {"accelerator": accelerator, "DataLoader": DataLoader, "PrefetchLoader": PrefetchLoader}
        exec(code, given | (made := {"dataset": TensorDataset(VALUES)}), made)
        assert list(chain(*map(values, made["batches"]))) == VALUES.flatten().tolist()
        wrong = accelerator.prepare(PrefetchLoader(DataLoader(TensorDataset(VALUES), batch_size=4), "cpu"))
        with pytest.warns(UserWarning, match=r"use PrefetchLoader\(accelerator\.prepare\(loader\)"):
            iter(wrong)
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
