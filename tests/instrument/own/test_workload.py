"""Training a model, data and a loss that the package does not know, on the CPU."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from instrument.config.loading import load
from instrument.config.schema import Checkpoint, Config, Data, Model, Monitor, Training
from instrument.errors import InstrumentError
from instrument.own import OwnLoss, StreamLoader
from instrument.train import main
from instrument.trainer.messages import Outcome
from instrument.trainer.optimizer import parameter_groups
from instrument.trainer.training_run import train
from instrument.workload import open_workload
from tests.instrument.own import my_code

CODE = "tests.instrument.own.my_code"
FORMS = (
    "dataset", "loader", "Stream", "dictionaries", "Augmented", "augmented_loader", "own_generator", "weighted",
)  # fmt: skip


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # runs without a folder write to the current one


def config(data: str = "dataset", loss: str | None = "loss", model: str = "Net", **training: Any) -> Config:
    return Config(
        Training(**{"device": "cpu", "precision": "fp32", "steps": 10, "learning_rate": 0.05} | training),
        Model(name=f"{CODE}:{model}", loss=None if loss is None else f"{CODE}:{loss}"),
        Data(path=Path(f"{CODE}:{data}"), batch=4, workers=0, validation=Path(f"{CODE}:dataset")),
        monitor=Monitor(progress=False),
    )


def losses(made: Config) -> list[float]:
    return train(made, lambda _line: None).losses


def form(data: str, **training: Any) -> Config:
    return config(data, None if data == "dictionaries" else "loss", **training)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("model", "strategy"),
    [("Normed", "prefetch"), ("Normed", "staged"), ("Normed", "graph"), ("Recomputing", "prefetch"),
     ("Recomputing", "staged"), ("Normed", "streams"), ("Recomputing", "streams")],
)  # fmt: skip
def test_strategies_treat_buffers_and_random_numbers_alike(model: str, strategy: str, device: str) -> None:
    serial, other = (config(model=model, strategy=name, device=device) for name in ("serial", strategy))
    assert losses(other) == losses(serial)


def test_model_returns_the_loss_of_a_stream() -> None:
    assert len(losses(config("Stream", None))) == 10


@pytest.mark.parametrize("data", FORMS)
def test_run_trains_and_resumes_bit_for_bit(data: str, tmp_path: Path) -> None:
    whole = losses(form(data))
    assert whole[-1] < whole[0] or "ugmented" in data
    first = replace(form(data, steps=7, schedule="constant"), checkpoint=Checkpoint(folder=tmp_path))
    second = replace(
        first, training=replace(first.training, steps=10), checkpoint=Checkpoint(tmp_path, resume="latest")
    )
    assert losses(first) + losses(second) == losses(form(data, schedule="constant"))


@pytest.mark.parametrize(
    ("data", "workers", "said"),
    [("Augmented", 2, True), ("Augmented", 0, False), ("dataset", 2, False), ("augmented_loader", 0, False)],
)
def test_run_says_that_augmented_samples_of_workers_do_not_resume(data: str, workers: int, said: bool) -> None:
    made, lines = config(data, steps=1), []
    train(replace(made, data=replace(made.data, workers=workers)), lines.append)
    remedies = [line for line in lines[:4] if "samples draw random numbers in 2 loader processes" in line]
    assert bool(remedies) == said
    assert all("; --workers 0 " in line and line.endswith("resumes bit for bit") for line in remedies)


def test_validation_changes_neither_modes_nor_random_numbers() -> None:
    noisy = {"model": "Frozen", "loss": "noisy_loss"}
    assert losses(config(**noisy, validate_every=3)) == losses(config(**noisy))


@pytest.mark.parametrize("strategy", ["serial", "staged"])
@pytest.mark.parametrize("loss", ["loss", "labelled_loss"])
def test_uneven_micro_batches_weigh_by_their_terms(strategy: str, loss: str) -> None:
    split = config("uneven", loss, strategy=strategy, accumulation=2)
    assert losses(split) == pytest.approx(losses(config("tens", loss, strategy=strategy)), rel=1e-4)


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
@pytest.mark.parametrize("compiled", [None, pytest.param("full", marks=pytest.mark.filterwarnings("ignore"))])
def test_step_that_is_not_finite_leaves_the_buffers(on_nan: str, compiled: str | None, tmp_path: Path) -> None:
    made = config("with_a_nan", model="Normed", on_nan=on_nan, steps=5, schedule="constant")
    made = replace(made, checkpoint=Checkpoint(tmp_path / "a"), model=replace(made.model, compile=compiled))
    train(made, print)
    good = replace(made, training=replace(made.training, steps=4), checkpoint=Checkpoint(tmp_path / "b"))
    train(good, print)
    states = [torch.load(max(tmp_path.glob(f"{name}/0*.pt")))["parts"]["model"] for name in "ab"]
    for name, value in states[0].items():
        assert torch.isfinite(value).all(), name
        if on_nan == "stop":
            assert torch.equal(value, states[1][name]), name


@pytest.mark.parametrize(
    ("model", "reason"),
    [("Normed", "both would change norm.running_mean"), ("Recomputing", "cannot recompute Linear in the backward")],
)
def test_model_that_two_streams_would_share_is_refused(model: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InstrumentError, match=reason):
        losses(config(model=model, strategy="staged", accumulation=2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("batch", "steps"), [(2, 9), (4, 6), (6, 5), (12, 4)])
def test_other_batch_size_resumes_at_the_next_sample(batch: int, steps: int, tmp_path: Path) -> None:
    my_code.seen.clear()
    first = replace(config(loss="recording_loss", steps=3), checkpoint=Checkpoint(tmp_path))
    losses(first)
    second = replace(
        first,
        training=replace(first.training, steps=steps),
        data=replace(first.data, batch=batch),
        checkpoint=Checkpoint(tmp_path, resume="latest"),
    )
    losses(second)
    assert sorted(my_code.seen) == sorted(my_code.dataset()[:][0][:, 0].tolist())


def test_position_between_the_batches_is_refused(tmp_path: Path) -> None:
    first = replace(config(steps=3), checkpoint=Checkpoint(tmp_path))
    losses(first)
    again = Checkpoint(tmp_path, resume="latest")
    with pytest.raises(InstrumentError, match="12 samples of the epoch are done, and no batch of 5 samples"):
        losses(replace(first, data=replace(first.data, batch=5), checkpoint=again))


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--model CODE:Wide --loss CODE:loss", "the model or the loss fails with RuntimeError: mat1 and mat2 shapes"),
        ("--model torch.nn:Identity", "the model has no parameters to train"),
        ("--model CODE:Normed", "give a loss: --loss package.module:loss"),
        ("--model CODE:Net --loss CODE:loss --resume gone.pt", "checkpoint gone.pt does not exist"),
        ("--model CODE:Net --loss CODE:loss --jsonl /dev/null/run.jsonl", "monitor.jsonl"),
    ],
)
@pytest.mark.parametrize("folder", [None, "named"])
def test_mistake_is_one_line_and_leaves_nothing(
    flags: str, reason: str, folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    words = f"train --device cpu --steps 2 --batch 4 --data CODE:dataset {flags}".replace("CODE", CODE).split()
    monkeypatch.setattr("sys.argv", words + ([] if folder is None else ["--checkpoint-folder", folder]))
    with pytest.raises(SystemExit) as ended:
        main()
    errors = [line for line in capfd.readouterr().err.splitlines() if line.startswith("instrument: error")]
    assert ended.value.code == 2
    assert len(errors) == 1 and reason in errors[0]
    if "Wide" in flags:
        assert "(my_code.py:" in errors[0]
    assert not list(tmp_path.iterdir())


def test_default_precision_follows_the_device() -> None:
    assert load(None, {"device": "cpu"}).training.precision == "fp32"
    assert load(None, {"device": "cuda"}).training.precision == "bf16"


def test_losses_are_those_of_a_plain_loop() -> None:
    torch.manual_seed(0)
    model = my_code.Net()
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=0.05)
    plain = []
    for batch in my_code.dictionaries():
        loss = model(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plain.append(loss.item())
    assert losses(form("dictionaries", steps=6, schedule="constant", clip=None, on_nan="continue")) == plain


def test_epochs_of_a_loader_have_other_orders_and_the_same_samples() -> None:
    loader = StreamLoader(my_code.loader(), seed=3, endless=True)
    batches = iter(loader)
    first, second = ([next(batches)[0] for _ in range(len(loader))] for _ in range(2))
    assert not all(torch.equal(*pair) for pair in zip(first, second, strict=True))
    assert torch.equal(torch.cat(first).sort(0).values, torch.cat(second).sort(0).values)
    assert (loader.position.epoch, loader.position.batch) == (2, 0)


def test_loss_forms_agree() -> None:
    model, batch = my_code.Net(), (torch.ones(3, 4), torch.tensor([0, 1, 0]))
    expected = my_code.loss(model(batch[0]), batch[1])
    for loss in (my_code.loss, my_code.loss_of_batch, torch.nn.CrossEntropyLoss, torch.nn.CrossEntropyLoss()):
        assert torch.equal(OwnLoss(loss)(model, batch), expected)
    assert torch.equal(OwnLoss(None)(model, batch), expected)
    assert torch.equal(OwnLoss(None)(model, {"inputs": batch[0], "labels": batch[1]}), expected)


def test_operations_of_a_step_are_counted_once() -> None:
    # 4 x 8 and 8 x 2: forward and weight gradient of both, input gradient of the second; 2 a multiplication.
    assert open_workload(config()).flops() == 4 * 2 * (2 * (4 * 8 + 8 * 2) + 8 * 2)
    assert open_workload(form("Stream")).flops() is None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"data": "datasets"}, f"--data {CODE}:datasets: {CODE} has no datasets (did you mean dataset?)"),
        ({"model": "broken"}, "fails with ValueError: no weights (my_code.py:"),
        ({"model": "number"}, f"--model {CODE}:number: returns int, not a torch.nn.Module"),
        ({"data": "number"}, f"--data {CODE}:number: returns int, not a Dataset or a DataLoader"),
        ({"loss": "each_loss"}, "the loss function returns shape (4,) and must return one number; return its mean()"),
        ({"data": "dictionaries"}, "write the loss as a function loss(model, batch)"),
        ({"data": "Stream", "epochs": 2}, "--epochs 2: the data has no length; use --steps"),
    ],
)
def test_error_is_one_line(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(InstrumentError) as refused:
        train(config(**wrong), lambda _line: None)
    assert reason in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"model": "tiny"}, "invalid value 'tiny'; allowed: transformer or package.module:function"),
        ({"model": "my:net"}, "--model and data.path: my:net with None: a model of your own and data of your own need"),
        ({"loss": "my:loss"}, "--loss and model.name: my:loss with transformer: the package's models have their own"),
        ({"model": "no.such:f", "data": "my:data"}, "--model no.such:f: no module named no in the current folder"),
    ],
)
def test_setting_is_refused_in_one_line(flags: dict[str, str], reason: str) -> None:
    with pytest.raises(InstrumentError) as refused:
        open_workload(load(None, {"device": "cpu", **flags}))
    assert reason in str(refused.value) and "\n" not in str(refused.value)


def test_records_of_a_run(tmp_path: Path) -> None:
    made = replace(config(steps=14), monitor=Monitor(progress=False, jsonl=tmp_path / "run.jsonl"))
    train(made, lambda _line: None)
    records = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    (window,) = (record for record in records if record["step"] == 9)
    assert window["perf/sync_ms"] >= 0 and window["perf/host_rss_bytes"] > 0
    assert window["perf/pinned_bytes"] is None


def test_loader_that_does_not_divide_its_samples_is_refused() -> None:
    workload = open_workload(config("loader"))
    with pytest.raises(InstrumentError, match="each of 2 processes would read all data"):
        workload.build_loader(rank=0, world=2)
    assert len(open_workload(config("dataset")).build_loader(rank=0, world=2)) == 3


def test_first_and_last_lines(tmp_path: Path) -> None:
    from instrument.trainer.messages import end_lines

    said: list[str] = []
    made = replace(config(), checkpoint=Checkpoint(folder=tmp_path / "a"))
    outcome: Outcome = train(made, said.append)
    assert said[0] == "device cpu, strategy prefetch, fp32, waits every 10 steps"
    assert "without a GPU" in said[1]
    lines = end_lines(replace(outcome, steps=20))
    assert [line.split(":")[0] for line in lines] == [
        "done at step 10",
        "parts of a step",
        "loader",
        "memory",
        "checkpoint",
        "to continue",
    ]
    assert lines[1].startswith("parts of a step: forward ") and "sync" in lines[1]
    assert lines[5] == f"to continue: the same command with --checkpoint-folder {tmp_path / 'a'} --resume"
    assert end_lines(outcome)[-1].startswith("to train longer")
