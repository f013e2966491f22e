from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from instrument.errors import InstrumentError  # noqa: E402
from instrument.memory import PinnedBudget  # noqa: E402
from instrument.pinned import PinnedCollator, PinnedRing  # noqa: E402
from instrument.streams import Event, Stream  # noqa: E402
from instrument.trees import map_tensors  # noqa: E402

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
KIB = 1024


class Later(Event):
    """A copy that is done when the test says so."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.done = False

    def query(self) -> bool:
        return self.done


class Memory:
    """Stands in for pinned memory and counts its allocations."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, size: int) -> torch.Tensor:
        self.sizes.append(size)
        return torch.empty(size, dtype=torch.uint8)


def ring_of(slots: int, budget: int = 1 << 30) -> tuple[PinnedRing, Memory]:
    memory = Memory()
    return PinnedRing(slots, PinnedBudget(budget), allocate=memory), memory


def batch(kib: int, value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"x": torch.full((kib * KIB // 4,), value)}


dtypes = st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8])
shapes = st.lists(st.integers(0, 5), max_size=4)


@given(st.lists(st.tuples(dtypes, shapes), max_size=4))
def test_values_are_kept(kinds: list[tuple[torch.dtype, list[int]]]) -> None:
    ring, _memory = ring_of(1)
    tree = [torch.randint(0, 2, shape).to(dtype) for dtype, shape in kinds]
    lease = ring.pin(tree)
    assert [tensor.dtype for tensor in lease.tree] == [tensor.dtype for tensor in tree]
    assert all(torch.equal(copied, tensor) for copied, tensor in zip(lease.tree, tree, strict=True))


def test_strides_match_to() -> None:
    ring, _memory = ring_of(1)
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    sliced, spread = torch.randn(6, 6)[::2, 1:], torch.randn(1).expand(5)
    lease = ring.pin([image, sliced, spread, torch.randn(2, 2).t()])
    for copied, tensor in zip(lease.tree, [image, sliced, spread], strict=False):
        assert copied.stride() == tensor.to(torch.float64).stride()
        assert torch.equal(copied, tensor)
    assert lease.tree[3].stride() == (1, 2)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=30), st.integers(1, 4))
def test_ring_size(sizes: list[int], slots: int) -> None:
    ring, memory = ring_of(slots)
    for size in sizes:
        ring.release(ring.pin(batch(size)), Event("cpu"))
    assert ring.budget.used_bytes == sum(memory.sizes)
    assert len(memory.sizes) == len({max(4, 1 << (size - 1).bit_length()) for size in sizes})


def test_buffers_are_reused_after_copy() -> None:
    ring, memory = ring_of(3)
    first_copy, second_copy = Later(), Later()
    first, second = ring.pin(batch(8, 1.0)), ring.pin(batch(8, 2.0))
    ring.release(first, first_copy)
    ring.release(second, second_copy)
    third = ring.pin(batch(8, 3.0))
    ring.release(third, Event("cpu"))
    assert len({lease.tree["x"].data_ptr() for lease in (first, second, third)}) == 3
    second_copy.done = True
    again = ring.pin(batch(8, 4.0))
    assert again.tree["x"].data_ptr() in {second.tree["x"].data_ptr(), third.tree["x"].data_ptr()}
    assert first.tree["x"][0] == 1.0
    assert len(memory.sizes) == 3


def test_full_ring_waits() -> None:
    ring, memory = ring_of(1)
    copy = Later()
    ring.release(ring.pin(batch(4, 1.0)), copy)
    pinned_batches: list[Any] = []
    thread = threading.Thread(target=lambda: pinned_batches.append(ring.pin(batch(4, 2.0))))
    thread.start()
    thread.join(0.02)
    assert thread.is_alive()
    assert pinned_batches == []
    copy.done = True
    thread.join()
    assert pinned_batches[0].tree["x"][0] == 2.0
    assert len(memory.sizes) == 1


def test_budget_too_small_for_one_batch() -> None:
    ring, memory = ring_of(3, 8 * KIB)
    with pytest.raises(InstrumentError, match="one batch takes 16 KiB, and 0 bytes of the budget of 8 KiB are in use"):
        ring.pin(batch(16))
    assert memory.sizes == []
    assert ring.pin(batch(8)).tree["x"].numel() == 2 * KIB


def test_budget_too_small_for_all_slots_warns_once() -> None:
    ring, memory = ring_of(3, 20 * KIB)
    copies = [Later(), Later()]
    for copy in copies:
        ring.release(ring.pin(batch(8)), copy)
    timer = threading.Timer(0.02, lambda: setattr(copies[0], "done", True))
    timer.start()
    with pytest.warns(RuntimeWarning, match="the budget of 20 KiB holds 2 of 3 batches of 8 KiB") as said:
        ring.pin(batch(8))
    timer.join()
    assert len(said) == 1
    assert sum(memory.sizes) == 16 * KIB


def test_unused_buffers_are_dropped() -> None:
    ring, memory = ring_of(2, 20 * KIB)
    ring.release(ring.pin(batch(4)))
    ring.release(ring.pin(batch(16)))
    ring.release(ring.pin(batch(8)))
    assert memory.sizes == [4 * KIB, 16 * KIB, 8 * KIB]
    assert ring.budget.used_bytes == 8 * KIB


