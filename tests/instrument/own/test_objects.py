"""A run built from objects: its optimizer and scheduler, metrics, hooks and workers; and the examples that show it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from instrument import Hooks
from instrument.config.loading import load
from instrument.config.schema import Checkpoint, Config, Data, Monitor, Training
from instrument.distributed.world import process_group
from instrument.errors import ConfigError
from instrument.own import OwnLoss
from instrument.trainer.optimizer import parameter_groups
from instrument.trainer.training_run import _TrainingRun, train
from instrument.workload import named_after, own_workload
from tests.captures import ROOT
from tests.instrument.own import my_code
from tests.instrument.own.test_workload import CODE, config, losses

PLAIN = Config(
    Training(device="cpu", precision="fp32", steps=8, learning_rate=0.05, schedule="constant"),
    data=Data(batch=4, workers=0),
    monitor=Monitor(progress=False),
)
STEPPED = "my_optimizer.py:stepped"
CODE_OF_OPTIMIZER = """
import torch

def stepped(groups, lr):
    made = torch.optim.SGD(groups, lr=lr, momentum=0.9)
    return made, torch.optim.lr_scheduler.StepLR(made, 3, 0.5)

def plain(groups):
    return torch.optim.SGD(groups, lr=0.2)

def wrong(groups):
    return 7

def broken(groups):
    raise ValueError("no groups")
