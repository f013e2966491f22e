"""A stock Trainer with the callback trains as before, and its log and ranges name the phases."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from instrument import ranges  # noqa: E402
from instrument.hf import RangeCallback  # noqa: E402
from tests.instrument.hf.tiny import assert_same, trained, trainer  # noqa: E402
from tests.instrument.test_ranges import Recorder, assert_nested  # noqa: E402


def test_stock_trainer_with_the_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = trained(tmp_path, transformers.Trainer, gradient_accumulation_steps=2, num_train_epochs=1)
    recorder = Recorder()
    monkeypatch.setattr(ranges, "nvtx", recorder)
    made = trainer(tmp_path, transformers.Trainer, gradient_accumulation_steps=2, num_train_epochs=1)
    made.add_callback(RangeCallback())
    made.train()
    assert_same(made, stock)
    assert_nested(recorder.log)
    pushed = [name for what, name, _thread in recorder.log if what == "push"]
    first = pushed[: pushed.index("iteration 1")]
    assert first == ["iteration 0", "forward", "backward", "forward", "backward", "optimizer"]
    assert {"perf/step_ms", "perf/tokens_per_s", "perf/samples_per_s"} <= made.state.log_history[1].keys()
    assert not made.model._forward_hooks
    assert not made.model._forward_pre_hooks
