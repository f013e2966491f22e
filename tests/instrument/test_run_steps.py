"""Iterations and phases of loops that `python -m instrument.run` sees, in this process."""

from __future__ import annotations

import importlib
import io
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset, dataloader

from instrument.run.live import Live
from instrument.run.patches import patch_torch
from instrument.run.steps import MAX_STEPS, ProgramSteps
from tests.instrument.gpu import no_synchronization
from tests.instrument.test_ranges import Recorder, assert_nested

Patch = Callable[..., ProgramSteps]
OWNERS = (
    *(DataLoader, dataloader._BaseDataLoaderIter, torch, torch.autograd, torch.amp.GradScaler, torch.Tensor),
    *(nn.Module, optimizers.Optimizer, torch.distributed, torch.distributed.distributed_c10d),
)
DATA = TensorDataset(torch.arange(16.0).reshape(8, 2), torch.ones(8, 1))
STEP = ["h2d", "forward", "backward", "optimizer", "data_load"]


@pytest.fixture
def patch() -> Iterator[Patch]:
    """Return what names the phases of this process; afterwards torch is as before."""
    importlib.import_module("torch._dynamo")  # it remembers the function that calls a module
    before = [dict(vars(owner)) for owner in OWNERS]
    allowed = list(UninitializedParameter._allowed_methods)
    made: list[ProgramSteps] = []

    def patch(depth: int = 0, live: Live | None = None) -> ProgramSteps:
        made.append(ProgramSteps(live))
        patch_torch(made[0], depth)
        return made[0]

    yield patch
    for owner, attributes in zip(OWNERS, before, strict=True):
        for name, value in list(vars(owner).items()):
            if name not in attributes:
                delattr(owner, name)
            elif value is not attributes[name]:
                setattr(owner, name, attributes[name])
    optimizers._global_optimizer_pre_hooks.clear()
    optimizers._global_optimizer_post_hooks.clear()
    UninitializedParameter._allowed_methods[:] = allowed


def names(recorder: Recorder, steps: ProgramSteps) -> list[str]:
    """Return the ranges in order, once all are closed and nested."""
    steps.close()
    assert_nested(recorder.log)
    return [name for what, name, _thread in recorder.log if what == "push"]


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.001)


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return model(x).square().mean()


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    loss_of(model, x).backward()
    optimizer.step()


def test_loop_with_validation_and_checkpoint(recorder: Recorder, patch: Patch) -> None:
    steps = patch()
    model, optimizer = model_and_optimizer()
    loader = DataLoader(DATA, batch_size=4)
    for _epoch in range(2):
        for x, _ in loader:
            optimizer.zero_grad()
            train_step(model, optimizer, x.to("cpu"))
        with torch.no_grad():
            model(x)
        torch.save(model.state_dict(), io.BytesIO())
    between = ["validate", "checkpoint"]
    start = ["data_load", "data_load"]  # the start of the loader, and its first batch
    first = [*start, "h2d", "iteration 0", *STEP[1:], "iteration 1", *STEP]
    assert names(recorder, steps) == [*first, *between, *start, "iteration 2", *STEP, "iteration 3", *STEP, *between]


def test_accumulation_is_one_iteration(recorder: Recorder, patch: Patch) -> None:
    steps = patch()
    model, optimizer = model_and_optimizer()
    for index, (x, _) in enumerate(DataLoader(DATA, batch_size=2)):
        loss_of(model, x).backward()
        if index % 2:
            optimizer.step()
    micro = ["forward", "backward", "data_load"]
    step = [*micro, *micro[:2], "optimizer", "data_load"]
    assert names(recorder, steps) == ["data_load", "data_load", "iteration 0", *step, "iteration 1", *step]


@pytest.mark.parametrize("own_loader", [False, True])
def test_gan_is_one_iteration_for_both_networks(recorder: Recorder, patch: Patch, own_loader: bool) -> None:
    steps = patch()
    (generator, of_generator), (critic, of_critic) = model_and_optimizer(), model_and_optimizer()
    batches = DataLoader(DATA, batch_size=4) if own_loader else [(torch.ones(4, 2),)] * 2
    for real, *_ in batches:
        with torch.no_grad():
            generator(real)
        train_step(critic, of_critic, real)
        train_step(generator, of_generator, real)
    found = names(recorder, steps)
    assert [name for name in found if name.startswith("iteration")] == ["iteration 0", "iteration 1"]
    # Without a loader, the first forward without gradients comes before the first iteration.
    assert found[found.index("iteration 1") :].count("optimizer") == 2
    assert found.count("forward") + found.count("validate") == 6