"""


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_optimizer.py").write_text(CODE_OF_OPTIMIZER)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_optimizer", raising=False)


def run(made: Config, **given: Any) -> Any:
    torch.manual_seed(0)
    parts = {"model": my_code.Net(), "data": my_code.dataset(), "loss": my_code.loss}
    return train(made, lambda _line: None, **parts | given)


def test_objects_train_as_references_do() -> None:
    assert run(PLAIN).losses == losses(config(steps=8, schedule="constant"))


def test_biases_and_norms_have_no_weight_decay() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2, bias=False))
    decayed, plain = parameter_groups(model, 0.1)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert decayed["params"] == [model[0].weight, model[2].weight]
    assert plain["params"] == [model[0].bias, model[1].weight, model[1].bias]


def test_own_optimizer_and_scheduler_equal_a_plain_loop_and_resume(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = my_code.Net()
    optimizer = torch.optim.SGD(parameter_groups(model, 0.01), lr=0.05, momentum=0.9)
    scheduler, plain = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5), []
    for batch in 2 * my_code.dictionaries():
        loss = model(**batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        plain.append(loss.item())
    made = config("dictionaries", None, optimizer=STEPPED, steps=12)
    assert losses(made) == pytest.approx(plain, rel=1e-6)
    first = replace(made, training=replace(made.training, steps=5), checkpoint=Checkpoint(tmp_path / "kept"))
    again = replace(made, checkpoint=Checkpoint(tmp_path / "kept", resume="latest"))
    assert losses(first) + losses(again) == losses(made)


@pytest.mark.parametrize(("name", "rate"), [("my_optimizer.py:plain", 0.2), ("torch.optim:SGD", 0.05)])
def test_rates_of_an_optimizer_follow_the_schedule(name: str, rate: float) -> None:
    class Rates(Hooks):
        def start(self, _model: Any, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer, self.rates = optimizer, list[float]()

        def before_step(self, _step: int) -> None:
            self.rates.append(self.optimizer.param_groups[0]["lr"])

    hooks = Rates()
    run(replace(PLAIN, training=replace(PLAIN.training, optimizer=name, schedule="linear", steps=4)), hooks=hooks)
    assert hooks.rates == [rate * share for share in (1.0, 0.75, 0.5, 0.25)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("my_optimizer.py:wrong", "returns int, not a torch.optim.Optimizer, alone or with a scheduler"),
        ("my_optimizer.py:broken", "fails with ValueError: no groups"),
        ("my_optimizer.py:gone", "my_optimizer.py has no gone"),
        ("nowhere.py:make", "nowhere.py does not exist"),
    ],
)
def test_wrong_optimizer_is_one_line(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^--optimizer {name}.*{reason}") as raised:
        losses(config(optimizer=name))
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".py" and path.name[0] != "_"] == []


def test_graph_refuses_an_own_optimizer() -> None:
    with pytest.raises(ConfigError, match="a CUDA graph holds the trainer's own optimizer"):
        config(strategy="graph", optimizer=STEPPED)


def with_accuracy(outputs: Any, targets: Any) -> Any:
    return my_code.loss(outputs, targets), {"accuracy": (outputs.argmax(1) == targets).float().mean()}


class Recorded(Hooks):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def start(self, model: Any, optimizer: Any) -> None:
        self.calls.append(("start", type(model).__name__, type(optimizer).__name__))

    def before_step(self, step: int) -> None:
        self.calls.append(("before", step))

    def after_step(self, step: int, loss: Any) -> None:
        self.calls.append(("after", step, loss.dim()))

    def after_validation(self, step: int, figures: Any) -> None:
        self.calls.append(("validation", step, sorted(figures)))

    def end(self, done: int) -> None:
        self.calls.append(("end", done))


def test_metrics_are_in_the_records_and_hooks_are_called(tmp_path: Path) -> None:
    records, hooks = tmp_path / "run.jsonl", Recorded()
    made = replace(
        PLAIN,
        training=replace(PLAIN.training, steps=2, validate_every=2),
        monitor=Monitor(every=1, progress=False, jsonl=records),
    )
    outcome = run(made, loss=with_accuracy, validation=my_code.dataset(), hooks=hooks)
    assert outcome.losses == run(replace(made, monitor=PLAIN.monitor), validation=my_code.dataset()).losses
    rows = [json.loads(line) for line in records.read_text().splitlines()]
    assert [0 <= row["accuracy"] <= 1 for row in rows if "accuracy" in row] == [True, True]
    assert [0 <= row["validation/accuracy"] <= 1 for row in rows if "validation/accuracy" in row] == [True]
    steps = [call for step in range(2) for call in (("before", step), ("after", step, 0))]
    validation = ("validation", 2, ["validation/accuracy", "validation/loss"])
    assert hooks.calls == [("start", "Net", "AdamW"), *steps, validation, ("end", 2)]


def test_validation_keeps_the_metrics_of_the_training() -> None:
    class Kept(Hooks):
        def after_step(self, _step: int, _loss: Any) -> None:
            self.before = loss.metrics["accuracy"]

        def after_validation(self, _step: int, _figures: Any) -> None:
            assert loss.metrics["accuracy"] is self.before

    loss = OwnLoss(with_accuracy)
    made = replace(PLAIN, training=replace(PLAIN.training, steps=2, validate_every=1))
    model, data = my_code.Net(), my_code.dataset()
    workload = own_workload(named_after(made, model, data, data), model, data, None, data)
    workload.compute_loss, workload.hooks = loss, Kept()
    with process_group("cpu") as world:
        _TrainingRun(workload, world, torch.device("cpu"), lambda _line: None).run()


def test_hooks_of_a_reference_end_after_a_failure() -> None:
    my_code.calls.clear()
    with pytest.raises(ValueError, match="step 1 fails"):
        losses(config(hooks=f"{CODE}:FailingHooks"))
    assert my_code.calls == [0, 1, "end 2"]


@pytest.mark.parametrize(
    ("flags", "cores", "processes", "workers"),
    [
        ({}, 6, 1, 5),
        ({}, 64, 1, 8),
        ({}, 1, 1, 0),
        ({}, 8, 4, 1),
        ({"workers": "auto"}, 4, 1, 3),
        ({"workers": "2"}, 64, 1, 2),
        ({"data": None}, 64, 1, 0),
    ],
)
def test_workers_follow_the_cpu_cores(
    flags: dict[str, Any], cores: int, processes: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: set(range(cores)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    assert load(None, {"data": "some.npy"} | flags).data.with_workers().workers == workers


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_names_of_precisions_are_switches(name: str, tmp_path: Path) -> None:
    from tests.instrument.config.test_flags import run as parsed

    assert parsed(f"--{name}", "--train_batch_size", "7").training.precision == name
    assert parsed(f"--{name}", "--train_batch_size", "7").data.batch == 7
    file = tmp_path / "run.yaml"
    file.write_text(f"training: {{{name}: true}}\ndata: {{train_batch_size: 3}}\n")
    assert (load(file, {}).training.precision, load(file, {}).data.batch) == (name, 3)
    file.write_text(f"training: {{{name}: false}}\n")
    assert load(file, {}).training.precision == Config().training.precision


def test_example_builds_a_run() -> None:
    shown = example("build_a_run.py")
    assert "accuracy" in shown.stderr + shown.stdout
    words = shown.stdout.splitlines()[-1].replace(",", "").split()
    first, last = [float(word) for word in words if word[0].isdigit()][:2]
    assert last < first / 2


def test_example_logs_every_step(tmp_path: Path) -> None:
    printed = example("every_step.py", "losses.csv").stdout.splitlines()
    rows = (tmp_path / "losses.csv").read_text().splitlines()
    assert [int(row.split(",")[0]) for row in rows] == list(range(1000))
    assert len(printed) == 10 and printed[-1].startswith("step 1000  loss ")


def example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "docs" / "examples" / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
