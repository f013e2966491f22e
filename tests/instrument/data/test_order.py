from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from instrument.data import Order, Position, generator_for
from instrument.errors import ConfigError

sizes = {"batch": st.integers(1, 5), "world": st.integers(1, 3), "extra": st.integers(0, 20), "shuffle": st.booleans()}


@given(**sizes, epoch=st.integers(0, 3), seed=st.integers(-9, 9))
def test_ranks_divide_each_epoch(batch: int, world: int, extra: int, shuffle: bool, epoch: int, seed: int) -> None:
    samples = batch * world + extra
    ranks = [Order(samples, batch, rank, world, seed, shuffle) for rank in range(world)]
    taken = [list(order.epoch(Position(epoch))) for order in ranks]
    assert {len(batches) for batches in taken} == {samples // (batch * world)}
    assert {len(indices) for batches in taken for indices in batches} == {batch}
    indices = [index for batches in taken for indices in batches for index in indices]
    assert len(set(indices)) == len(indices)
    assert set(indices) <= set(range(samples))


@given(**sizes, data=st.data())
def test_epoch_continues_at_any_position(
    batch: int, world: int, extra: int, shuffle: bool, data: st.DataObject
) -> None:
    order = Order(batch * world + extra, batch, 0, world, 3, shuffle)
    start = data.draw(st.integers(0, order.batches))
    assert list(order.epoch(Position(2, start))) == list(order.epoch(Position(2)))[start:]


def test_shuffle_depends_on_seed_and_epoch() -> None:
    def epoch(seed: int, number: int) -> list[list[int]]:
        return list(Order(40, 4, seed=seed, shuffle=True).epoch(Position(number)))

    assert epoch(1, 0) == epoch(1, 0)
    assert epoch(1, 0) != epoch(1, 1)
    assert epoch(1, 0) != epoch(2, 0)
    assert list(Order(8, 4).epoch(Position(5))) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@given(st.integers(0, 5), st.integers(1, 9), st.data())
def test_positions_continue_over_epochs(epoch: int, per_epoch: int, data: st.DataObject) -> None:
    start = Position(epoch, data.draw(st.integers(0, per_epoch - 1)))
    steps, walked = data.draw(st.integers(0, 30)), start
    for _ in range(steps):
        last = walked.batch == per_epoch - 1
        walked = Position(walked.epoch + 1, 0) if last else Position(walked.epoch, walked.batch + 1)
    assert start.after(steps, per_epoch) == walked


def test_too_few_samples_are_one_line() -> None:
    with pytest.raises(ConfigError, match="batch 8 is more than all 7 samples"):
        Order(7, 8)
    with pytest.raises(ConfigError, match="batch 4 on each of 2 GPUs is more than all 7 samples"):
        Order(7, 4, 0, 2)
    with pytest.raises(ConfigError, match="invalid rank 2 of 2"):
        Order(70, 4, 2, 2)


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**40))
def test_each_seed_and_index_has_its_own_numbers(seed: int, index: int) -> None:
    def draw(seed: int, index: int) -> int:
        return int(torch.randint(2**62, (), generator=generator_for(seed, index)))

    assert draw(seed, index) == draw(seed, index)
    assert len({draw(seed, index), draw(seed, index + 1), draw(seed + 1, index)}) == 3
