from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from instrument import pinned  # noqa: E402
from instrument.data.host_memory import available_bytes, in_words  # noqa: E402
from instrument.errors import ConfigError, InstrumentError  # noqa: E402
from instrument.pinned import PinnedBudget, PinnedRing  # noqa: E402
from instrument.streams import Event, Stream  # noqa: E402

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
    """Stands in for pinned memory and counts how often it is asked for."""

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


def test_a_budget_is_never_passed() -> None:
    budget = PinnedBudget(100)
    budget.take(60)
    assert not budget.try_take(41)
    with pytest.raises(InstrumentError, match="41 bytes more would pass the budget of 100 bytes, of which 60 bytes"):
        budget.take(41)
    assert budget.used_bytes == 60
    budget.give(60)
    budget.take(100)
    assert budget.used_bytes == 100


def test_a_budget_of_nothing_is_one_line() -> None:
    with pytest.raises(ConfigError, match="0 bytes hold nothing"):
        PinnedBudget(0)


def test_a_budget_beyond_the_machines_memory_is_said_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "available_bytes", lambda: 50)
    budget = PinnedBudget(100)
    with pytest.raises(
        InstrumentError, match="60 bytes more fit the budget of 100 bytes, but the machine has 50 bytes"
    ):
        budget.take(60)
    assert budget.used_bytes == 0


dtypes = st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64, torch.uint8])
shapes = st.lists(st.integers(0, 5), max_size=4)


@given(st.lists(st.tuples(dtypes, shapes), max_size=4))
def test_any_values_survive(kinds: list[tuple[torch.dtype, list[int]]]) -> None:
    ring, _memory = ring_of(1)
    tree = [torch.randint(0, 2, shape).to(dtype) for dtype, shape in kinds]
    lease = ring.pin(tree)
    assert [tensor.dtype for tensor in lease.tree] == [tensor.dtype for tensor in tree]
    assert all(torch.equal(copied, tensor) for copied, tensor in zip(lease.tree, tree, strict=True))


def test_strides_are_those_that_to_would_give() -> None:
    ring, _memory = ring_of(1)
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    sliced, spread = torch.randn(6, 6)[::2, 1:], torch.randn(1).expand(5)
    lease = ring.pin([image, sliced, spread, torch.randn(2, 2).t()])
    for copied, tensor in zip(lease.tree, [image, sliced, spread], strict=False):
        assert copied.stride() == tensor.to(torch.float64).stride()
        assert torch.equal(copied, tensor)
    assert lease.tree[3].stride() == (1, 2)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=30), st.integers(1, 4))
def test_a_ring_holds_no_more_than_its_slots_of_each_size(sizes: list[int], slots: int) -> None:
    ring, memory = ring_of(slots)
    for size in sizes:
        ring.release(ring.pin(batch(size)), Event("cpu"))
    assert ring.budget.used_bytes == sum(memory.sizes)
    assert len(memory.sizes) == len({max(4, 1 << (size - 1).bit_length()) for size in sizes})


def test_buffers_are_used_again_and_not_before_their_copy_is_done() -> None:
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


def test_a_full_ring_waits_on_the_thread_that_asks() -> None:
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


def test_a_batch_that_the_budget_does_not_hold_is_one_line() -> None:
    ring, memory = ring_of(3, 8 * KIB)
    with pytest.raises(InstrumentError, match="one batch takes 16 KiB, and 0 bytes of the budget of 8 KiB are in use"):
        ring.pin(batch(16))
    assert memory.sizes == []
    assert ring.pin(batch(8)).tree["x"].numel() == 2 * KIB


def test_a_budget_for_fewer_batches_than_slots_is_said_once_and_works() -> None:
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


def test_buffers_that_fit_no_longer_make_room() -> None:
    ring, memory = ring_of(2, 20 * KIB)
    ring.release(ring.pin(batch(4)))
    ring.release(ring.pin(batch(16)))
    ring.release(ring.pin(batch(8)))
    assert memory.sizes == [4 * KIB, 16 * KIB, 8 * KIB]
    assert ring.budget.used_bytes == 8 * KIB


class OwnTensor(torch.Tensor):
    """A subclass, which must stay one: pinned by itself."""

    fails = False

    def pin_memory(self) -> Any:  # type: ignore[override]
        if self.fails:
            raise RuntimeError("no memory")
        return self


def test_what_pins_itself_is_counted_as_long_as_it_is_held() -> None:
    ring, memory = ring_of(2, 8 * KIB)
    own = torch.zeros(KIB).as_subclass(OwnTensor)
    lease = ring.pin([own, "name", 3])
    assert lease.tree == [own, "name", 3]
    assert ring.budget.used_bytes == 4 * KIB
    ring.release(lease)
    assert ring.budget.used_bytes == 0
    assert memory.sizes == []


def test_a_batch_that_fails_leaves_its_slot_free() -> None:
    ring, _memory = ring_of(1, 8 * KIB)
    own = torch.zeros(4).as_subclass(OwnTensor)
    own.fails = True
    for _again in range(3):
        with pytest.raises(RuntimeError, match="no memory"):
            ring.pin([own, torch.ones(4)])
    assert ring.pin(batch(4)).tree["x"][0] == 1.0


def test_sparse_tensors_stay_as_they_are() -> None:
    ring, memory = ring_of(1)
    sparse = torch.eye(2).to_sparse()
    assert ring.pin([sparse]).tree[0] is sparse
    assert memory.sizes == []


def test_available_memory_is_that_of_the_machine_or_of_the_container(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 400 kB\nMemAvailable: 300 kB\nHugePages_Total: 0\n")
    assert available_bytes(meminfo, tmp_path) == 300 * KIB
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("0\n")
    assert available_bytes(meminfo, tmp_path) == 300 * KIB
    (tmp_path / "memory.max").write_text(f"{200 * KIB}\n")
    (tmp_path / "memory.current").write_text(f"{150 * KIB}\n")
    (tmp_path / "memory.stat").write_text(f"anon 1\nfile {50 * KIB}\n")
    assert available_bytes(meminfo, tmp_path) == 100 * KIB
    assert available_bytes(tmp_path / "none", tmp_path / "none") is None


def test_sizes_are_said_in_words() -> None:
    assert [in_words(size) for size in (0, 1023, 1 << 20, 3 << 29, 1 << 50)] == [
        "0 bytes",
        "1023 bytes",
        "1 MiB",
        "1.5 GiB",
        "1024 TiB",
    ]


@pytest.mark.gpu
@GPU
class TestOnTheGpu:
    def test_batches_go_through_pinned_memory_that_is_used_again(self) -> None:
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

    def test_what_is_pinned_already_is_not_copied(self) -> None:
        ring = PinnedRing(2, PinnedBudget(1 << 20))
        tensor = torch.ones(4).pin_memory()
        assert ring.pin([tensor]).tree[0] is tensor
        assert ring.budget.used_bytes == 0
