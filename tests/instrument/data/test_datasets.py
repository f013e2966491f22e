from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from instrument.config.schema import Config, Data, Model, Training
from instrument.data import (
    Loader,
    Order,
    Position,
    Synthetic,
    _sample,
)
from instrument.errors import ConfigError
from instrument.prefetch import PrefetchLoader
from instrument.workload import Workload, call_model
from tests.instrument import loaders

# Python 3.12 says this of every fork under torch, whose threads it counts.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
MODEL = Model(name="transformer", features=3, vocabulary=10, width=16, heads=2)
DATA = Data(batch=2, sequence=4, samples=11, distinct_batches=0, workers=0)
CONFIG = Config(training=Training(seed=3), model=MODEL, data=DATA)


class Rows(torch.utils.data.Dataset[Any]):
    """Windows of four rows of an array in a file."""

    def __init__(self, path: Path) -> None:
        self.rows = torch.from_numpy(np.load(path))

    def __len__(self) -> int:
        return len(self.rows) // 4

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return _sample(self.rows[4 * index : 4 * index + 4], MODEL)


def build_loader(config: Config, **given: Any) -> Any:
    """Return the loader of a run on a user's data set, if the configuration names a file, or on synthetic data."""
    if config.data.path is None:
        return loaders.build_loader(config, **given)
    return Workload(config, torch.nn.Module, Rows(config.data.path), call_model, lambda _config: None).build_loader(
        **given
    )


def with_data(**changed: Any) -> Config:
    return replace(CONFIG, data=replace(DATA, **changed))


def equal(left: Any, right: Any) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def all_equal(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(map(equal, left, right))


@pytest.fixture
def array(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).normal(size=(47, 3)).astype(np.float32))
    return path


def test_synthetic_sample_depends_on_seed_and_index_alone() -> None:
    model = Model(features=3, vocabulary=10)
    samples = Synthetic(model, DATA, seed=1)
    torch.manual_seed(0)
    backwards = [samples[index] for index in reversed(range(len(samples)))][::-1]
    torch.manual_seed(1)
    assert all_equal(backwards, [Synthetic(model, DATA, seed=1)[index] for index in range(11)])
    assert not equal(samples[0], samples[1])
    assert not equal(samples[0], Synthetic(model, DATA, seed=2)[0])
    assert len(list(samples)) == 11
    with pytest.raises(IndexError, match="sample -1 of 11"):
        samples[-1]


def test_targets_depend_on_the_first_feature() -> None:
    inputs = torch.tensor([[-9.0], [-0.01], [0.01], [9.0], [float("inf")]])
    assert _sample(inputs, Model(vocabulary=10))["targets"].tolist() == [0, 4, 5, 9, 9]


def test_batch_stacks_its_samples() -> None:
    batches = list(build_loader(CONFIG, endless=False))
    samples = Synthetic(MODEL, DATA, seed=3)
    assert len(batches) == len(build_loader(CONFIG)) == 5
    for number, batch in enumerate(batches):
        for place in range(2):
            assert equal({name: values[place] for name, values in batch.items()}, samples[2 * number + place])


def ways(array: Path) -> dict[str, Config]:
    return {
        "plain": CONFIG,
        "preload": with_data(preload=True),
        "workers": with_data(workers=1),
        "file": with_data(path=array),
    }


@pytest.mark.parametrize("way", ["plain", "preload", "workers", "file"])
def test_loader_continues_at_a_position(way: str, array: Path) -> None:
    config = ways(array)[way]
    whole = list(islice(build_loader(config), 12))
    for done in (0, 1, 5, 7):
        loader = build_loader(config)
        assert all_equal(list(islice(loader, done)), whole[:done])
        assert loader.position == Position().after(done, 5)
        rest = build_loader(config, start=loader.position)
        assert all_equal(list(islice(rest, 12 - done)), whole[done:])


def test_workers_preloading_and_pinning_change_no_batch(array: Path) -> None:
    for path in (None, array):
        expected = list(islice(build_loader(with_data(path=path)), 12))
        for changed in ({"workers": 2}, {"workers": 1, "prefetch_factor": 3}, {"preload": path is None}):
            config = with_data(path=path, **changed)
            assert all_equal(list(islice(build_loader(config, pinned=True), 12)), expected)
    gc.collect()


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_continue_after_a_break(persistent: bool, array: Path) -> None:
    config = with_data(path=array, workers=1, persistent_workers=persistent)
    expected = list(islice(build_loader(with_data(path=array)), 15))
    loader = build_loader(config, endless=False)
    first = list(loader)
    assert loader.position == Position(1, 0)
    left = list(islice(loader, 2))
    assert loader.position == Position(1, 2)
    rest = list(loader)
    assert all_equal(first + left + rest, expected[:10])
    loader.seek(Position(2, 0))
    assert all_equal(list(loader), expected[10:])


