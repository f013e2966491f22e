from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from instrument.background import Background  # noqa: E402
from instrument.hf import AsyncTrainer, AsyncTrainerMixin  # noqa: E402
from instrument.hf.mixin import AsyncBatches  # noqa: E402
from instrument.streams import Stream  # noqa: E402
from tests.instrument.hf.tiny import BATCH, CPU_AND_GPU, Sample, Texts, Unsized, assert_same, history, trained, trainer  # noqa: E402
from tests.instrument.test_ranges import Recorder  # noqa: E402

MONITOR = "tqdm_monitor"  # of the bar that transformers shows while it saves


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name != MONITOR]
    for thread in left:
        thread.join(300)
    assert [thread.name for thread in left if thread.is_alive()] == []


@pytest.mark.parametrize("device", CPU_AND_GPU)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_accumulation_steps": 4},
        {"gradient_accumulation_steps": 2, "max_steps": 4},
        {"dataloader_num_workers": 1, "max_steps": 3},
        {"dataloader_drop_last": True, "max_grad_norm": 0.0, "logging_steps": 3},
        {"data": Unsized(), "max_steps": 9, "gradient_accumulation_steps": 2},
        {"data": Texts(3), "num_train_epochs": 1},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_prefetch_does_not_change_training(tmp_path: Path, device: str, options: dict[str, Any]) -> None:
    stock = trained(tmp_path, transformers.Trainer, device, **options)
    assert stock.state.global_step > 0
    assert_same(trained(tmp_path, AsyncTrainer, device, **options), stock)
    if not options or "data" in options:
        assert_same(trained(tmp_path, AsyncTrainer, device, enable_async_dataloader=False, **options), stock)


@pytest.mark.parametrize("device", CPU_AND_GPU)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_resume_within_an_epoch(tmp_path: Path, device: str, accumulation: int) -> None:
    options: dict[str, Any] = {
        "save_strategy": "steps",
        "save_steps": 2,
        "gradient_accumulation_steps": accumulation,
        "num_train_epochs": 3,
    }
    whole = trained(tmp_path / "whole", AsyncTrainer, device, **options)
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    for enabled in (True, False):
        resumed = trained(
            tmp_path / "rest", AsyncTrainer, device, resume=checkpoint, enable_async_dataloader=enabled, **options
        )
        assert history(resumed)[:-1] == history(whole)[:-1]
        for name, weight in whole.model.state_dict().items():
            assert torch.equal(weight, resumed.model.state_dict()[name]), name


class Threaded:
    """Stands in for PrefetchLoader on a GPU: its thread reads ahead on any machine."""

    def __init__(self, loader: Any, _device: Any, *, depth: int, stream: Stream) -> None:
        self.batches: Background[Any, Any] = Background(iter(loader), lambda batch: batch, depth=depth)

    def __iter__(self) -> Iterator[Any]:
        return self.batches

    def close(self) -> None:
        self.batches.close()


@pytest.mark.parametrize(
    "options", [{}, {"gradient_accumulation_steps": 4}, {"data": Unsized(), "max_steps": 9}], ids=str
)
def test_reading_ahead_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    options = options | {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 4, "eval_dataset": Texts(6)}
    options |= {"eval_strategy": "steps", "eval_steps": 1}
    stock = trained(tmp_path / "stock", transformers.Trainer, **options)
    monkeypatch.setattr("instrument.hf.mixin.PrefetchLoader", Threaded)
    assert_same(trained(tmp_path / "ahead", **options), stock)
    resumed = trained(tmp_path / "ahead", resume=tmp_path / "ahead" / "checkpoint-4", **options)
    resumed_stock = trained(
        tmp_path / "stock", transformers.Trainer, resume=tmp_path / "stock" / "checkpoint-4", **options
    )
    assert_same(resumed, resumed_stock)


def test_first_batch_is_read_by_the_main_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[str] = []

    class Noted(Texts):
        def __getitem__(self, index: int) -> Sample:
            readers.append(threading.current_thread().name)
            return super().__getitem__(index)

    monkeypatch.setattr("instrument.hf.mixin.PrefetchLoader", Threaded)
    trained(tmp_path, data=Noted(), num_train_epochs=1)
    assert readers[0] == threading.main_thread().name
    assert readers[-1] != threading.main_thread().name


def overlapped(monkeypatch: pytest.MonkeyPatch) -> list[AsyncBatches]:
    """Return the list that every asynchronous epoch is appended to."""
    made: list[AsyncBatches] = []
    original = AsyncBatches.__init__

    def noted(self: AsyncBatches, *args: Any) -> None:
        made.append(self)
        original(self, *args)

    monkeypatch.setattr(AsyncBatches, "__init__", noted)
    return made