class OwnTensor(torch.Tensor):
    """A subclass that pins itself and must keep its type."""

    fails = False

    def pin_memory(self) -> Any:  # type: ignore[override]
        if self.fails:
            raise RuntimeError("no memory")
        return self


def test_self_pinning_leaves_count_against_budget() -> None:
    ring, memory = ring_of(2, 8 * KIB)
    own = torch.zeros(KIB).as_subclass(OwnTensor)
    lease = ring.pin([own, "name", 3])
    assert lease.tree == [own, "name", 3]
    assert ring.budget.used_bytes == 4 * KIB
    ring.release(lease)
    assert ring.budget.used_bytes == 0
    assert memory.sizes == []


def test_failed_batch_frees_slot() -> None:
    ring, _memory = ring_of(1, 8 * KIB)
    own = torch.zeros(4).as_subclass(OwnTensor)
    own.fails = True
    for _again in range(3):
        with pytest.raises(RuntimeError, match="no memory"):
            ring.pin([own, torch.ones(4)])
    assert ring.pin(batch(4)).tree["x"][0] == 1.0


def test_sparse_tensors_are_not_pinned() -> None:
    ring, memory = ring_of(1)
    sparse = torch.eye(2).to_sparse()
    assert ring.pin([sparse]).tree[0] is sparse
    assert memory.sizes == []


def pad(samples: list[Any]) -> Any:
    return {"padded": torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)}


def test_collator_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    budget = PinnedBudget(1)
    samples = [{"x": torch.ones(2), "nested": [1, "a"]}, {"x": torch.zeros(2), "nested": [2, "b"]}]
    batch = PinnedCollator(budget)(samples)
    assert batch["x"].tolist() == [[1, 1], [0, 0]]
    assert batch["nested"][0].tolist() == [1, 2]
    assert PinnedCollator(budget, pad)([torch.ones(1), torch.ones(2)])["padded"].tolist() == [[1, 0], [1, 1]]
    assert budget.used_bytes == 0


@pytest.fixture
def as_if_pinned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace pinned memory by ordinary memory; return the requested sizes."""
    sizes: list[int] = []
    empty: Callable[..., Any] = torch.empty

    def made(*shape: Any, pin_memory: bool = False, **how: Any) -> Any:
        tensor = empty(*shape, **how)
        if pin_memory:
            sizes.append(tensor.nbytes)
        return tensor

    def pin(tensor: Any) -> Any:
        sizes.append(tensor.nbytes)
        return tensor.clone()

    monkeypatch.setattr(torch, "empty", made)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return sizes


def test_collator_counts_against_budget(as_if_pinned: list[int]) -> None:
    budget = PinnedBudget(4096)
    batch = PinnedCollator(budget, pad)([torch.ones(1), torch.ones(2)])
    assert batch["padded"].tolist() == [[1, 0], [1, 1]]
    assert as_if_pinned == [16]
    assert budget.used_bytes == 4096
    with pytest.raises(InstrumentError, match="4 KiB more exceed the budget of 4 KiB"):
        PinnedCollator(budget, pad)([torch.ones(1)])
    del batch
    assert budget.used_bytes == 0


samples_of_any_kind = st.sampled_from(
    [
        [torch.ones(2), torch.zeros(2)],
        [torch.ones(2), torch.zeros(2, dtype=torch.float64)],
        [torch.ones(2, requires_grad=True), torch.zeros(2)],
        [np.ones(3), np.zeros(3)],
        [1.5, 2.5],
        [{"x": (torch.ones(()), "a", 3)}, {"x": (torch.zeros(()), "b", 4)}],
    ]
)


@pytest.mark.parametrize("way", ["stand-in", pytest.param("gpu", marks=[pytest.mark.gpu, GPU])])
def test_collator_equals_default_collate(way: str, request: pytest.FixtureRequest) -> None:
    if way == "stand-in":
        request.getfixturevalue("as_if_pinned")

    @given(samples_of_any_kind)
    def check(samples: Any) -> None:
        ours, theirs = PinnedCollator(PinnedBudget(1 << 20))(samples), torch.utils.data.default_collate(samples)
        # repr shows values, types and nesting at once.
        detached = [map_tensors(tree, lambda tensor: tensor.detach()) for tree in (ours, theirs)]
        assert repr(detached[0]) == repr(detached[1])

    check()


@pytest.mark.gpu
@GPU
class TestOnTheGpu:
    def test_pinned_memory_is_reused(self) -> None:
        ring, stream = PinnedRing(2, PinnedBudget(1 << 20)), Stream.create("copy", "cuda")
        addresses = set()
        for value in range(20):
            lease = ring.pin(batch(64, float(value)))
            assert lease.tree["x"].is_pinned()
            addresses.add(lease.tree["x"].data_ptr())
            with stream:
                moved = lease.tree["x"].to("cuda", non_blocking=True)
            ring.release(lease, stream.record())
            stream.synchronize()
            assert moved.unique().tolist() == [value]
        assert len(addresses) <= 2
        assert ring.budget.used_bytes == len(addresses) * 64 * KIB

    def test_pinned_tensors_are_not_copied(self) -> None:
        ring = PinnedRing(2, PinnedBudget(1 << 20))
        tensor = torch.ones(4).pin_memory()
        assert ring.pin([tensor]).tree[0] is tensor
        assert ring.budget.used_bytes == 0
