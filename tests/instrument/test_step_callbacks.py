"""Ranges of loops that accelerate and Lightning run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from instrument.step_ranges import StepRanges  # noqa: E402
from tests.instrument.test_ranges import Recorder, assert_nested  # noqa: E402

DATA = torch.utils.data.TensorDataset(torch.arange(16.0).reshape(8, 2), torch.ones(8, 1))


def pushed(recorder: Recorder) -> list[str]:
    assert_nested(recorder.log)
    return [name for what, name, _thread in recorder.log if what == "push"]


def test_steps_hold_one_phase_at_a_time(recorder: Recorder) -> None:
    steps = StepRanges()
    assert steps.figures() == {}
    for step in (0, 0, 1):
        steps.begin(step)
        steps.enter("forward")
        steps.enter("backward")
    steps.close()
    steps.close()
    assert pushed(recorder) == [
        "iteration 0", "forward", "backward", "forward", "backward", "iteration 1", "forward", "backward",
    ]  # fmt: skip
    assert steps.figures()["perf/step_ms"] >= 0
    assert steps.figures() == {}


def test_accelerate_loop(recorder: Recorder) -> None:
    accelerate = pytest.importorskip("accelerate")
    from instrument.accelerate import AccelerateRanges

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(DATA, batch_size=2))
    with AccelerateRanges(accelerator, model, optimizer) as steps:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward((model(inputs) - targets).square().mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    step = ["forward", "backward", "forward", "backward", "optimizer", "optimizer"]
    assert pushed(recorder) == ["iteration 0", *step, "iteration 1", *step, "iteration 2"]
    assert steps.figures().keys() == {"perf/step_ms"}
    assert "backward" not in vars(accelerator)


@pytest.mark.filterwarnings("ignore")
def test_lightning_trainer(recorder: Recorder, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    from instrument.lightning import RangeCallback

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, _index: int) -> Any:
            return (self.layer(batch[0]) - batch[1]).square().mean()

        def validation_step(self, batch: Any, _index: int) -> None:
            self.layer(batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.001)

    loader = torch.utils.data.DataLoader(DATA, batch_size=2)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", accumulate_grad_batches=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, default_root_dir=tmp_path,
        callbacks=[RangeCallback(log_every=1)],
    )  # fmt: skip
    trainer.fit(Module(), loader, loader)
    micro = ["forward", "backward"]
    step = [*micro, "data_load", *micro, "optimizer", "data_load"]
    assert pushed(recorder) == ["iteration 0", *step, "iteration 1", *step, "validate"]
    assert trainer.callback_metrics["perf/step_ms"] > 0
