"""A whole run on the CPU: its seed and its end."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from instrument import workload
from instrument.checkpoint.states import seed_generators
from instrument.config.schema import Checkpoint, Config, Data, Model, Monitor, Training
from instrument.data import LoaderBatches
from instrument.models import Transformer
from instrument.train import main
from instrument.trainer.training_run import train

# Python 3.12 says this of every fork under torch, whose threads it counts.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


DEFAULTS: dict[str, Any] = {"precision": "fp32", "device": "cpu", "strategy": "serial", "schedule": "constant"}


def config(folder: Path | None = None, resume: str | None = None, **training: Any) -> Config:
    return Config(
        training=Training(**DEFAULTS | training),
        model=Model(layers=1, width=16, heads=2, vocabulary=32, features=8),
        data=Data(batch=2, sequence=4, samples=16),
        checkpoint=Checkpoint(folder=folder, resume=resume),
        monitor=Monitor(progress=False),
    )


def draws() -> list[float]:
    return [random.random(), float(np.random.random()), torch.rand(()).item()]


class Noisy(torch.nn.Module):
    """The trainer's model with a loss that draws from every global generator."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any) -> Any:
        return self.model(batch) * (1 + sum(draws()))


@pytest.fixture
def noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload, "Transformer", lambda *about: Noisy(Transformer(*about)))


def scramble(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def losses(made: Config) -> list[float]:
    return train(made, lambda _text: None).losses


@pytest.mark.usefixtures("noisy")
def test_seed_sets_python_numpy_and_torch() -> None:
    runs_of = []
    for seed, before in ((3, 1), (3, 2), (4, 1)):
        scramble(before)
        runs_of.append(losses(config(seed=seed, steps=3)))
    assert runs_of[0] == runs_of[1]
    assert runs_of[0] != runs_of[2]


@pytest.mark.usefixtures("noisy")
def test_resumed_run_draws_the_same_numbers(tmp_path: Path) -> None:
    scramble(1)
    whole = losses(config(steps=6))
    scramble(2)
    first = losses(config(tmp_path, steps=3))
    scramble(3)
    assert first + losses(config(tmp_path, resume="latest", steps=6)) == whole


def test_collections_are_annotated_during_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Collecting(Noisy):
        def forward(self, batch: Any) -> Any:
            seen.extend(str(callback) for callback in gc.callbacks)
            return super().forward(batch)

    monkeypatch.setattr(workload, "Transformer", lambda *about: Collecting(Transformer(*about)))
    losses(config(steps=2))
    assert any("annotate_collections" in name for name in seen)
    assert not any("annotate_collections" in str(callback) for callback in gc.callbacks)


@pytest.mark.parametrize("seed", [0, 7, (1 << 32) + 7, (1 << 64) + 7, 10**30])
def test_any_seed_is_reproducible(seed: int) -> None:
    seed_generators(seed)
    first = draws()
    scramble(99)
    seed_generators(seed)
    assert draws() == first


class Drawing(Dataset[Any]):
    """Samples drawn from the global generators of the worker that makes them."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _index: int) -> Any:
        return torch.tensor(draws())


def test_workers_draw_different_reproducible_numbers() -> None:
    def drawn(seed: int) -> Any:
        scramble(seed + 50)
        loaded = LoaderBatches(Drawing(), Data(batch=1, workers=2), pinned=False, seed=seed)
        return torch.cat(list(loaded(iter([[0], [1]]))))

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    first, second = drawn(1)
    assert (first != second).all()


@pytest.mark.parametrize(
    ("entry", "value", "reason"),
    [
        ("extra", {}, "contains no data position"),
        ("extra", {"position": [0]}, r"contains the data position [0], not [epoch, batch]"),
        ("extra", {"position": [0, -1]}, r"contains the data position [0, -1], not [epoch, batch]"),
        ("extra", {"position": "ab"}, r"contains the data position 'ab', not [epoch, batch]"),
    ],
)
def test_impossible_checkpoint_is_a_one_line_error(
    tmp_path: Path, entry: str, value: Any, reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    train(config(tmp_path, steps=2), lambda _text: None)
    (path,) = (one for one in tmp_path.iterdir() if one.name != "best.pt")
    torch.save({**torch.load(path), entry: value}, path)
    code, lines = command(f"--resume {path}", capsys, monkeypatch)
    assert code == 2
    (line,) = lines
    assert line.startswith(f"instrument: error: {path} ") and reason in line


FLAGS = (
    "--layers 1 --width 16 --heads 2 --vocabulary 32 --features 8 --batch 2 --sequence 4 --samples 16 "
    "--device cpu --precision fp32 --strategy serial --schedule constant --no-progress"
)


def command(flags: str, capsys: Any, monkeypatch: Any) -> tuple[object, list[str]]:
    """Run the trainer's command; return its exit code and output."""
    monkeypatch.setattr("sys.argv", ["train", *FLAGS.split(), *flags.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr().err.splitlines()
