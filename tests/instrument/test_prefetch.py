from __future__ import annotations

import copy
import gc
import inspect
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from instrument import prefetch
from instrument.errors import ConfigError, InstrumentError
from instrument.prefetch import Copier, PrefetchLoader
from instrument.streams import Event, Streams
from instrument.trees import map_tensors, tensors
from tests.instrument.gpu import no_synchronization
from tests.instrument.test_ranges import Recorder

# Python 3.12 says this of every fork under torch, whose threads it counts.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


class BadBatchError(Exception):
    pass


def pinned_bytes_of_torch() -> int:
    return int(torch.cuda.host_memory_stats()["allocated_bytes.current"])


@pytest.fixture(autouse=True)
def copies_in_place_of_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        monkeypatch.setattr(prefetch, "pin", lambda tree: map_tensors(tree, torch.Tensor.clone))


class CopyingCopier(Copier):
    """Stands in for a GPU: it has its own copy of a batch after `copy_leaf`."""

    def copy_leaf(self, leaf: Any, target: torch.Tensor | None = None) -> Any:
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def copier_of(loader: PrefetchLoader, kind: type[Copier] = CopyingCopier) -> Copier:
    timing = loader.on_copy is not None
    slots = loader.depth + 2
    return kind(loader.loader, loader.device, loader.streams, slots, loader.budget_bytes, timing=timing)


def prefetched(loader: PrefetchLoader) -> Iterator[Any]:
    return prefetch._PrefetchIterator(loader, copier_of(loader))


def in_host_memory(loader: Iterable[Any], depth: int = 1, **how: Any) -> PrefetchLoader:
    return PrefetchLoader(loader, "cpu", depth=depth, **how)


def ahead(loader: Iterable[Any], depth: int = 1, **how: Any) -> Iterator[Any]:
    """Iterate as with a GPU: a thread, reused buffers, copies ahead."""
    return prefetched(in_host_memory(loader, depth, **how))


def plain(loader: Iterable[Any], depth: int = 1, **how: Any) -> Iterator[Any]:
    return iter(PrefetchLoader(loader, "cpu", depth=depth, **how))


WAYS = [plain, ahead]


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "instrument-prefetch"]


@dataclass
class Batch:
    x: Any
    name: str


def numbered(number: int) -> dict[str, Any]:
    return {
        "x": torch.full((number % 7, 3), float(number)),
        "nested": [Batch(torch.tensor(number), f"batch {number}"), (None, torch.eye(2).to_sparse())],
    }


def values(tree: Any) -> Any:
    return map_tensors(tree, lambda tensor: tensor.to_dense().tolist())


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index)), "index": index}


@pytest.mark.parametrize("way", WAYS)
@given(numbers=st.lists(st.integers(0, 99), max_size=12), depth=st.integers(1, 5))
def test_values_and_order(way: Any, numbers: list[int], depth: int) -> None:
    batches = list(way((numbered(number) for number in numbers), depth))
    assert [values(batch) for batch in batches] == [values(numbered(number)) for number in numbers]
    assert threads() == []


@pytest.mark.parametrize("way", WAYS)
@given(good=st.integers(0, 6), depth=st.integers(1, 4))
def test_exception_after_good_batches(way: Any, good: int, depth: int) -> None:
    def loader() -> Iterator[Any]:
        yield from (torch.tensor(number) for number in range(good))
        raise BadBatchError(f"after {good}")

    batches, got = way(loader(), depth), []
    with pytest.raises(BadBatchError, match=f"after {good}"):
        for batch in batches:
            got.append(batch.item())
    assert got == list(range(good))
    assert threads() == []


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=10)  # each looks at every object that Python holds
@given(taken=st.integers(0, 6), depth=st.integers(1, 4))
def test_abandoned_iteration_leaves_no_thread(way: Any, taken: int, depth: int) -> None:
    batches = way([torch.tensor(number) for number in range(6)], depth)
    assert [next(batches).item() for _ in range(taken)] == list(range(taken))
    del batches
    gc.collect()
    assert threads() == []


