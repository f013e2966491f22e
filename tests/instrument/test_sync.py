"""When the host waits, and that it reads every loss once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from instrument import sync
from instrument.config.schema import Training
from instrument.config.strategies import STRATEGIES
from instrument.errors import ConfigError, InstrumentError
from instrument.sync import MAX_STEPS_AHEAD, AsyncMetrics, SyncPolicy

CPU = torch.device("cpu")
TEXTS = st.one_of(st.sampled_from(["auto", "every", "event"]), st.integers(1, 60).map(str))


class LateEvent:
    """An event that completes only if the host waits for it or for a later one."""

    made: ClassVar[list[LateEvent]] = []
    clock = 0
    done_until = 0
    waits = 0

    def __init__(self, _device: object) -> None:
        self.at = 0
        LateEvent.made.append(self)

    def record(self) -> LateEvent:
        LateEvent.clock += 1
        self.at = LateEvent.clock
        return self

    def query(self) -> bool:
        return self.at <= LateEvent.done_until

    def synchronize(self) -> None:
        LateEvent.waits += 1
        LateEvent.done_until = max(LateEvent.done_until, self.at)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[LateEvent]]:
    monkeypatch.setattr(sync, "Event", LateEvent)
    reset()
    yield LateEvent
    reset()


def reset() -> None:
    LateEvent.made, LateEvent.clock, LateEvent.done_until, LateEvent.waits = [], 0, 0, 0


def loss(step: int) -> torch.Tensor:
    return torch.tensor(float(step) / 4)


def run(policy: SyncPolicy, steps: int, first: int = 0) -> list[tuple[int, float]]:
    """Train for a number of steps under a policy, and read what is left at the end."""
    late, read = policy.losses(CPU), []
    for step in range(first, first + steps):
        late.submit(step, loss(step))
        read += policy.after(step, late)
    read += late.wait()
    assert len(late) == 0
    return read


def expected(steps: int, first: int = 0) -> list[tuple[int, float]]:
    return [(step, step / 4) for step in range(first, first + steps)]


@pytest.mark.parametrize("event", [sync.Event, LateEvent])
@given(TEXTS, st.integers(0, 150), st.integers(0, 40))
def test_all_losses_in_order(event: type, text: str, steps: int, first: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync, "Event", event)
        reset()
        assert run(SyncPolicy.from_text(text), steps, first) == expected(steps, first)


@given(st.integers(1, 20), st.lists(st.sampled_from(["put", "ready", "wait", "leave", "arrive"]), max_size=60))
def test_any_call_order_returns_each_loss_once(capacity: int, calls: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sync, "Event", LateEvent)
        reset()
        late, read, step = AsyncMetrics(CPU, capacity), [], 0
        for call in calls:
            if call == "put" and len(late) < capacity:
                late.submit(step, loss(step))
                step += 1
            elif call == "ready":
                read += late.completed()
            elif call == "wait":
                read += late.wait()
                assert len(late) == 0
            elif call == "leave":
                read += late.wait(leave=2)
                assert len(late) <= 2
            elif call == "arrive":
                LateEvent.done_until = min(LateEvent.done_until + 1, LateEvent.clock)
        assert read + late.wait() == expected(step)


@pytest.mark.parametrize(("text", "waits"), [("every", 20), ("1", 20), ("10", 2), ("7", 2), ("30", 0), ("auto", 2)])
def test_number_of_waits_per_policy(gpu: type[LateEvent], text: str, waits: int) -> None:
    policy = SyncPolicy.from_text(text)
    late = policy.losses(CPU)
    for step in range(20):
        late.submit(step, loss(step))
        before = gpu.waits
        assert bool(policy.after(step, late)) == (gpu.waits > before)  # nothing is read between waits
    assert gpu.waits == waits


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 9))
def test_any_interval_of_logging_reads_every_loss(every: int, interval: int, first: int) -> None:
    late = SyncPolicy(every).losses("cpu")
    steps, read = range(first, first + 60 * interval, interval), []
    for step in steps:
        read += late.log(step, loss(step))
        assert len(late) <= every
    assert [step for step, _loss in read + late.wait()] == list(steps)


def test_event_policy_waits_when_too_far_ahead(gpu: type[LateEvent]) -> None:
    policy = SyncPolicy.from_text("event")
    late = policy.losses(CPU)
    for step in range(MAX_STEPS_AHEAD):
        late.submit(step, loss(step))
        assert policy.after(step, late) == []
    assert gpu.waits == 0
    late.submit(MAX_STEPS_AHEAD, loss(MAX_STEPS_AHEAD))
    assert policy.after(MAX_STEPS_AHEAD, late) == expected(1)
    assert gpu.waits == 1


def test_event_policy_reads_without_waiting(gpu: type[LateEvent]) -> None:
    policy = SyncPolicy.from_text("event")
    late = policy.losses(CPU)
    late.submit(0, loss(0))
    late.submit(1, loss(1))
    gpu.done_until = 1
    assert policy.after(1, late) == expected(1)
    assert gpu.waits == 0


def test_resumed_run_waits_at_same_steps() -> None:
    late = SyncPolicy(10).losses(CPU)
    late.submit(39, loss(39))
    assert SyncPolicy(10).after(39, late) == [(39, 39 / 4)]


def test_put_beyond_capacity_raises(gpu: type[LateEvent]) -> None:
    late = AsyncMetrics(CPU, 2)
    late.submit(0, loss(0))
    late.submit(1, loss(1))
    with pytest.raises(ValueError, match="2 losses have not been read"):
        late.submit(2, loss(2))
    assert late.wait() == expected(2)


def test_loss_is_copied_at_put() -> None:
    late, held = AsyncMetrics(CPU, 2), torch.tensor(1.0)
    late.submit(0, held)
    held.fill_(5.0)
    assert late.wait() == [(0, 1.0)]


def test_nan_and_infinity() -> None:
    late = AsyncMetrics(CPU, 2)
    late.submit(0, torch.tensor(float("nan"), requires_grad=True))
    ((step, value),) = late.wait()
    assert step == 0
    assert value != value


MIXED = [
    (torch.bfloat16, 1.5),
    (torch.float32, 1.100000023841858),
    (torch.float64, 1.1),
    (torch.float16, 0.5),
    (torch.float32, 2.0**-100),
]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_losses_keep_precision(device: str) -> None:
    late = AsyncMetrics(torch.device(device), 3)
    read = []
    for step, (dtype, value) in enumerate(MIXED * 2):
        late.submit(step, torch.tensor(value, dtype=dtype, device=device))
        read += late.wait(leave=2)
    assert read + late.wait() == list(enumerate(value for _dtype, value in MIXED * 2))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_one_element_of_any_shape(shape: tuple[int, ...]) -> None:
    late = AsyncMetrics(CPU, 2)
    late.submit(3, torch.full(shape, 2.5))
    assert late.wait() == [(3, 2.5)]


@pytest.mark.parametrize("shape", [(2,), (0,), (4, 2)])
def test_several_elements_raise(shape: tuple[int, ...]) -> None:
    late = AsyncMetrics(CPU, 2)
    with pytest.raises(InstrumentError) as refused:
        late.submit(3, torch.zeros(shape))
    assert str(refused.value) == f"the loss of step 3 has shape {shape} and must be one number: return its mean()"
    assert len(late) == 0


def test_several_figures_a_step(gpu: type[LateEvent]) -> None:
    late, read = SyncPolicy(3).metrics("cpu"), []
    for step in range(7):
        accuracy = torch.tensor(step, dtype=torch.int64)
        read += late.log(step, {"loss": loss(step), "accuracy": accuracy, "learning_rate": 0.5})
        assert len(read) == (step + 1) // 3 * 3
    read += late.wait()
    assert read == [(step, {"loss": value, "accuracy": step, "learning_rate": 0.5}) for step, value in expected(7)]
    assert gpu.waits == 3


def test_log_without_a_policy_never_waits(gpu: type[LateEvent]) -> None:
    late = AsyncMetrics[float]("cpu", 9)
    assert [late.log(step, loss(step)) for step in range(5)] == [[]] * 5
    assert gpu.waits == 0


def test_several_elements_of_one_figure_raise() -> None:
    with pytest.raises(InstrumentError, match="the accuracy of step 2 has shape"):
        SyncPolicy(1).metrics("cpu").log(2, {"loss": torch.ones(1), "accuracy": torch.ones(3)})


def test_events_are_created_on_demand_and_reused(gpu: type[LateEvent]) -> None:
    for late in (SyncPolicy(1_000_000).losses(CPU), AsyncMetrics[float](CPU, 3)):
        gpu.made.clear()
        late.submit(0, loss(0))
        late.submit(1, loss(1))
        assert len(gpu.made) == 2
        late.wait()
    for step in range(20):
        late.submit(step, loss(step))
        late.wait()
    assert len(gpu.made) == 3


@pytest.mark.parametrize(
    ("text", "strategy", "every"),
    [
        ("auto", "serial", 1),
        ("auto", "prefetch", 10),
        ("every", "graph", 1),
        ("25", "serial", 25),
        ("event", "serial", None),
    ],
)
def test_policy_from_text(text: str, strategy: str, every: int | None) -> None:
    assert SyncPolicy.from_text(text, STRATEGIES[strategy].sync_interval) == SyncPolicy(every)


@pytest.mark.parametrize("text", ["", "never", "0", "-1", "1.5", "Every", "²"])
def test_invalid_policy_text(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        SyncPolicy.from_text(text)
    assert "\n" not in str(refused.value)


@given(st.text(max_size=5))
def test_setting_and_policy_agree(text: str) -> None:
    try:
        Training(sync=text)
    except ConfigError:
        return
    assert isinstance(SyncPolicy.from_text(text), SyncPolicy)


@pytest.mark.gpu
@pytest.mark.parametrize("text", ["every", "10", "event"])
def test_losses_on_gpu(text: str) -> None:
    policy = SyncPolicy.from_text(text)
    late, read = policy.losses(torch.device("cuda")), []
    for step in range(50):
        torch.cuda._sleep(1_000_000)
        late.submit(step, torch.tensor(step / 4, device="cpu").pin_memory().to("cuda", non_blocking=True))
        read += policy.after(step, late)
    assert read + late.wait() == expected(50)
