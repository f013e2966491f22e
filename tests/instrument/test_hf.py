from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from instrument import ranges  # noqa: E402
from instrument.background import Background  # noqa: E402
from instrument.hf import AsyncTrainer, AsyncTrainerMixin  # noqa: E402
from instrument.hf.batches import AsyncBatches  # noqa: E402
from instrument.hf.throughput import Amount, Throughput, amount  # noqa: E402
from instrument.streams import Stream  # noqa: E402
from tests.instrument.test_ranges import Recorder, assert_nested  # noqa: E402

SAMPLES, LENGTH, VOCABULARY, BATCH = 22, 8, 32, 4
Sample = dict[str, Any]
CPU_AND_GPU = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")],
    ),
]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = {thread.name for thread in threading.enumerate() if thread not in before}
    assert left <= {"tqdm_monitor"}  # of the bar that transformers shows while it saves


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(ranges, "nvtx", made)
    return made


class Texts(torch.utils.data.Dataset[Sample]):
    """Seeded tokens; sample i ends in i % 3 tokens of padding."""

    def __init__(self, samples: int = SAMPLES, broken: int | None = None) -> None:
        self.samples, self.broken = samples, broken
        self.tokens = torch.randint(1, VOCABULARY, (samples, LENGTH), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        if index == self.broken:
            raise OSError(f"sample {index} is gone")
        mask = (torch.arange(LENGTH) < LENGTH - index % 3).long()
        labels = self.tokens[index].masked_fill(mask == 0, -100)
        return {"input_ids": self.tokens[index], "attention_mask": mask, "labels": labels}


class Unsized(torch.utils.data.IterableDataset[Sample]):
    """The same samples, without a length."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.texts = Texts(samples)

    def __iter__(self) -> Iterator[Sample]:
        return (self.texts[index] for index in range(len(self.texts)))


def tiny_model() -> Any:
    """Dropout stays on: the model draws from the generator that a loader could disturb."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    config._attn_implementation = "eager"  # its backward adds in the same order every time, on a GPU too
    return transformers.GPT2LMHeadModel(config)


def trainer(folder: Path, kind: type = AsyncTrainer, device: str = "cpu", data: Any = None, **options: Any) -> Any:
    own = {name: options.pop(name) for name in ("enable_async_dataloader", "eval_dataset") if name in options}
    arguments: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": device == "cpu",
        "dataloader_pin_memory": device != "cpu",
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    args = transformers.TrainingArguments(**(arguments | options))
    return kind(tiny_model(), args, train_dataset=Texts() if data is None else data, **own)


def history(trained: Any) -> list[dict[str, float]]:
    """What a run logged, without what depends on the clock."""
    clocked = ("perf/", "train_runtime", "_per_second", "eval_runtime")
    return [
        {key: value for key, value in entry.items() if not any(word in key for word in clocked)}
        for entry in trained.state.log_history
    ]


def assert_same(one: Any, other: Any) -> None:
    assert history(one) == history(other)
    for (name, weight), (_, twin) in zip(one.model.state_dict().items(), other.model.state_dict().items(), strict=True):
        assert torch.equal(weight, twin), name


def trained(folder: Path, *args: Any, resume: Path | None = None, **options: Any) -> Any:
    made = trainer(folder, *args, **options)
    made.train(resume_from_checkpoint=None if resume is None else str(resume))
    return made


@pytest.mark.parametrize("device", CPU_AND_GPU)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_accumulation_steps": 4},
        {"gradient_accumulation_steps": 2, "max_steps": 4},
        {"dataloader_num_workers": 1, "max_steps": 3},
        {"dataloader_drop_last": True, "num_train_epochs": 3},
        {"data": Unsized(), "max_steps": 9, "gradient_accumulation_steps": 2},
        {"data": Texts(3), "num_train_epochs": 1},
        {"max_grad_norm": 0.0, "logging_steps": 3},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_on_off_and_stock_give_the_same_losses_and_weights(
    tmp_path: Path, device: str, options: dict[str, Any]
) -> None:
    stock = trained(tmp_path, transformers.Trainer, device, **options)
    assert stock.state.global_step > 0
    assert_same(trained(tmp_path, AsyncTrainer, device, **options), stock)
    assert_same(trained(tmp_path, AsyncTrainer, device, enable_async_dataloader=False, **options), stock)


@pytest.mark.parametrize("device", CPU_AND_GPU)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_it_resumes_in_the_middle_of_an_epoch_as_if_it_had_never_stopped(
    tmp_path: Path, device: str, accumulation: int
) -> None:
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
    """Stands in for PrefetchLoader on a GPU: a thread reads ahead, on any machine."""

    def __init__(self, loader: Any, _device: Any, *, depth: int, stream: Stream) -> None:
        self.batches: Background[Any, Any] = Background(iter(loader), lambda batch: batch, depth=depth)

    def __iter__(self) -> Iterator[Any]:
        return self.batches

    def close(self) -> None:
        self.batches.close()


@pytest.mark.parametrize(
    "options", [{}, {"gradient_accumulation_steps": 4}, {"data": Unsized(), "max_steps": 9}], ids=str
)
def test_a_thread_that_reads_ahead_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    options = options | {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 4, "eval_dataset": Texts(6)}
    options |= {"eval_strategy": "steps", "eval_steps": 1}
    stock = trained(tmp_path / "stock", transformers.Trainer, **options)
    monkeypatch.setattr("instrument.hf.batches.PrefetchLoader", Threaded)
    assert_same(trained(tmp_path / "ahead", **options), stock)
    resumed = trained(tmp_path / "ahead", resume=tmp_path / "ahead" / "checkpoint-4", **options)
    resumed_stock = trained(
        tmp_path / "stock", transformers.Trainer, resume=tmp_path / "stock" / "checkpoint-4", **options
    )
    assert_same(resumed, resumed_stock)


def test_the_first_batch_is_read_by_the_thread_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[str] = []

    class Noted(Texts):
        def __getitem__(self, index: int) -> Sample:
            readers.append(threading.current_thread().name)
            return super().__getitem__(index)

    monkeypatch.setattr("instrument.hf.batches.PrefetchLoader", Threaded)
    trained(tmp_path, data=Noted(), num_train_epochs=1)
    assert readers[0] == threading.main_thread().name
    assert readers[-1] != threading.main_thread().name


def overlapped(monkeypatch: pytest.MonkeyPatch) -> list[AsyncBatches]:
    """Return the list that every asynchronous epoch is written into."""
    made: list[AsyncBatches] = []
    original = AsyncBatches.__init__

    def noted(self: AsyncBatches, *args: Any) -> None:
        made.append(self)
        original(self, *args)

    monkeypatch.setattr(AsyncBatches, "__init__", noted)
    return made


def test_on_every_epoch_is_read_in_the_background_also_a_resumed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = overlapped(monkeypatch)
    trained(tmp_path, save_strategy="steps", save_steps=2)
    assert len(made) == 2
    trained(tmp_path, save_strategy="steps", save_steps=2, resume=tmp_path / "checkpoint-2")
    assert len(made) == 4
    trained(tmp_path, data=Unsized(), max_steps=3)
    assert len(made) == 5


def test_off_nothing_is_read_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = overlapped(monkeypatch)
    off = trained(tmp_path, enable_async_dataloader=False)
    assert made == []
    assert off.get_train_dataloader().device == off.args.device


def test_outside_of_train_the_loader_is_the_stock_one(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    stock = trainer(tmp_path, transformers.Trainer).get_train_dataloader()
    for loader in (made.get_train_dataloader(), made.get_eval_dataloader(Texts())):
        assert type(loader) is type(stock)
        assert loader.device == stock.device
    made.train()
    assert made.get_train_dataloader().device == stock.device
    assert made.accelerator.device_placement is True


def test_a_loader_that_process_0_reads_for_all_is_left_to_the_stock_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = overlapped(monkeypatch)
    config = {"dispatch_batches": True}
    stock = trained(tmp_path, transformers.Trainer, data=Unsized(), max_steps=3, accelerator_config=config)
    with caplog.at_level(logging.WARNING, "instrument.hf"):
        assert_same(trained(tmp_path, data=Unsized(), max_steps=3, accelerator_config=config), stock)
    assert made == []
    assert [r.getMessage() for r in caplog.records if r.name.startswith("instrument")] == [
        "the stock data path is used although enable_async_dataloader is on: process 0 reads for all "
        "(dispatch_batches, or an IterableDataset on several processes)"
    ]


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("data", [Texts(broken=13), Texts(broken=0)], ids=["later", "early"])
def test_an_exception_of_the_dataset_arrives_and_the_trainer_can_train_again(
    tmp_path: Path, recorder: Recorder, enabled: bool, data: Texts
) -> None:
    made = trainer(tmp_path, data=data, enable_async_dataloader=enabled)
    with pytest.raises(OSError, match="is gone"):
        made.train()
    assert_nested(recorder.log)
    made.train_dataset = Texts()
    made.train()
    assert made.state.global_step == 12


def test_an_exception_of_the_model_or_the_optimizer_closes_every_range(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("overflow")

    made = trainer(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="overflow"):
        patched.setattr(torch.optim.AdamW, "step", fail)
        made.train()
    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="overflow"):
        patched.setattr(made.model, "forward", fail)
        made.train()
    assert_nested(recorder.log)
    assert recorder.words.count("push iteration 0") == recorder.words.count("pop iteration 0") == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_every_phase_is_named_inside_its_iteration(tmp_path: Path, recorder: Recorder, enabled: bool) -> None:
    trained(
        tmp_path,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        eval_dataset=Texts(4),
        enable_async_dataloader=enabled,
    )
    assert_nested(recorder.log)
    held = phases_by_iteration(recorder)
    micro_batch = {"data_load": 2} | ({"h2d": 2} if enabled else {}) | {"forward": 2, "backward": 2, "optimizer": 2}
    first = micro_batch | ({"data_load": 3} if enabled else {})  # one before the loader runs ahead
    assert held == {
        "iteration 0": first,
        "iteration 1": micro_batch | {"validate": 1, "checkpoint": 1},
        "iteration 2": micro_batch | {"validate": 1, "checkpoint": 1},  # the last step does both
    }


def phases_by_iteration(recorder: Recorder) -> dict[str, dict[str, int]]:
    """Count, for each iteration, the phases of its thread that lie directly inside it."""
    here = threading.get_ident()
    held: dict[str, Counter[str]] = {}
    inside: list[str] = []
    for what, name, thread in recorder.log:
        if thread != here:
            continue
        if what == "pop":
            inside.pop()
            continue
        if name.startswith("iteration"):
            held[name] = Counter()
        elif len(inside) == 1 and inside[0].startswith("iteration"):
            held[inside[0]][name] += 1
        inside.append(name)
    return {name: dict(phases) for name, phases in held.items()}


def test_iterations_go_on_counting_where_a_run_is_resumed(tmp_path: Path, recorder: Recorder) -> None:
    trained(tmp_path, save_strategy="steps", save_steps=3, max_steps=5)
    recorder.log.clear()
    trained(tmp_path, save_strategy="steps", save_steps=3, max_steps=5, resume=tmp_path / "checkpoint-3")
    assert list(phases_by_iteration(recorder)) == ["iteration 3", "iteration 4"]


@pytest.mark.parametrize("device", CPU_AND_GPU)
@pytest.mark.parametrize("enabled", [True, False])
def test_rates_stand_with_every_loss_and_count_no_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, enabled: bool
) -> None:
    monkeypatch.setattr("instrument.hf.throughput.perf_counter", iter(range(0, 100_000, 2)).__next__)
    made = trained(tmp_path, AsyncTrainer, device, data=Texts(8), num_train_epochs=1, enable_async_dataloader=enabled)
    entries = [entry for entry in made.state.log_history if "loss" in entry]
    assert len(entries) == 2
    assert [entry["perf/samples_per_s"] for entry in entries] == [BATCH / 2, BATCH / 2]
    tokens = sum(int(sample["attention_mask"].sum()) for sample in (Texts(8)[i] for i in range(8)))
    assert sum(entry["perf/tokens_per_s"] for entry in entries) == tokens / 2
    assert "perf/tokens_per_s" not in made.state.log_history[-1]


def test_time_outside_of_training_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("instrument.hf.throughput.perf_counter", lambda: now[0])
    meter = Throughput()
    assert meter.take() == {}
    meter.start()
    meter.add(Amount(4, 32))
    now[0] = 2.0
    with meter.paused(), meter.paused():
        now[0] = 7.0
    now[0] = 9.0
    assert meter.take() == {"perf/samples_per_s": 1.0, "perf/tokens_per_s": 8.0}
    meter.add(Amount(2, None))
    now[0] = 10.0
    assert meter.take() == {"perf/samples_per_s": 2.0}


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"input_ids": torch.ones(2, 5, dtype=torch.long)}, Amount(2, 10)),
        ({"input_ids": torch.ones(2, 3), "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}, Amount(2, 3)),
        ({"input_ids": torch.ones(1, 4, dtype=torch.int), "attention_mask": torch.ones(1, 1, 4, 4)}, Amount(1, 4)),
        ({"pixel_values": torch.ones(3, 1, 2, 2), "labels": torch.ones(3)}, Amount(3, None)),
        ({"inputs_embeds": torch.ones(3, 4, 2)}, Amount(3, None)),
        ({"note": "text"}, Amount(0, None)),
        ([torch.ones(3)], Amount(0, None)),
        ({}, Amount(0, None)),
    ],
)
def test_a_batch_is_counted_by_its_shapes_and_its_mask(batch: object, expected: Amount) -> None:
    assert amount(batch) == expected