def test_every_epoch_is_read_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = overlapped(monkeypatch)
    trained(tmp_path, save_strategy="steps", save_steps=2)
    assert len(made) == 2
    trained(tmp_path, save_strategy="steps", save_steps=2, resume=tmp_path / "checkpoint-2")
    assert len(made) == 4
    trained(tmp_path, data=Unsized(), max_steps=3)
    assert len(made) == 5


def test_nothing_is_read_ahead_when_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = overlapped(monkeypatch)
    off = trained(tmp_path, enable_async_dataloader=False)
    assert made == []
    assert off.get_train_dataloader().device == off.args.device


def test_evaluation_uses_the_stock_loader(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    stock = trainer(tmp_path, transformers.Trainer).get_train_dataloader()
    for loader in (made.get_train_dataloader(), made.get_eval_dataloader(Texts())):
        assert type(loader) is type(stock)
        assert loader.device == stock.device
    made.train()
    assert made.get_train_dataloader().device == stock.device
    assert made.accelerator.device_placement is True


def test_dispatching_loader_uses_the_stock_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = overlapped(monkeypatch)
    config = {"dispatch_batches": True}
    stock = trained(tmp_path, transformers.Trainer, data=Unsized(), max_steps=3, accelerator_config=config)
    with caplog.at_level(logging.WARNING, "instrument.hf"):
        assert_same(trained(tmp_path, data=Unsized(), max_steps=3, accelerator_config=config), stock)
    assert made == []
    assert [r.getMessage() for r in caplog.records if r.name.startswith("instrument")] == [
        "batches are read synchronously although enable_async_dataloader is on: process 0 reads for all processes "
        "(dispatch_batches, or an IterableDataset with several processes)"
    ]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("data", [Texts(broken=13), Texts(broken=0)], ids=["later", "early"])
def test_trainer_survives_dataset_error(tmp_path: Path, enabled: bool, data: Texts) -> None:
    made = trainer(tmp_path, data=data, enable_async_dataloader=enabled)
    with pytest.raises(OSError, match="is gone"):
        made.train()
    made.train_dataset = Texts()
    made.train()
    assert made.state.global_step == 12


def test_mixin_precedes_an_overriding_trainer(tmp_path: Path) -> None:
    calls: list[str] = []

    class Users(transformers.Trainer):  # type: ignore[misc, name-defined, unused-ignore]
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            calls.append("loss")
            return super().compute_loss(*args, **kwargs)

        def get_train_dataloader(self) -> Any:
            calls.append("loader")
            return torch.utils.data.DataLoader(self.train_dataset, batch_size=BATCH)

    class Mixed(AsyncTrainerMixin, Users):
        pass

    made = trained(tmp_path, Mixed, num_train_epochs=1)
    assert_same(made, trained(tmp_path, Users, num_train_epochs=1))
    assert calls.count("loss") == 2 * 6


@pytest.mark.parametrize("package", ["transformers", "accelerate"])
def test_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for name in [name for name in sys.modules if name.startswith("instrument.hf")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.split(".")[0] == package] + [package]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module("instrument.hf")
    assert str(raised.value) == f"instrument.hf needs {package}: pip install transformers accelerate"


@pytest.mark.parametrize("device", CPU_AND_GPU[1:])
def test_thread_copies_batches_to_the_gpu(
    tmp_path: Path, device: str, caplog: pytest.LogCaptureFixture, recorder: Recorder
) -> None:
    seen: list[str] = []

    class Looks(AsyncTrainer):
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            seen.extend(tensor.device.type for tensor in inputs.values())
            return super().training_step(model, inputs, *args, **kwargs)

    for data in (Texts(), Unsized()):
        trained(tmp_path, Looks, device, data=data, max_steps=3)
    assert set(seen) == {device}
    copying = {thread for _what, name, thread in recorder.log if name == "h2d"}
    assert copying
    assert threading.get_ident() not in copying
    assert "logging_nan_inf_filter=True makes the host wait" in caplog.text


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 asks torch for it
def test_stateful_data_loader_uses_the_stock_path(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("torchdata")
    made = trainer(tmp_path, AsyncTrainer, max_steps=2)
    made.accelerator.dataloader_config.use_stateful_dataloader = True
    made.train()
    assert "read synchronously" in caplog.text and "stateful" in caplog.text
    assert_same(made, trained(tmp_path, transformers.Trainer, max_steps=2))
