"""Batches in pinned memory: the same values, strides and kinds, and nothing that is pinned already."""

from __future__ import annotations

import pytest
import torch

from instrument.pinned import bytes_to_pin, pin
from instrument.streams import Stream


class Moving:
    """An object that moves itself."""

    def __init__(self, nbytes: int = 100) -> None:
        self.nbytes, self.pinned = nbytes, False

    def pin_memory(self) -> Moving:
        made = Moving(self.nbytes)
        made.pinned = True
        return made

    def to(self, *_args: object, **_options: object) -> Moving:
        return self


def test_sparse_empty_and_other_leaves_stay() -> None:
    sparse, empty = torch.eye(2).to_sparse(), torch.empty(0)
    tree = {"sparse": sparse, "empty": empty, "label": "a"}
    pinned = pin(tree)
    assert pinned is tree
    assert bytes_to_pin(tree) == 0


def test_objects_pin_themselves_and_count_by_powers_of_two() -> None:
    (pinned,) = pin([Moving()])
    assert pinned.pinned
    assert bytes_to_pin([torch.zeros(2000), Moving(5000)]) == 8192 + 8192


@pytest.mark.gpu
class TestOnTheGpu:
    def test_values_and_strides_are_kept(self) -> None:
        image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
        tree = [image, torch.arange(6), torch.randn(3, requires_grad=True), torch.randn(4, 6)[:, ::2]]
        for before, after in zip(tree, pin(tree), strict=True):
            assert after.is_pinned()
            assert torch.equal(before, after)
        assert pin(tree)[0].stride() == image.stride()

    def test_pinned_memory_is_reused(self) -> None:
        stream, addresses = Stream.create("copy", "cuda"), set()
        for value in range(20):
            pinned = pin(torch.full((16384,), float(value)))
            addresses.add(pinned.data_ptr())
            with stream:
                moved = pinned.to("cuda", non_blocking=True)
            stream.synchronize()
            assert moved.unique().tolist() == [value]
            del pinned
        assert len(addresses) <= 2

    def test_pinned_tensors_are_not_copied(self) -> None:
        tensor = torch.ones(4).pin_memory()
        assert pin([tensor])[0] is tensor
        assert bytes_to_pin([tensor]) == 0
