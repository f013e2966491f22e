"""The times of a step's parts, from events with a clock that the test sets."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from instrument.monitor import meter as meter_module
from instrument.monitor.meter import StepMeter
from instrument.streams import Event

CPU = torch.device("cpu")


class Gpu:
    """A clock in ms, and the time that the GPU has reached; its events are `Timed`."""

    def __init__(self) -> None:
        self.now, self.done, self.made = 0.0, float("inf"), 0

    def event(self, _device: object, *, timing: bool = False) -> Timed:
        assert timing
        self.made += 1
        return Timed(self)


class Timed:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self.at = gpu, -1.0

    def record(self) -> Timed:
        self.at = self._gpu.now
        return self

    def query(self) -> bool:
        return self.at <= self._gpu.done

    def milliseconds_since(self, earlier: Timed) -> float:
        assert self.query()
        assert earlier.query()
        return self.at - earlier.at


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    made = Gpu()
    monkeypatch.setattr(meter_module, "Event", made.event)
    monkeypatch.setattr(meter_module, "time", SimpleNamespace(perf_counter_ns=lambda: int(made.now * 1e6)))
    return made


def one_step(meter: StepMeter, gpu: Gpu, step: int, forward: float = 2.0, backward: float = 4.0) -> None:
    meter.begin(step)
    with meter.loading():
        gpu.now += 1
    for name, ms in (("forward", forward), ("backward", backward), ("optimizer", 1.0)):
        with meter.part(name):
            gpu.now += ms
    meter.amount(8, 64)
    gpu.now += 0.5


def test_parts_of_a_step(gpu: Gpu) -> None:
    meter = StepMeter(CPU)
    one_step(meter, gpu, 7)
    meter.end()
    (found,) = meter.finished()
    assert (found.step, found.samples, found.tokens) == (7, 8, 64)
    assert (found.forward_ms, found.backward_ms, found.optimizer_ms, found.data_load_ms) == (2.0, 4.0, 1.0, 1.0)
    assert found.copy_ms is None
    assert found.step_ms == 8.5


def test_micro_batches_add_up(gpu: Gpu) -> None:
    meter = StepMeter(CPU)
    meter.begin(0)
    for ms in (1.0, 2.0, 4.0):
        with meter.part("forward"):
            gpu.now += ms
        with meter.copying(100):
            gpu.now += ms
    meter.end()
    (found,) = meter.finished()
    assert (found.forward_ms, found.copy_ms) == (7.0, 7.0)


def test_step_is_reported_after_the_next_begins(gpu: Gpu) -> None:
    meter = StepMeter(CPU)
    gpu.done = -1.0
    one_step(meter, gpu, 0)
    assert meter.finished() == []
    one_step(meter, gpu, 1)
    gpu.done = 8.0  # all of step 0 but where step 1 began
    assert meter.finished() == []
    gpu.done = 8.5
    assert [one.step for one in meter.finished()] == [0]
    gpu.done = 17.0
    assert meter.finished() == []
    meter.end()
    assert [one.step for one in meter.finished()] == [1]
    assert meter.finished() == []


def test_step_waits_for_its_running_copy(gpu: Gpu) -> None:
    meter, start, end = StepMeter(CPU), gpu.event(CPU, timing=True).record(), gpu.event(CPU, timing=True)
    meter.begin(0)
    meter.copied(start, end, 10)
    gpu.now = 3.0
    meter.end()
    gpu.now = end.at = 5.0
    gpu.done = 4.0
    assert meter.finished() == []
    gpu.done = 5.0
    assert [one.copy_ms for one in meter.finished()] == [5.0]


def test_events_are_reused(gpu: Gpu) -> None:
    meter = StepMeter(CPU)
    for step in range(50):
        one_step(meter, gpu, step)
        meter.finished()
    assert gpu.made <= 2 * 7


def test_other_events_are_not_reused(gpu: Gpu) -> None:
    """A loader's pinned memory waits for the event after its copy, so the meter must not record that event again."""
    meter, lent = StepMeter(CPU), []
    for step in range(20):
        copied = [Timed(gpu).record(), Timed(gpu).record()]
        lent += [(one, one.at) for one in copied]
        meter.begin(step)
        meter.copied(copied[0], copied[1], 10)
        gpu.now += 1
        with meter.part("forward"):
            gpu.now += 1
        meter.finished()
    assert all(one.at == at for one, at in lent)
    assert len(meter._free) <= 6


