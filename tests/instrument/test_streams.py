from __future__ import annotations

import itertools
import threading

import pytest
import torch

from instrument.errors import ConfigError
from instrument.streams import TORCH_POOL_STREAMS, Event, Stream, Streams, record_stream

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
LONG = 200_000_000  # cycles: about a tenth of a second


@pytest.mark.parametrize("device", DEVICES)
def test_streams_by_name(device: str) -> None:
    streams = Streams(device, copy=-1, compute=0)
    assert streams.names == ("copy", "compute")
    assert [stream.name for stream in streams] == ["copy", "compute"]
    assert len(streams) == 2
    assert streams["copy"] is not streams["compute"]
    assert streams.current.name == "current"
    with pytest.raises(KeyError, match="unknown stream 'other'; available: copy, compute"):
        streams["other"]


@pytest.mark.parametrize("device", DEVICES)
def test_stream_lifecycle(device: str) -> None:
    first, second = Streams(device, first=0, second=0)
    with first:
        made = torch.full((1000,), 2.0, device=device)
        event = first.record(timing=True)
    second.wait(event)
    second.wait(first)
    with second:
        doubled = made * 2
    second.synchronize()
    assert second.query()
    assert event.query()
    event.synchronize()
    assert doubled.sum().item() == 4000


@pytest.mark.parametrize("device", DEVICES)
def test_nested_streams_and_an_exception_restore_the_stream_before(device: str) -> None:
    first, second = Streams(device, first=0, second=0)
    before = Stream.current(device).cuda
    with pytest.raises(ValueError, match="inside"), first:
        with second, first:
            assert Stream.current(device).cuda == first.cuda
        assert Stream.current(device).cuda == first.cuda
        raise ValueError("inside")
    assert Stream.current(device).cuda == before


@pytest.mark.gpu
def test_streams_in_use_are_distinct() -> None:
    held = [Stream.create(name, "cuda") for name in ("copy", "compute", "side")]
    for _ in range(3 * TORCH_POOL_STREAMS):
        made = Stream.create("short-lived", "cuda")
        assert made.cuda not in [one.cuda for one in held]


class Pool:
    """Stands in for torch.cuda: gives TORCH_POOL_STREAMS streams in turn, as torch does."""

    def __init__(self) -> None:
        self._turns = itertools.count()

    def Stream(self, _device: torch.device, priority: int) -> int:  # noqa: N802 - torch's name
        return 100 * priority + next(self._turns) % TORCH_POOL_STREAMS


def test_pool_skips_streams_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("instrument.streams._cuda", Pool())
    monkeypatch.setattr("instrument.streams.usable_device", torch.device)
    held = [Stream.create(str(number), "cuda") for number in range(3)]
    for _ in range(2 * TORCH_POOL_STREAMS):
        assert Stream.create("short-lived", "cuda").cuda not in [one.cuda for one in held]
    all_taken = [Stream.create(str(number), "cuda") for number in range(2 * TORCH_POOL_STREAMS)]
    assert {one.cuda for one in all_taken + held} == set(range(TORCH_POOL_STREAMS))


@pytest.mark.parametrize("device", DEVICES)
def test_two_threads_in_one_stream(device: str) -> None:
    stream = Stream.create("copy", device)
    inside, leave = threading.Event(), threading.Event()

    def enter() -> None:
        with stream:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=enter)
    thread.start()
    inside.wait()
    before = Stream.current(device).cuda
    with stream:
        assert Stream.current(device).cuda == stream.cuda
    assert Stream.current(device).cuda == before
    leave.set()
    thread.join()


@pytest.mark.parametrize("device", DEVICES)
def test_event_timing(device: str) -> None:
    stream = Stream.create("compute", device)
    start, untimed = stream.record(timing=True), stream.record()
    end = Event(device, timing=True).record(stream)
    end.synchronize()
    assert end.milliseconds_since(start) >= 0
    assert start.milliseconds_since(start) == 0
    for earlier, later in ((untimed, start), (start, untimed), (start, Event(device, timing=True))):
        with pytest.raises(ValueError, match="create it with timing=True"):
            later.milliseconds_since(earlier)


def test_without_gpu_events_are_done() -> None:
    stream, event = Stream.create("copy", "cpu"), Event("cpu")
    assert stream.cuda is None
    assert stream.query()
    assert event.query()
    event.wait()
    event.wait(stream)
    tree = {"x": torch.ones(1)}
    assert record_stream(tree, ready=event, to=stream) is tree
    assert repr(stream) == "Stream('copy', 'cpu', None)"


class Tells:
    def __init__(self) -> None:
        self.used_by: list[object] = []

    def record_stream(self, stream: object) -> None:
        self.used_by.append(stream)


@pytest.mark.gpu
class TestOnTheGpu:
    @pytest.fixture(autouse=True)
    def _kernels_are_loaded(self) -> None:
        # Loading a kernel at its first use may wait for the device, and with it for what a test has delayed.
        torch.full((1 << 20,), 7.0, device="cuda").zero_().sum().item()

    def test_hand_over_waits_on_the_device_only(self) -> None:
        copy, compute = Streams("cuda", copy=0, compute=0)
        host = torch.full((1 << 20,), 7.0).pin_memory()
        with copy:
            tensor = torch.zeros(1 << 20, device="cuda")
            torch.cuda._sleep(LONG)
            tensor.copy_(host, non_blocking=True)
            ready = copy.record()
        (tensor,) = record_stream([tensor], ready=ready, to=compute)
        assert not ready.query(), "the host waited"
        with compute:
            total = tensor.sum()
        compute.synchronize()
        assert total.item() == 7.0 * (1 << 20)

    def test_values_are_missing_without_the_wait(self) -> None:
        # The counterpart: what the test above proves is the wait's doing.
        copy, compute = Streams("cuda", copy=0, compute=0)
        host = torch.full((1 << 20,), 7.0).pin_memory()
        tensor = torch.zeros(1 << 20, device="cuda")
        torch.cuda.synchronize()
        with copy:
            torch.cuda._sleep(LONG)
            tensor.copy_(host, non_blocking=True)
        with compute:
            total = tensor.sum()
        compute.synchronize()
        assert total.item() == 0
        copy.synchronize()

    def test_memory_stays_until_other_stream_has_read(self) -> None:
        copy, compute = Streams("cuda", copy=0, compute=0)
        with copy:
            tensor = torch.full((1 << 20,), 7.0, device="cuda")
            ready = copy.record()
        record_stream(tensor, ready=ready, to=compute)
        address = tensor.data_ptr()
        with compute:
            torch.cuda._sleep(LONG)
            total = tensor.sum()
        del tensor
        with copy:
            other = torch.full((1 << 20,), 1.0, device="cuda")
        assert other.data_ptr() != address
        compute.synchronize()
        assert total.item() == 7.0 * (1 << 20)

    def test_device_tensors_of_a_tree_are_recorded(self) -> None:
        copy, compute = Streams("cuda", copy=0, compute=0)
        other = Tells()
        tree = {"x": [torch.ones(1, device="cuda")], "host": torch.ones(1), "other": other, "n": 3}
        assert record_stream(tree, ready=copy.record(), to=compute) is tree
        assert other.used_by == [compute.cuda]

    def test_invalid_priority_is_one_line(self) -> None:
        with pytest.raises(ConfigError, match="stream copy: cuda has no priority 7: use -"):
            Streams("cuda", copy=7)

    def test_stream_without_a_gpu_cannot_record_a_gpu_event(self) -> None:
        with pytest.raises(ValueError, match="is not a CUDA stream"):
            Event("cuda").record(Stream.create("copy", "cpu"))