def test_several_critic_steps_belong_to_one_iteration(recorder: Recorder, patch: Patch) -> None:
    steps = patch()
    (generator, of_generator), (critic, of_critic) = model_and_optimizer(), model_and_optimizer()
    batches = iter(DataLoader(TensorDataset(torch.ones(24, 2)), batch_size=2))
    for _ in range(3):
        for _ in range(3):
            train_step(critic, of_critic, next(batches)[0])
        train_step(generator, of_generator, next(batches)[0])
    assert names(recorder, steps).count("optimizer") == 12
    assert steps.number == 2


def test_optimizer_that_never_steps_is_not_waited_for(patch: Patch) -> None:
    steps = patch()
    _unused, _ = model_and_optimizer()[1], model_and_optimizer()[1]
    model, optimizer = model_and_optimizer()
    for _ in range(MAX_STEPS + 3):
        train_step(model, optimizer, torch.ones(1, 2))
    assert steps.number == 3


def test_programs_without_loader_and_optimizer(recorder: Recorder, patch: Patch) -> None:
    steps = patch()
    model, x = nn.Linear(2, 1), torch.ones(4, 2)
    for _ in range(2):
        nn.MSELoss()(model(x), torch.ones(4, 1)).backward()
        with torch.no_grad():
            model.weight.sub_(model.weight.grad)
    step = ["forward", "forward", "backward"]  # the loss is a module, too
    assert names(recorder, steps) == ["iteration 0", *step, "iteration 1", *step]


def test_program_that_trains_in_evaluation_mode(recorder: Recorder, patch: Patch) -> None:
    steps = patch()
    model, optimizer = model_and_optimizer()
    model.eval()
    for _ in range(2):
        train_step(model, optimizer, torch.ones(4, 2))
    step = ["backward", "optimizer"]
    assert names(recorder, steps) == ["validate", "iteration 0", *step, "validate", "iteration 1", *step]


def test_inference_has_no_iterations(recorder: Recorder, patch: Patch) -> None:
    steps = patch()
    with torch.no_grad():
        nn.Linear(2, 1)(torch.ones(1, 2))
    assert names(recorder, steps) == ["forward"]


def test_closure_of_an_optimizer(recorder: Recorder, patch: Patch) -> None:
    steps = patch()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure() -> torch.Tensor:
        loss = loss_of(model, torch.ones(4, 2))
        loss.backward()
        return loss

    for _ in range(2):
        model(torch.ones(1, 2))
        optimizer.step(closure)
    step = ["forward", "optimizer", "forward", "backward"]
    assert names(recorder, steps) == ["iteration 0", *step, "iteration 1", *step]


def test_step_that_a_scaler_skips_is_an_iteration(recorder: Recorder, patch: Patch) -> None:
    steps = patch()
    model, optimizer = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu")
    for factor in (1.0, torch.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, torch.ones(1, 2)) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert names(recorder, steps).count("optimizer") == 3
    assert steps.number == 2


def test_exceptions_close_their_ranges(recorder: Recorder, patch: Patch) -> None:
    steps = patch()
    model, optimizer = model_and_optimizer()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            model(torch.ones(3))
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
    train_step(model, optimizer, torch.ones(1, 2))
    assert steps.phase is None
    assert names(recorder, steps).count("optimizer") == 3


def test_other_threads_have_no_ranges(recorder: Recorder, patch: Patch) -> None:
    patch()
    thread = threading.Thread(target=nn.Linear(2, 1), args=(torch.ones(1, 2),))
    thread.start()
    thread.join()
    assert recorder.log == []


def test_modules_to_a_depth(recorder: Recorder, patch: Patch) -> None:
    steps = patch(depth=1)
    device = "cuda" if torch.cuda.is_available() else "cpu"  # where there are GPUs, DataParallel takes no other model
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU())).to(device)
    loss_of(nn.parallel.DataParallel(model), torch.ones(1, 2, device=device)).backward()
    modules = ["0", "1", "backward", "1 backward", "0 backward"]
    assert names(recorder, steps) == ["iteration 0", "forward", *modules]


def test_lazy_modules_and_other_tensors_pass(recorder: Recorder, patch: Patch) -> None:
    patch()
    model = nn.LazyLinear(2).to("cpu")
    assert model(torch.ones(1, 3).to(torch.float32)).shape == (1, 2)
    torch.ones(()).to("cpu")
    assert "h2d" not in [name for _what, name, _thread in recorder.log]