def test_two_threads_measure_at_once() -> None:
    """One thread runs backward while the other runs the next forward; both reuse events."""
    meter, failed = StepMeter(CPU), []

    def backward() -> None:
        try:
            for _ in range(2000):
                with meter.part("backward"):
                    pass
        except IndexError as error:
            failed.append(error)

    for step in range(4):
        meter.begin(step)
        beside = threading.Thread(target=backward)
        beside.start()
        for _ in range(2000):
            with meter.part("forward"):
                pass
        beside.join()
        meter.finished()
    meter.end()
    assert failed == []
    assert [one.step for one in meter.finished()] == [3]


def test_time_before_the_first_step_is_part_of_it(gpu: Gpu) -> None:
    meter = StepMeter(CPU)
    with meter.loading():
        gpu.now += 3
    with meter.copying(10):
        gpu.now += 2
    one_step(meter, gpu, 0)
    one_step(meter, gpu, 1)
    meter.end()
    first, second = meter.finished()
    assert (first.data_load_ms, first.copy_ms) == (4.0, 2.0)
    assert (second.data_load_ms, second.copy_ms) == (1.0, None)


def test_empty_copy_is_not_measured(gpu: Gpu) -> None:
    meter = StepMeter(CPU)
    meter.begin(0)
    with meter.copying(0):
        gpu.now += 2
    meter.end()
    assert [one.copy_ms for one in meter.finished()] == [None]


def test_failed_part_is_not_counted(gpu: Gpu) -> None:
    meter = StepMeter(CPU)
    meter.begin(0)
    with pytest.raises(RuntimeError), meter.part("forward"):
        raise RuntimeError("out of memory")
    with meter.part("forward"):
        gpu.now += 2
    meter.end()
    assert [one.forward_ms for one in meter.finished()] == [2.0]


def test_end_of_the_run_is_not_a_step(gpu: Gpu) -> None:
    """An error may end a run a second time, and a run may continue after its end."""
    meter = StepMeter(CPU)
    one_step(meter, gpu, 0)
    meter.end()
    meter.end()
    one_step(meter, gpu, 1)
    meter.end()
    assert [one.step for one in meter.finished()] == [0, 1]


def test_end_before_the_first_step_measures_nothing() -> None:
    meter = StepMeter(CPU)
    meter.end()
    assert meter.finished() == []


def test_host_clock_without_a_gpu() -> None:
    meter = StepMeter(CPU)
    meter.begin(0)
    with meter.part("forward"):
        sum(range(1000))
    meter.copied(Event(CPU, timing=True).record(), Event(CPU, timing=True).record(), 5)
    meter.end()
    (found,) = meter.finished()
    assert found.forward_ms is not None
    assert found.step_ms is not None
    assert 0 < found.forward_ms < found.step_ms
    assert found.copy_ms is not None
    assert found.copy_ms > 0


@pytest.mark.gpu
def test_gpu_times_without_synchronization() -> None:
    device = torch.device("cuda")
    meter = StepMeter(device)
    torch.cuda.synchronize()
    meter.begin(0)
    with meter.part("forward"):
        torch.cuda._sleep(20_000_000)
    meter.end()
    assert meter.finished() == []
    torch.cuda.synchronize()
    (found,) = meter.finished()
    assert found.forward_ms is not None
    assert found.step_ms is not None
    assert 1 < found.forward_ms <= found.step_ms
