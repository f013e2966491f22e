"""What a DataLoader can make, and how often it had nothing, is known without a change of what it does."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from instrument.config.schema import Config, Data, Model, Monitor, Training
from instrument.monitor.loader import LoaderGauge
from instrument.monitor.metrics import LoaderCounts, StepFigures, figures, loader_text
from instrument.trainer.training_run import train
from tests.instrument.test_ranges import Recorder

CODE = "tests.instrument.own.my_code"
SECONDS = 0.02  # a sample takes so long, so a worker makes at most 50 batches of one a second
MARK = r"(loader_workers|loader_batches_per_s|loader_queue_empty_percent): \d+(\.\d+)?"


class Slow(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        time.sleep(SECONDS)
        if index == 99:
            raise ValueError("no such sample")
        return index


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        for index in range(8):
            time.sleep(SECONDS)
            yield index


def counted(loader: Any, pause: float) -> tuple[LoaderCounts, list[Any]]:
    gauge, values = LoaderGauge(), []
    for batch in gauge.watched(loader):
        values.append(batch)
        time.sleep(pause)
    return gauge.counts, values


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_capacity_is_that_of_the_workers_however_slow_the_training_is(workers: int) -> None:
    loader = DataLoader(Slow(), batch_size=None, num_workers=workers)
    for pause in (0.0, 4 * SECONDS):
        counts, values = counted(loader, pause)
        assert values == list(range(16))
        assert (counts.workers, counts.requests, counts.made) == (workers, 16, 16)
        assert counts.batches_per_s is not None
        assert max(workers, 1) * 2 < counts.batches_per_s <= max(workers, 1) / SECONDS
    assert counts.empty_fraction is not None
    assert (counts.empty_fraction < 0.5) == (workers > 0)


def test_stream_in_workers_is_counted() -> None:
    counts, values = counted(DataLoader(Stream(), batch_size=2, num_workers=1), 0)
    assert [batch.tolist() for batch in values] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert counts.batches_per_s is not None
    assert counts.batches_per_s <= 1 / (2 * SECONDS)
    assert counts.made >= counts.requests == 4


def announce(worker: int) -> None:
    Slow.__len__ = lambda _self: 4 + worker  # type: ignore[method-assign]


class Told(Slow):
    def __getitem__(self, index: int) -> int:
        return len(self)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_function_that_starts_a_worker_is_called_and_put_back(context: str) -> None:
    loader = DataLoader(
        Told(), sampler=[3, 5], num_workers=2, batch_size=None, worker_init_fn=announce, multiprocessing_context=context
    )
    assert counted(loader, 0)[1] == [4, 5]
    assert loader.worker_init_fn is announce


def test_iteration_goes_on_after_an_error() -> None:
    batches = LoaderGauge().watched(DataLoader(Slow(), sampler=[1, 99, 2], batch_size=None))
    assert next(batches) == 1
    with pytest.raises(ValueError, match="no such sample"):
        next(batches)
    assert next(batches) == 2


def test_other_iterables_are_not_counted() -> None:
    assert counted([1, 2], 0) == (LoaderCounts(), [1, 2])


def test_figures_are_those_of_all_steps() -> None:
    counts = LoaderCounts(workers=4, requests=2, empty=1, made=3, busy_ns=600_000_000)
    steps = [StepFigures(step, step_ms=10.0, loader=counts) for step in range(2)]
    known = figures(steps)
    assert known["perf/loader_batches_per_s"] == pytest.approx(20)
    assert known["perf/loader_empty_fraction"] == 0.5
    assert figures([StepFigures(0)])["perf/loader_batches_per_s"] is None
    assert loader_text(20.0, 0.5) == "can make 20 batches/s; none was ready at 50% of the requests"
    assert loader_text(None, None) == ""


@pytest.mark.parametrize("strategy", ["serial", "prefetch"])
def test_run_states_what_its_loader_can_do(
    strategy: str, recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(
        Training(strategy=strategy, device="cpu", precision="fp32", steps=12),
        Model(name=f"{CODE}:Net", loss=f"{CODE}:loss"),
        Data(path=Path(f"{CODE}:dataset"), batch=4, workers=1),
        monitor=Monitor(progress=False),
    )
    outcome = train(config, lambda _line: None)
    assert outcome.figures["perf/loader_batches_per_s"]
    assert 0 <= outcome.figures["perf/loader_empty_fraction"] <= 1  # type: ignore[operator]
    marks = [name for name, *_ in recorder.marks if name.startswith("loader")]
    assert len(marks) >= 3 * 10
    assert all(re.fullmatch(MARK, name) for name in marks)
    synthetic = replace(config, model=Model(layers=1, width=16, heads=2), data=Data(batch=2, sequence=4))
    assert train(synthetic, lambda _line: None).figures["perf/loader_batches_per_s"] is None