def test_many_iterations_live_together() -> None:
    made = in_host_memory([torch.tensor(number) for number in range(9)])
    live = [prefetched(made) for _ in range(6)]
    got: list[list[int]] = []
    thread = threading.Thread(
        target=lambda: got.extend([next(each).item() for each in live] for _ in range(9)), daemon=True
    )
    thread.start()
    thread.join(20)
    assert got == [[number] * 6 for number in range(9)]


@pytest.mark.parametrize("way", WAYS)
def test_closed_iteration_has_ended(way: Any) -> None:
    made = in_host_memory(iter([torch.tensor(number) for number in range(9)]))
    batches = prefetched(made) if way is ahead else iter(made)
    assert next(batches).item() == 0
    made.close()
    assert list(batches) == []


def test_next_iteration_waits_for_an_abandoned_one_inside_a_loader_with_a_state() -> None:
    inside, release = threading.Event(), threading.Event()

    class Slow:
        position = 0

        def __iter__(self) -> Iterator[Any]:
            for number in range(self.position, 9):
                if number == 1:
                    inside.set()
                    release.wait()
                self.position = number + 1
                yield torch.tensor(number)

        def state_dict(self) -> dict[str, int]:
            return {"position": self.position}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.position = state["position"]

    made = in_host_memory(Slow())
    batches = prefetched(made)
    assert next(batches).item() == 0
    inside.wait()
    del batches
    gc.collect()
    threading.Timer(0.3, release.set).start()
    rest = [batch.item() for batch in made]
    assert rest == list(range(int(rest[0]), 9))  # two iterations at once would read some batches twice