def test_profiler_of_torch_records_the_ranges(patch: Patch) -> None:
    steps = patch()
    model, optimizer = model_and_optimizer()
    with torch.profiler.profile() as profile:
        for x, _ in DataLoader(DATA, batch_size=4):
            train_step(model, optimizer, x.to("cpu"))
        steps.close()
    found = {event.name for event in profile.events()}
    assert {"iteration 0", "iteration 1", "data_load", "h2d", "forward", "backward", "optimizer"} <= found


def test_accelerate_loop(recorder: Recorder, patch: Patch) -> None:
    accelerate = pytest.importorskip("accelerate")
    steps = patch()
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    prepared = accelerator.prepare(*model_and_optimizer(), DataLoader(DATA, batch_size=2))
    model, optimizer, loader = prepared
    for x, _ in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, x))
            optimizer.step()
            optimizer.zero_grad()
    assert steps.number == 1
    assert {"data_load", "forward", "backward", "optimizer"} <= set(names(recorder, steps))


@pytest.mark.filterwarnings("ignore")
def test_lightning_trainer(recorder: Recorder, patch: Patch, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    steps = patch()

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
            return loss_of(self.layer, batch[0])

        def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
            self.layer(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.001)

    loader = DataLoader(DATA, batch_size=2)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", accumulate_grad_batches=2, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(Module(), loader, loader)
    assert steps.number == 3
    found = names(recorder, steps)
    assert (found.count("forward"), found.count("backward"), found.count("optimizer")) == (8, 8, 4)
    assert found.count("validate") == 2 + 2 * 4  # the check before the training, and after each epoch
    assert "checkpoint" in found


def test_live_prints_the_parts_of_a_step_and_what_grows(patch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    live = Live(0.0, traces=False)
    steps = patch(live=live)
    model, optimizer = model_and_optimizer()

    def late(samples: list[float]) -> torch.Tensor:
        threading.Event().wait(samples[0])
        return torch.ones(1, 2)

    for x in DataLoader([0.002] * 8 + [0.05] * 7, batch_size=1, collate_fn=late):  # type: ignore[arg-type]
        train_step(model, optimizer, x)
    steps.close()
    live.close()
    first, *rest = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"instrument: step 4: [\d.]+ ms \(data [\d.]+, compute [\d.]+, wait [\d.]+\), mean of 5", first)
    assert any(line.startswith("instrument: warning: data takes ") for line in rest)
    loader = r"instrument: loader: can make [\d.e+]+ batches/s; none was ready at 100% of the requests"
    assert any(re.fullmatch(loader, line) for line in rest)


def test_marks_state_what_the_loader_of_the_training_can_do(recorder: Recorder, patch: Patch) -> None:
    steps = patch()
    model, optimizer = model_and_optimizer()
    training, other = (DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2, num_workers=2) for _ in range(2))
    for _epoch in range(3):
        for (x,) in training:
            train_step(model, optimizer, x)
        with torch.no_grad():
            assert len(list(other)) == 4
    steps.close()
    assert steps.gauge.counts.workers == 2
    assert steps.gauge.counts.requests == 3 * 4 - 1  # the data of the first batch is not known to be the training's
    assert {name for name, *_ in recorder.marks} >= {"loader_workers: 2"}
    assert training.worker_init_fn is None


def test_slow_step_is_followed_by_a_trace(
    patch: Patch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    live = Live(None, traces=True)
    steps = patch(live=live)
    model, optimizer = model_and_optimizer()
    for index in range(18):
        loss_of(model, torch.ones(1, 2)).backward()
        threading.Event().wait(0.3 if index == 12 else 0.005)
        optimizer.step()
    steps.close()
    live.close()
    assert "step 12 took " in capsys.readouterr().err
    assert (tmp_path / "slow-step-12-rank0.json.gz").stat().st_size > 0


@pytest.mark.gpu
def test_gpu_loop_never_waits(recorder: Recorder, patch: Patch, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    live = Live(0.0, traces=False)
    steps = patch(live=live)
    batch = torch.ones(64, 256).pin_memory()
    with no_synchronization():
        for _ in range(20):
            optimizer.zero_grad()
            train_step(model, optimizer, batch.to("cuda", non_blocking=True))
    torch.cuda.synchronize()
    steps.close()
    live.close()
    assert names(recorder, steps).count("h2d") == 20
    assert "compute " in capsys.readouterr().err


@pytest.mark.gpu
def test_gpu_graph_is_captured_under_live(patch: Patch) -> None:
    model, x = nn.Linear(8, 8).cuda(), torch.ones(8, 8, device="cuda")
    steps = patch(live=Live(0.0, traces=False))
    for _ in range(3):
        model(x).sum().backward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(x)
    graph.replay()
    torch.cuda.synchronize()
    steps.close()
