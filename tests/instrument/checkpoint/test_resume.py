"""A run that goes on ends where the run that never stopped ends, bit for bit; what does not fit is named."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from instrument.checkpoint.folder import Checkpoints, load
from instrument.checkpoint.states import random_state, restore_random_state
from instrument.config.schema import Config
from instrument.errors import InstrumentError

schedules = torch.optim.lr_scheduler
SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "lambda": lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "cosine": lambda optimizer: schedules.CosineAnnealingLR(optimizer, T_max=7),
    "onecycle": lambda optimizer: schedules.OneCycleLR(optimizer, max_lr=0.1, total_steps=20),
    "multistep": lambda optimizer: schedules.MultiStepLR(optimizer, milestones=[2, 2, 5]),
    "warmup": lambda optimizer: schedules.SequentialLR(
        optimizer, [schedules.LinearLR(optimizer), schedules.CosineAnnealingLR(optimizer, T_max=9)], milestones=[3]
    ),
}


class Run:
    """A small training that draws from every generator; its data depends on the step alone."""

    def __init__(self, seed: int = 0, schedule: str = "cosine", device: str = "cpu", **adamw: Any) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        self.device = device
        layers = [torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 4)]
        self.model = torch.nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **{"lr": 0.01, **adamw})
        self.scheduler = SCHEDULES[schedule](self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.losses: list[float] = []

    @property
    def parts(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {**parts, "scaler": self.scaler} if self.device == "cpu" else parts

    def train(self, first: int, last: int) -> Run:
        for step in range(first, last):
            data = torch.randn(6, 8, generator=torch.Generator().manual_seed(step)).to(self.device)
            noise = random.random() + torch.randn(4, device=self.device)
            loss = (self.model(data) * noise).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.losses.append(loss.item())
        return self

    def state(self) -> list[Any]:
        tensors = [*self.model.state_dict().values()]
        for state in self.optimizer.state.values():
            tensors += state.values()
        return tensors


def same(left: Run, right: Run) -> bool:
    assert len(left.state()) == len(right.state()) > 10
    return all(torch.equal(a, b) for a, b in zip(left.state(), right.state(), strict=True))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content, middle = bytearray(path.read_bytes()), slice(path.stat().st_size // 2, path.stat().st_size // 2 + 100)
    content[middle] = bytes(byte ^ 1 for byte in content[middle])  # more than the padding between two entries
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, lambda path: path.write_bytes(b"")], ids=["cut", "flipped", "empty"])
def test_checkpoint_before_a_damaged_one_is_loaded(damage: Callable[[Path], Any], tmp_path: Path) -> None:
    lines: list[str] = []
    run, checkpoints = Run(), Checkpoints(tmp_path, log=lines.append)
    paths = [checkpoints.save(step, run.train(step - 1, step).parts) for step in (1, 2, 3)]
    damage(paths[2])
    assert checkpoints.load("latest", Run(seed=9).parts).step == 2
    assert load(tmp_path, Run(seed=9).parts, log=lines.append).step == 2
    assert [line.startswith(f"{paths[2]} is ") for line in lines] == [True, True]
    assert lines[0].endswith("; trying the checkpoint before it, 0002-step-2.pt")
    with pytest.raises(InstrumentError, match="resume from another checkpoint"):
        load(paths[2], Run().parts)
    for path in paths[:2]:
        damage(path)
    with pytest.raises(InstrumentError, match=rf"{paths[0].name} is .*; resume from another checkpoint"):
        checkpoints.load("latest", Run().parts)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, schedule: str) -> None:
    whole = Run(schedule=schedule).train(0, 10)
    first = Run(schedule=schedule).train(0, 4)
    Checkpoints(tmp_path).save(4, first.parts, extra={"losses": first.losses})
    second = Run(seed=99, schedule=schedule).train(50, 53)
    resumed = Checkpoints(tmp_path).load("latest", second.parts)
    second.train(resumed.step, 10)
    assert same(whole, second)
    assert whole.losses == [*resumed.extra["losses"], *second.losses[3:]]
    assert whole.optimizer.param_groups[0]["lr"] == second.optimizer.param_groups[0]["lr"]


def test_random_states_are_restored() -> None:
    numpy = pytest.importorskip("numpy")

    def draw() -> list[float]:
        gauss = [random.gauss(0, 1), numpy.random.standard_normal(), torch.randn(1).item()]
        return [random.random(), numpy.random.random(), torch.rand(1).item(), *gauss]

    draw()
    state = random_state()
    expected = draw()
    assert draw() != expected
    restore_random_state(state)
    assert draw() == expected


def test_inspecting_a_model_keeps_random_state(tmp_path: Path) -> None:
    run = Run()
    Checkpoints(tmp_path).save(1, run.parts)
    torch.manual_seed(5)
    expected = random_state()
    Checkpoints(tmp_path).load("latest", {"model": run.model}, random=False)
    assert torch.equal(random_state()["torch"], expected["torch"])
    Checkpoints(tmp_path).load("latest", {"model": run.model})
    assert not torch.equal(random_state()["torch"], expected["torch"])


def config(**model: Any) -> Config:
    return replace(Config(), model=replace(Config().model, **model))


def test_shape_mismatch_names_fields_and_changes_nothing(tmp_path: Path) -> None:
    run = Run().train(0, 2)
    Checkpoints(tmp_path, config=config(width=512, layers=2)).save(2, run.parts)
    other = Run(seed=1)
    before = [tensor.clone() for tensor in other.state()]
    with pytest.raises(InstrumentError) as caught:
        Checkpoints(tmp_path, config=config(width=1024, layers=2)).load("latest", other.parts)
    assert str(caught.value).endswith(
        "was made with another model: model.width is 1024, was 512; use the checkpoint's values to resume from it"
    )
    assert all(torch.equal(a, b) for a, b in zip(before, other.state(), strict=True))


def test_permitted_differences_are_logged(tmp_path: Path) -> None:
    run = Run().train(0, 2)
    old = config(checkpointing="full")
    Checkpoints(tmp_path, config=old).save(2, run.parts)
    new = replace(config(checkpointing="selective"), data=replace(old.data, workers=2))
    new = replace(new, checkpoint=replace(new.checkpoint, folder=tmp_path), monitor=replace(new.monitor, every=77))
    resumed = Checkpoints(tmp_path, config=new).load("latest", run.parts)
    assert resumed.changed == ("model.checkpointing is 'selective', was 'full'", "data.workers is 2, was -1")


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("model", lambda: torch.nn.Linear(8, 16), r"its model does not fit this run's: [^\n]*eight"),
        ("optimizer", lambda: torch.optim.AdamW([torch.zeros(1)]), "its optimizer does not fit this run's: loaded"),
        ("ema", lambda: torch.nn.Linear(8, 16), "contains no ema, only model, optimizer, scheduler, scaler, random: "),
    ],
)
def test_mismatched_part_is_one_line(tmp_path: Path, part: str, value: Callable[[], Any], said: str) -> None:
    Checkpoints(tmp_path).save(1, Run().parts)
    with pytest.raises(InstrumentError, match=said) as caught:
        Checkpoints(tmp_path).load("latest", {part: value()})
    assert "\n" not in str(caught.value)


MISSING = object()


@pytest.mark.parametrize(
    ("keys", "value", "reason"),
    [
        (["step"], MISSING, "contains no step: it is incomplete"),
        (["parts"], MISSING, "contains no parts: it is incomplete"),
        (["config"], MISSING, "contains no config: it is incomplete"),
        (["extra"], MISSING, "contains no extra: it is incomplete"),
        (["parts", "model", "0.weight"], MISSING, "its model does not fit this run's: Missing key"),
        (["parts", "optimizer", "param_groups"], MISSING, "its optimizer does not fit this run's: 'param_groups' is m"),
        (["parts", "optimizer", "param_groups"], 5, "its optimizer does not fit this run's: .*int"),
        (["parts", "optimizer", "state"], MISSING, "its optimizer does not fit this run's: 'state' is missing"),
        (["parts", "random", "python"], MISSING, "its random does not fit this run's: 'python' is missing"),
        (["parts", "random", "torch"], 7, "its random does not fit this run's: .*int"),
    ],
)
def test_invalid_entry_is_a_one_line_error(tmp_path: Path, keys: list[Any], value: Any, reason: str) -> None:
    run = Run().train(0, 2)
    path = Checkpoints(tmp_path).save(2, run.parts)
    contents = torch.load(path)
    inside = contents
    for key in keys[:-1]:
        inside = inside[key]
    if value is MISSING:
        del inside[keys[-1]]
    else:
        inside[keys[-1]] = value
    torch.save(contents, path)
    with pytest.raises(InstrumentError, match=reason) as refused:
        load(path, run.parts)
    assert "\n" not in str(refused.value) and str(refused.value).startswith(str(path))


def test_optimizer_keeps_its_implementation(tmp_path: Path) -> None:
    # What a graph on the GPU needs, capturable and a rate in a tensor, an eager run on the CPU must not take over.
    run = Run(schedule="lambda").train(0, 3)
    path = Checkpoints(tmp_path).save(3, run.parts)
    contents = torch.load(path)
    group = contents["parts"]["optimizer"]["param_groups"][0]
    rate = group["lr"]
    group.update(capturable=True, foreach=True, lr=torch.tensor(rate, dtype=torch.float64))
    torch.save(contents, path)
    eager = Run(schedule="lambda")
    load(path, eager.parts)
    assert eager.optimizer.param_groups[0]["capturable"] is False
    assert eager.optimizer.param_groups[0]["lr"] == rate
    assert isinstance(eager.optimizer.param_groups[0]["lr"], float)
    state = random_state()
    run.train(3, 5)
    restore_random_state(state)
    assert same(run, eager.train(3, 5))


@pytest.mark.gpu
@pytest.mark.parametrize("adamw", [{}, {"fused": True}, {"capturable": True}, {"foreach": False}])
def test_resumed_run_equals_an_uninterrupted_one_on_a_gpu(tmp_path: Path, adamw: dict[str, Any]) -> None:
    whole = Run(device="cuda", **adamw).train(0, 10)
    first = Run(device="cuda", **adamw).train(0, 4)
    Checkpoints(tmp_path).save(4, first.parts)
    second = Run(seed=99, device="cuda", **adamw).train(50, 53)
    Checkpoints(tmp_path).load("latest", second.parts, "cuda")
    assert same(whole, second.train(4, 10))


@pytest.mark.gpu
@pytest.mark.parametrize(("source", "target"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_run_resumes_on_another_device(tmp_path: Path, source: str, target: str) -> None:
    adamw = {"capturable": source == "cuda"}
    first = Run(device=source, **adamw).train(0, 4)
    Checkpoints(tmp_path).save(4, first.parts)
    second = Run(seed=9, device=target, capturable=target == "cuda")
    shared = {name: part for name, part in second.parts.items() if name != "scaler"}
    Checkpoints(tmp_path).load("latest", shared, target)
    for old, new in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(old.cpu(), new.cpu())
        assert torch.equal(first.optimizer.state[old]["exp_avg"].cpu(), second.optimizer.state[new]["exp_avg"].cpu())
        assert new.device.type == target
    second.train(4, 6)


@pytest.mark.gpu
def test_writes_of_other_streams_finish_first(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4, bias=False, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad():
        torch.cuda._sleep(100_000_000)
        model.weight.fill_(7.0)
    path = Checkpoints(tmp_path).save(1, {"model": model})
    assert torch.equal(torch.load(path, map_location="cpu")["parts"]["model"]["weight"], torch.full((4, 4), 7.0))