@pytest.mark.parametrize("way", WAYS)
def test_loader_may_reuse_memory(way: Any) -> None:
    memory = torch.zeros(4)

    def loader() -> Iterator[torch.Tensor]:
        for number in range(6):
            memory.fill_(number)
            yield memory

    assert [batch[0].item() for batch in way(loader())] == list(range(6))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader_with_seed(way: Any, workers: int) -> None:
    def loader() -> DataLoader[Any]:
        torch.manual_seed(7)
        return DataLoader(Numbers(), batch_size=3, shuffle=True, num_workers=workers)

    expected = [values(batch) for batch in loader()]
    after = torch.rand(1)
    assert [values(batch) for batch in way(loader(), 2)] == expected
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize("way", WAYS)
def test_worker_exception_then_continues(way: Any) -> None:
    class Broken(Numbers):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                raise BadBatchError("broken sample")
            return super().__getitem__(index)

    batches = way(DataLoader(Broken(), batch_size=2, num_workers=1))
    assert [next(batches)["index"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(BadBatchError, match="broken sample"):
        next(batches)
    assert [batch["index"].tolist() for batch in batches] == [[6, 7], [8, 9]]


def test_loader_attributes() -> None:
    loader = DataLoader(Numbers(), batch_size=3)
    made = PrefetchLoader(loader, "cpu")
    assert len(made) == 4
    assert made.dataset is loader.dataset
    assert made.batch_size == 3
    assert copy.copy(made).loader is loader
    assert len(list(made)) == len(list(made)) == 4
    with pytest.raises(TypeError):
        len(PrefetchLoader(iter([]), "cpu"))
    with pytest.raises(AttributeError):
        _ = made.nothing_like_that


def test_invalid_depth_and_batch_beyond_budget() -> None:
    with pytest.raises(ConfigError, match="invalid depth 0"):
        PrefetchLoader([], "cpu", depth=0)
    with pytest.raises(InstrumentError, match="one batch takes 16 KiB"):
        next(prefetched(PrefetchLoader([torch.zeros(4096)], "cpu", budget_bytes=4096)))


class Later(Event):
    """A copy that is done when the test says so."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.done = False

    def query(self) -> bool:
        return self.done


@pytest.mark.parametrize(("budget", "room"), [(1 << 20, 3), (8192, 2)])
def test_batches_wait_for_earlier_copies(budget: int, room: int) -> None:
    copies: list[Later] = []

    class Slow(CopyingCopier):
        def _issue_copy(self, tree: Any, state: Any) -> Any:
            copies.append(Later())
            return replace(super()._issue_copy(tree, state), ready=copies[-1])

    made = in_host_memory([])
    made.budget_bytes = budget
    copier = copier_of(made, Slow)
    batch = prefetch.HostBatch(torch.zeros(1024), None)
    for _ in range(room):
        copier.copy(batch)
    thread = threading.Thread(target=copier.copy, args=(batch,), daemon=True)
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    copies[0].done = True
    thread.join(20)
    assert not thread.is_alive()
    assert len(copies) == room + 1


def test_failed_copy_frees_buffers() -> None:
    class Failing(CopyingCopier):
        def copy_leaf(self, leaf: Any, target: torch.Tensor | None = None) -> Any:
            raise BadBatchError("out of memory")

    made = PrefetchLoader([torch.zeros(1024) for _ in range(9)], "cpu", budget_bytes=4096)
    batches = prefetch._PrefetchIterator(made, copier_of(made, Failing))
    for _again in range(9):
        with pytest.raises(BadBatchError, match="out of memory"):
            next(batches)
    assert list(batches) == []


def loader_with(loader: Any, way: Any, monkeypatch: pytest.MonkeyPatch) -> PrefetchLoader:
    made = PrefetchLoader(loader, "cpu", depth=2)
    if way is ahead:
        monkeypatch.setattr(prefetch, "_DirectIterator", prefetched)
    return made


class Counting:
    """A stateful loader; its state is an object that later batches change."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.at, self.fails_at = {"batch": 0, "seen": list[int]()}, fails_at

    def state_dict(self) -> dict[str, Any]:
        if self.at["batch"] == self.fails_at:
            raise RuntimeError("workers are busy")
        return self.at

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = {"batch": state["batch"], "seen": list(state["seen"])}

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.at["batch"] < 10:
            self.at["batch"] += 1
            self.at["seen"].append(self.at["batch"])
            yield torch.tensor(self.at["batch"] - 1)
        self.at = {"batch": 0, "seen": []}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("taken", [0, 1, 3, 9])
def test_state_of_last_batch(way: Any, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loader_with(Counting(), way, monkeypatch)
    batches = iter(made)
    assert [next(batches).item() for _ in range(taken)] == list(range(taken))
    state = copy.deepcopy(made.state_dict())
    assert state == {"batch": taken, "seen": list(range(1, taken + 1))}
    rest = [batch.item() for batch in batches]
    resumed = loader_with(Counting(), way, monkeypatch)
    resumed.load_state_dict(state)
    assert [batch.item() for batch in resumed] == rest == list(range(taken, 10))
    assert made.state_dict() == resumed.state_dict() == {"batch": 0, "seen": []}


@pytest.mark.parametrize("way", WAYS)
def test_load_state_dict_drops_batches_ahead(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = loader_with(Counting(), way, monkeypatch)
    batches = iter(made)
    state = copy.deepcopy(made.state_dict())
    assert [next(batches).item() for _ in range(3)] == [0, 1, 2]
    made.load_state_dict(state)
    assert made.state_dict()["batch"] == 0
    assert [batch.item() for batch in made] == list(range(10))


def test_state_error_is_raised_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    made = loader_with(Counting(fails_at=3), ahead, monkeypatch)
    batches = iter(made)
    assert [next(batches).item() for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InstrumentError, match=r"state of Counting .*RuntimeError: workers are busy; iterate over"):
        made.state_dict()
    assert next(batches).item() == 3
    assert made.state_dict()["batch"] == 4


def test_loader_without_state() -> None:
    made = PrefetchLoader([torch.zeros(1)], "cpu")
    for name in ("state_dict", "load_state_dict"):
        assert not hasattr(made, name)
        assert inspect.getattr_static(made, name, None) is None  # as Lightning looks for it


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 asks torch for it
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_stateful_loader_resumes(way: Any, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> PrefetchLoader:
        torch.manual_seed(7)
        inner = stateful.StatefulDataLoader(list(range(20)), batch_size=2, shuffle=True, num_workers=workers)
        return loader_with(inner, way, monkeypatch)

    expected = [batch.tolist() for batch in loader()]
    made = loader()
    batches = iter(made)
    assert [next(batches).tolist() for _ in range(3)] == expected[:3]
    state = made.state_dict()
    made.close()
    resumed = loader()
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == expected[3:]


@pytest.mark.parametrize("way", WAYS)
def test_ranges_on_their_threads(way: Any, recorder: Recorder) -> None:
    assert len(list(way([torch.zeros(1), torch.zeros(1)]))) == 2
    main = threading.main_thread().ident
    pushed = [(name, thread == main) for what, name, thread in recorder.log if what == "push"]
    assert (pushed.count(("data_load", True)), pushed.count(("h2d", way is plain))) == (3, 2)


def test_on_copy() -> None:
    told: list[tuple[float, int]] = []

    def on_copy(start: Event, end: Event, nbytes: int) -> None:
        told.append((end.milliseconds_since(start), nbytes))

    batches = [{"x": torch.zeros(3), "y": [torch.zeros(2, dtype=torch.int64)]}] * 4
    assert len(list(ahead(batches, on_copy=on_copy))) == 4
    assert [nbytes for _time, nbytes in told] == [28] * 4
    assert all(time >= 0 for time, _nbytes in told)


class Moves:
    """A batch that moves itself, with or without a call of `record_stream`."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def pin_memory(self) -> Moves:
        return type(self)(self.x.pin_memory())

    def to(self, device: Any, non_blocking: bool = False) -> Moves:
        return type(self)(self.x.to(device, non_blocking=non_blocking))


class Records(Moves):
    def record_stream(self, stream: Any) -> None:
        self.x.record_stream(stream)


# Tests of other modules may have used accelerate in this process.
@pytest.mark.filterwarnings("ignore:accelerate has not prepared")
@pytest.mark.gpu
class TestOnTheGpu:
    LONG = 50_000_000

    @pytest.mark.parametrize("depth", [1, 2, 4])
    @pytest.mark.parametrize(
        "how", [{}, {"pin_memory": True}, {"num_workers": 1}, {"num_workers": 1, "pin_memory": True}]
    )
    def test_values_are_those_of_the_plain_loader(self, depth: int, how: dict[str, Any]) -> None:
        loader = DataLoader(Numbers(), batch_size=3, **how)
        got = list(PrefetchLoader(loader, "cuda", depth=depth))
        assert all(tensor.is_cuda for tensor in tensors(got))
        assert [values(batch) for batch in got] == [values(batch) for batch in loader]
        assert threads() == []

    def test_state_of_last_batch(self) -> None:
        made = PrefetchLoader(Counting(), "cuda", depth=2)
        batches = iter(made)
        assert [next(batches).item() for _ in range(3)] == [0, 1, 2]
        torch.cuda.synchronize()
        state = made.state_dict()
        assert state["batch"] == 3
        made.load_state_dict(state)
        assert [batch.item() for batch in made] == list(range(3, 10))

    def test_every_kind_of_leaf_arrives(self) -> None:
        tree = {"plain": torch.ones(3), "own": Moves(torch.ones(3)), "tells": Records(torch.ones(3))}
        tree |= {"sparse": torch.eye(2).to_sparse(), "there": torch.ones(3, device="cuda"), "none": None}
        image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
        (got,) = PrefetchLoader([tree | {"image": image}], "cuda")
        for leaf in (got["plain"], got["own"].x, got["tells"].x, got["there"]):
            assert leaf.is_cuda
            assert leaf.tolist() == [1, 1, 1]
        assert torch.equal(got["sparse"].to_dense().cpu(), torch.eye(2))
        assert torch.equal(got["image"].cpu(), image)
        assert got["image"].stride() == image.stride()
        assert got["none"] is None

    def test_slow_copy_stream_keeps_values(self) -> None:
        copying, computing = Streams("cuda", copy=0, compute=0)
        loader = [torch.full((1 << 20,), float(number)) for number in range(8)]
        totals = []
        with computing:
            for batch in PrefetchLoader(loader, "cuda", depth=2, stream=copying):
                totals.append(batch.sum())
                del batch  # without a guard, the next batch may get its memory
                with copying:
                    torch.cuda._sleep(self.LONG)
        torch.cuda.synchronize()  # the sums are on a stream that reading them does not wait for
        assert [total.item() for total in totals] == [number * (1 << 20) for number in range(8)]

    def test_slow_consumer_keeps_its_memory(self) -> None:
        loader = [torch.full((1 << 20,), float(number)) for number in range(8)]
        totals = []
        for batch in PrefetchLoader(loader, "cuda"):
            torch.cuda._sleep(self.LONG)
            totals.append(batch.sum())
            del batch
        assert [total.item() for total in totals] == [number * (1 << 20) for number in range(8)]

    def test_steady_state_neither_waits_nor_allocates(self) -> None:
        loader = [torch.randn(256, 256) for _ in range(100)]
        made = PrefetchLoader(loader, "cuda", depth=2)
        batches = iter(made)
        next(batches).sum()
        torch.cuda._sleep(4 * self.LONG)  # as far ahead of the device as the host will ever be
        for _ in range(40):
            next(batches).sum()
        torch.cuda.synchronize()
        segments, pinned = torch.cuda.memory_stats()["segment.all.allocated"], pinned_bytes_of_torch()
        with no_synchronization():
            for _ in range(30):
                next(batches).sum()
        assert pinned_bytes_of_torch() == pinned
        assert torch.cuda.memory_stats()["segment.all.allocated"] == segments
        made.close()
        assert threads() == []

    def test_copies_are_timed_without_a_wait(self) -> None:
        told: list[tuple[Event, Event, int]] = []
        loader = [torch.zeros(1 << 20) for _ in range(4)]
        list(PrefetchLoader(loader, "cuda", on_copy=lambda *copy: told.append(copy)))
        torch.cuda.synchronize()
        assert [nbytes for _start, _end, nbytes in told] == [4 << 20] * 4
        assert all(end.milliseconds_since(start) > 0 for start, end, _nbytes in told)

    def test_copies_do_not_wait_for_the_compute(self) -> None:
        told: list[Event] = []
        loader = [torch.zeros(1 << 20) for _ in range(8)]
        batches = iter(PrefetchLoader(loader, "cuda", on_copy=lambda _start, end, _nbytes: told.append(end)))
        next(batches)
        torch.cuda.synchronize()
        torch.cuda._sleep(20 * self.LONG)
        computed = torch.cuda.Event()
        computed.record()
        assert len(list(batches)) == 7
        told[-1].synchronize()
        assert not computed.query()


@pytest.mark.gpu
def test_batches_made_under_the_callers_stream() -> None:
    def made() -> Iterator[torch.Tensor]:
        for number in range(20):
            torch.cuda._sleep(50_000_000)
            yield torch.full((1 << 20,), float(number), device="cuda")

    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(500_000_000)
        ready = [torch.full((1 << 20,), 7.0, device="cuda")]
        assert [float(batch.mean()) for batch in PrefetchLoader(ready, "cuda")] == [7.0]
        assert [float(batch.mean()) for batch in PrefetchLoader(made(), "cuda")] == [float(at) for at in range(20)]


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta:UserWarning")
def test_sparse_batches_on_the_gpu() -> None:
    sparse = [torch.eye(3).to_sparse().cuda(), torch.eye(3).to_sparse_csr().cuda(), torch.eye(3).to_sparse_csc().cuda()]
    for batch in PrefetchLoader(sparse, "cuda"):
        assert torch.equal(batch.to_dense().cpu(), torch.eye(3))