@pytest.mark.parametrize("changed", [{}, {"workers": 1}])
def test_distinct_batches_repeat(changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    anew = list(islice(build_loader(CONFIG), 3))
    loader = build_loader(with_data(distinct_batches=3, **changed))
    monkeypatch.setattr(Synthetic, "__getitem__", lambda _self, _index: pytest.fail("a sample was made again"))
    batches = list(islice(loader, 7))
    assert all_equal(batches[:3], anew)
    assert not equal(batches[0], batches[1])
    # An epoch has 5 batches, so the second epoch begins with the first batch again.
    assert [id(batch) for batch in batches] == [id(batches[number]) for number in (0, 1, 2, 0, 1, 0, 1)]


def test_distinct_batches_depend_on_seed_and_rank() -> None:
    config = with_data(distinct_batches=2, samples=40)
    again, other = build_loader(config), build_loader(replace(config, training=Training(seed=4)))
    ranks = [list(islice(build_loader(config, rank=rank, world=2), 2)) for rank in range(2)]
    assert all_equal(list(islice(build_loader(config), 2)), list(islice(again, 2)))
    assert not equal(next(iter(again)), next(iter(other)))
    assert len({values["inputs"].sum().item() for batches in ranks for values in batches}) == 4


def test_distinct_batches_respect_the_pinned_budget() -> None:
    """One batch takes two buffers of 4 KiB."""
    for pinned in (False, True):
        loader = build_loader(with_data(distinct_batches=5, pinned_budget=3 * 8192 - 1), pinned=pinned)
        assert len({id(batch) for batch in islice(loader, 10)}) == 2
    tiny = build_loader(with_data(distinct_batches=5, pinned_budget=1))
    assert len({id(batch) for batch in islice(tiny, 10)}) == 1


def test_loader_of_a_run_in_epochs_ends() -> None:
    assert len(list(build_loader(replace(CONFIG, training=Training(epochs=2))))) == 5
    assert len(list(islice(build_loader(CONFIG), 8))) == 8


@pytest.mark.parametrize("path", [False, True])
def test_ranks_have_disjoint_samples(path: bool, array: Path) -> None:
    config = with_data(path=array if path else None)
    ranks = [list(build_loader(config, rank=rank, world=2, endless=False)) for rank in range(2)]
    alone = list(build_loader(with_data(path=array if path else None, batch=4), endless=False))
    together = [
        {name: torch.cat([left[name], right[name]]) for name in left} for left, right in zip(*ranks, strict=True)
    ]
    assert all_equal(together, alone)


@pytest.mark.parametrize("workers", [0, 1])
def test_global_generator_does_not_change(workers: int, array: Path) -> None:
    before = torch.get_rng_state()
    list(build_loader(with_data(path=array, workers=workers), endless=False))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("depth", [1, 3])
def test_position_of_a_prefetched_loader_is_the_training_position(depth: int) -> None:
    expected = list(islice(build_loader(CONFIG), 12))
    loader = PrefetchLoader(build_loader(CONFIG), "cpu", depth=depth)
    assert all_equal(list(islice(loader, 7)), expected[:7])
    assert loader.position == Position(1, 2)
    assert all_equal(list(islice(loader, 5)), expected[7:])


def flaky(indices: Iterator[list[int]]) -> Iterator[int]:
    def one(indices: list[int]) -> int:
        if indices[0] == 2:
            raise OSError("for a moment")
        return indices[0]

    return map(one, indices)


def test_failed_batch_is_counted_and_skipped() -> None:
    loader = Loader(Order(5, 1), flaky, endless=False)
    batches = iter(loader)
    assert [next(batches), next(batches)] == [0, 1]
    with pytest.raises(OSError, match="for a moment"):
        next(batches)
    assert loader.position == Position(0, 3)
    assert list(batches) == [3, 4]
    assert loader.position == Position(1, 0)


@given(st.integers(-2, 7), st.integers(-2, 7))
def test_impossible_position_is_one_line(epoch: int, batch: int) -> None:
    if epoch >= 0 and 0 <= batch < 5:
        assert build_loader(CONFIG, start=Position(epoch, batch)).position == Position(epoch, batch)
        return
    with pytest.raises(ConfigError, match="an epoch has batches 0 to 4 here"):
        build_loader(CONFIG, start=Position(epoch, batch))


def test_own_data_is_not_preloaded(array: Path) -> None:
    with pytest.raises(ConfigError, match="a data set of your own can keep its samples itself"):
        with_data(path=array, preload=True)


def test_exceeded_pinned_budget_is_a_one_line_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(
        ConfigError, match=r"preload: 5 batches take 40 KiB of pinned memory, and the budget is 39.1 KiB"
    ):
        build_loader(with_data(preload=True, pinned_budget=40_000), pinned=True)
    with pytest.raises(ConfigError, match=r"workers: 6 batches loaded ahead take 48 KiB of pinned memory"):
        build_loader(with_data(workers=2, prefetch_factor=3, pinned_budget=40_000), pinned=True)


@pytest.mark.gpu
class TestOnTheGpu:
    @pytest.mark.parametrize("changed", [{}, {"preload": True}, {"workers": 1}])
    def test_batches_are_made_in_pinned_memory(self, changed: dict[str, Any]) -> None:
        expected = list(islice(build_loader(CONFIG), 12))
        batches = list(islice(build_loader(with_data(**changed), pinned=True), 12))
        assert all(tensor.is_pinned() for batch in batches for tensor in batch.values())
        assert all_equal(batches, expected)

    def test_preloaded_batches_are_pinned_once(self) -> None:
        host = build_loader(with_data(preload=True), pinned=True)
        loader = PrefetchLoader(host, "cuda", depth=2)
        expected = list(islice(build_loader(CONFIG), 12))
        got = [{name: values.cpu() for name, values in batch.items()} for batch in islice(loader, 12)]
        assert all_equal(got, expected)
        loader.close()
