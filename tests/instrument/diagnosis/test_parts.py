"""Stages that leave out a part of a model, and loops in models that the package does not know."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from instrument.config.schema import Config, Data, Model, Training  # noqa: E402
from instrument.diagnosis.costs import StageResult  # noqa: E402
from instrument.diagnosis.forward import Loop, WithoutStage, find_loops, part_of, part_stages  # noqa: E402
from instrument.diagnosis.own import diagnose  # noqa: E402
from instrument.diagnosis.stages import StageContext  # noqa: E402
from instrument.diagnosis.verdict import build_diagnosis  # noqa: E402
from instrument.errors import InstrumentError  # noqa: E402
from instrument.workload import own_workload  # noqa: E402
from tests.instrument.diagnosis.test_verdict import config, row, rows  # noqa: E402

LENGTH = 40


class Smooth(nn.Module):
    """A loop of operators over a sequence."""

    def forward(self, values: Tensor) -> Tensor:
        steps = [values[:, 0]]
        for place in range(1, LENGTH):
            steps.append(steps[-1].lerp(values[:, place], 0.1))
        return torch.stack(steps, 1)


class Recurrent(nn.Module):
    """A loop of calls of one submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)

    def forward(self, values: Tensor) -> Tensor:
        state = values[:, 0]
        for place in range(LENGTH):
            state = self.cell(state) + values[:, place]
        return values + state[:, None]


class Net(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.middle = middle
        self.head = nn.Linear(4, 2)

    def forward(self, values: Tensor) -> Any:
        for block in self.blocks:
            values = block(values)
        return self.head(self.middle(values)).mean(1)


BATCHES = [(torch.ones(3, LENGTH, 4), torch.tensor([0, 1, 1])) for _ in range(2)]
TRAINING = Training(device="cpu", precision="fp32")


def context(middle: nn.Module) -> StageContext:
    ready = Config(TRAINING)
    make = partial(own_workload, model=Net(middle), data=BATCHES, loss=nn.functional.cross_entropy)
    return StageContext.from_config(ready, make)


def loops(given: StageContext) -> list[Loop]:
    return find_loops(given.learner("fp32"), given.on_device()[0])


def test_part_stands_for_all_numbers() -> None:
    paths = {"head": "head", "blocks.0.mlp": "blocks.*.mlp", "0": "*", "a.1.2.b3": "a.*.*.b3"}
    assert {path: part_of(path) for path in paths} == paths


def test_loop_of_operators_is_found() -> None:
    (loop,) = loops(context(Smooth()))
    assert loop.part == "middle" and loop.count >= LENGTH - 1


def test_loop_over_a_submodule_belongs_to_its_caller() -> None:
    assert [loop.part for loop in loops(context(Recurrent()))] == ["middle"]
    assert loops(context(nn.Identity())) == []


@pytest.mark.parametrize(("prompt", "parts"), [("loop", ["apply_prompt"]), ("vectorised", []), ("plain", [])])
def test_prompt_loop_of_the_examples_is_found(prompt: str, parts: list[str]) -> None:
    code = "docs.examples.masked_language"
    model = Model(f"{code}:{prompt}", f"{code}:loss", layers=1, width=16, heads=2, vocabulary=32)
    data = Data(Path(f"{code}:{'Tokens' if prompt == 'plain' else 'PromptTokens'}"), batch=4, sequence=24, samples=8)
    given = StageContext.from_config(Config(TRAINING, model, data))
    assert [loop.part for loop in loops(given)] == parts
    assert [stage.name for stage in part_stages(given, (), search=True)] == [f"without {part}" for part in parts]


def test_step_without_a_part_trains_the_rest_of_the_model() -> None:
    stage = WithoutStage(context(Recurrent()), "middle")
    model = stage._learner.model
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    stage._learner.update = lambda: None  # type: ignore[method-assign]  # keeps the gradients
    stage.iterate()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    assert {name for name, gradient in gradients.items() if gradient is None} == {
        "middle.cell.weight",
        "middle.cell.bias",
    }
    # The backward of the blocks runs, on zeros.
    assert not gradients["blocks.0.weight"].any() and gradients["head.weight"].any()
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())


def test_nothing_left_to_train_is_one_line() -> None:
    with pytest.raises(InstrumentError, match=r"^without \* nothing is left to train$"):
        model = nn.Sequential(nn.Linear(4, 2))
        batches = [(torch.ones(3, 4), torch.tensor([0, 1, 1]))]
        make = partial(own_workload, model=model, data=batches, loss=nn.functional.cross_entropy)
        WithoutStage(StageContext.from_config(Config(TRAINING), make), "*").iterate()


def test_diagnosis_of_objects_leaves_the_model_as_it_was() -> None:
    model = Net(Smooth())
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    report = diagnose(model, BATCHES, nn.CrossEntropyLoss(), device="cpu", iterations=1, warm_up=0, without=["head"])
    stages = [stage.stage for stage in report.stages]
    assert stages == [
        "inference", "training", "mixed", "loader", "plain", "pipeline", "without head", "without middle",
    ]  # fmt: skip
    assert all(stage.ms is not None for stage in report.stages if stage.stage not in ("mixed", "plain"))
    assert report.diagnosis.capture[0].endswith("python your_program.py")
    assert "without   middle" in str(report)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    with pytest.raises(InstrumentError, match=r"--without haed: no such module \(did you mean head\?\)"):
        diagnose(model, BATCHES, nn.CrossEntropyLoss(), device="cpu", iterations=1, warm_up=0, without=["haed"])


def part(ms: float, loop: str = "one forward runs select 64 times in turn") -> StageResult:
    return row("without apply_prompt", ms, loop=loop)


def test_loop_is_named_with_its_remedy() -> None:
    result = build_diagnosis([*rows(20.2, compute=20.0, gpu=10.0), part(11.0)], config())
    assert (result.bound, result.stage) == ("module", "without apply_prompt")
    assert result.lost_ms == pytest.approx(9.0)
    assert (result.bare_ms, result.overhead_percent) == (20.0, pytest.approx(1.0))
    assert result.remedy.flags == "" and "apply_prompt" in result.remedy.why


def test_launches_outside_the_loop_are_their_own_cost() -> None:
    assert build_diagnosis([*rows(20.2, compute=20.0, gpu=10.0), part(18.0)], config()).bound == "launch"
    assert build_diagnosis([*rows(20.2, compute=20.0, gpu=10.0), part(11.0, loop="")], config()).bound == "launch"