def test_it_goes_in_front_of_a_trainer_that_overrides_the_same_methods(tmp_path: Path, recorder: Recorder) -> None:
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
    assert recorder.words.count("push forward") == 6


@pytest.mark.parametrize("package", ["transformers", "accelerate"])
def test_a_package_that_is_missing_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for name in [name for name in sys.modules if name.startswith("instrument.hf")]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.split(".")[0] == package] + [package]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module("instrument.hf")
    assert str(raised.value) == f"instrument.hf needs {package}: pip install transformers accelerate"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_a_thread_copies_and_the_model_gets_its_batches_there_already(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, recorder: Recorder
) -> None:
    seen: list[str] = []

    class Looks(AsyncTrainer):
        def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            seen.extend(tensor.device.type for tensor in inputs.values())
            return super().training_step(model, inputs, *args, **kwargs)

    for data in (Texts(), Unsized()):
        trained(tmp_path, Looks, "cuda", data=data, max_steps=3)
    assert set(seen) == {"cuda"}
    copying = {thread for _what, name, thread in recorder.log if name == "h2d"}
    assert copying
    assert threading.get_ident() not in copying
    assert "logging_nan_inf_filter=True waits" in caplog.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_counting_does_not_wait_for_the_gpu() -> None:
    batch = {"input_ids": torch.ones(2, 3, device="cuda"), "attention_mask": torch.ones(2, 3, device="cuda").long()}
    meter = Throughput()
    meter.start()
    torch.cuda.set_sync_debug_mode("error")
    try:
        meter.add(amount(batch))
        meter.add(amount(batch))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    rates = meter.take()
    assert rates["perf/tokens_per_s"] / rates["perf/samples_per_s"] == pytest.approx(3)
