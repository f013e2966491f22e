from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from instrument.hf import AsyncTrainer  # noqa: E402
from instrument.hf.batches import BatchSize, Throughput, batch_size  # noqa: E402
from tests.instrument.gpu import no_synchronization  # noqa: E402
from tests.instrument.hf.tiny import BATCH, CPU_AND_GPU, Texts, trained, trainer  # noqa: E402
from tests.instrument.test_ranges import Recorder, assert_nested  # noqa: E402


def test_model_errors_close_every_range(tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_phases_are_inside_their_iteration(tmp_path: Path, recorder: Recorder, enabled: bool) -> None:
    trained(
        tmp_path,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        save_strategy="steps",
        save_steps=3,
        eval_strategy="steps",
        eval_steps=3,
        eval_dataset=Texts(4),
        enable_async_dataloader=enabled,
    )
    assert_nested(recorder.log)
    held = phases_by_iteration(recorder)
    micro_batch = {"data_load": 2} | ({"h2d": 2} if enabled else {}) | {"forward": 2, "backward": 2, "optimizer": 2}
    first = micro_batch | ({"data_load": 3} if enabled else {})  # one before the loader runs ahead
    assert held == {
        "iteration 0": first,
        "iteration 1": micro_batch,
        "iteration 2": micro_batch | {"validate": 1, "checkpoint": 1},
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


def test_resumed_run_continues_the_iteration_numbers(tmp_path: Path, recorder: Recorder) -> None:
    trained(tmp_path, save_strategy="steps", save_steps=3, max_steps=5)
    recorder.log.clear()
    trained(tmp_path, save_strategy="steps", save_steps=3, max_steps=5, resume=tmp_path / "checkpoint-3")
    assert list(phases_by_iteration(recorder)) == ["iteration 3", "iteration 4"]


@pytest.mark.parametrize("device", CPU_AND_GPU)
@pytest.mark.parametrize("enabled", [True, False])
def test_every_loss_has_rates_without_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, enabled: bool
) -> None:
    monkeypatch.setattr("instrument.hf.batches.perf_counter", iter(range(0, 100_000, 2)).__next__)
    made = trained(tmp_path, AsyncTrainer, device, data=Texts(8), num_train_epochs=1, enable_async_dataloader=enabled)
    entries = [entry for entry in made.state.log_history if "loss" in entry]
    assert len(entries) == 2
    assert [entry["perf/samples_per_s"] for entry in entries] == [BATCH / 2, BATCH / 2]
    tokens = sum(int(sample["attention_mask"].sum()) for sample in (Texts(8)[i] for i in range(8)))
    assert sum(entry["perf/tokens_per_s"] for entry in entries) == tokens / 2
    assert "perf/tokens_per_s" not in made.state.log_history[-1]


def test_rates_exclude_time_outside_training(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("instrument.hf.batches.perf_counter", lambda: now[0])
    meter = Throughput()
    assert meter.take() == {}
    meter.start()
    meter.add(BatchSize(4, 32))
    now[0] = 2.0
    with meter.paused(), meter.paused():
        now[0] = 7.0
    now[0] = 9.0
    assert meter.take() == {"perf/samples_per_s": 1.0, "perf/tokens_per_s": 8.0}
    meter.add(BatchSize(2, None))
    now[0] = 10.0
    assert meter.take() == {"perf/samples_per_s": 2.0}


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ({"input_ids": torch.ones(2, 5, dtype=torch.long)}, BatchSize(2, 10)),
        ({"input_ids": torch.ones(2, 3), "attention_mask": torch.tensor([[1, 1, 0], [1, 0, 0]])}, BatchSize(2, 3)),
        ({"input_ids": torch.ones(1, 4, dtype=torch.int), "attention_mask": torch.ones(1, 1, 4, 4)}, BatchSize(1, 4)),
        ({"pixel_values": torch.ones(3, 1, 2, 2), "labels": torch.ones(3)}, BatchSize(3, None)),
        ({"inputs_embeds": torch.ones(3, 4, 2)}, BatchSize(3, None)),
        ({"note": "text"}, BatchSize(0, None)),
        ([torch.ones(3)], BatchSize(0, None)),
        ({}, BatchSize(0, None)),
    ],
)
def test_batch_is_counted_by_shape_and_mask(batch: object, expected: BatchSize) -> None:
    assert batch_size(batch) == expected


@pytest.mark.parametrize("device", CPU_AND_GPU[1:])
def test_counting_does_not_synchronize(device: str) -> None:
    batch = {"input_ids": torch.ones(2, 3, device=device), "attention_mask": torch.ones(2, 3, device=device).long()}
    meter = Throughput()
    meter.start()
    with no_synchronization():
        meter.add(batch_size(batch))
        meter.add(batch_size(batch))
    rates = meter.take()
    assert rates["perf/tokens_per_s"] / rates["perf/samples_per_s"] == pytest.approx(3)
