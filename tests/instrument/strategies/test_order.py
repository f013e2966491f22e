"""The events of the strategy `streams` order all work on a tensor, whatever stream is late.

A GPU that keeps up hides a missing event, so these tests do not need one: they count what each stream has waited for,
and look at every operation. Autograd runs a backward operation on the stream of its forward, with waits of its own;
here it is on the stream that is current.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from instrument.config.schema import Config
from instrument.monitor.meter import StepMeter
from instrument.strategies import strategy_class
from instrument.streams import Event, Stream
from instrument.sync import SyncPolicy
from instrument.trainer.learner import Learner, call_model
from instrument.trainer.recover import MicroBatches
from instrument.trees import tensors
from tests.instrument.loaders import build_loader
from tests.instrument.models.tiny import build
from tests.instrument.strategies.test_strategies import GPU, config

Clock = Counter[str]  # operations of each stream


class OrderError(Exception):
    """An operation uses a tensor before another stream is done with it."""


@dataclass(slots=True)
class Use:
    """The clocks of the last write to some memory, and of the reads since."""

    write: Clock | None = None
    reads: list[Clock] = field(default_factory=list)


class Order(TorchDispatchMode):
    """Checks that the operations on any memory follow each other, by the waits between streams."""

    def __init__(self) -> None:
        super().__init__()
        self.names = ["current"]
        self.clocks: dict[str, Clock] = defaultdict(Counter)
        self.recorded: dict[int, tuple[Event, Clock]] = {}
        self.uses: dict[int, Use] = defaultdict(Use)
        self.kept: list[Any] = []  # memory is not given away, so that an address stays that of one tensor

    def enter(self, stream: Stream) -> Stream:
        self.names.append(stream.name)
        return stream

    def leave(self, _stream: Stream, *_raised: object) -> None:
        self.names.pop()

    def current(self, device: torch.device) -> Stream:
        return Stream(self.names[-1], device)

    def record(self, event: Event, stream: Stream | None = None) -> Event:
        event._recorded_ns = 0
        self.recorded[id(event)] = event, self.clocks[stream.name if stream else self.names[-1]].copy()
        return event

    def wait(self, event: Event, stream: Stream | None = None) -> None:
        self.clocks[stream.name if stream else self.names[-1]] |= self.recorded[id(event)][1]

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        returned = [value.alias_info for value in func._schema.returns]
        if any(alias and not alias.is_write for alias in returned):  # a view launches nothing
            return result
        name = self.names[-1]
        self.clocks[name][name] += 1
        given = dict(zip((value.name for value in func._schema.arguments), args, strict=False)) | (kwargs or {})
        changed = {value.name for value in func._schema.arguments if value.alias_info and value.alias_info.is_write}
        for argument, value in given.items():
            self.use(func, value, writes=argument in changed)
        self.use(func, [] if any(returned) else result, writes=True)
        return result

    def use(self, func: Any, value: Any, *, writes: bool) -> None:
        mine, name = self.clocks[self.names[-1]], self.names[-1]
        for tensor in tensors(value):
            self.kept.append(tensor.untyped_storage())
            use = self.uses[tensor.untyped_storage().data_ptr()]
            for other in [*filter(None, [use.write]), *(use.reads if writes else ())]:
                if not other <= mine:
                    raise OrderError(f"{func} on {name} does not wait for {other - mine}")
            if writes:
                use.write, use.reads = mine.copy(), []
            else:
                use.reads.append(mine.copy())


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Order:
    made = Order()
    monkeypatch.setattr(Stream, "__enter__", lambda stream: made.enter(stream))
    monkeypatch.setattr(Stream, "__exit__", lambda stream, *raised: made.leave(stream))
    monkeypatch.setattr(Stream, "current", lambda device: made.current(device))
    monkeypatch.setattr(Event, "record", lambda event, stream=None: made.record(event, stream))
    monkeypatch.setattr(Event, "wait", lambda event, stream=None: made.wait(event, stream))
    return made


def labels(batch: Mapping[str, Tensor]) -> Tensor:
    return (batch["targets"] > 3).sum()


def logged(of: Config, device: str, steps: int, *, splits: bool, slow: bool = False, size: int = 4) -> list[float]:
    """Train as a run does, and read the losses as it does."""
    torch.manual_seed(0)
    model = build(of.model, of.data, device)
    learner = Learner(slowed(model) if slow else model, of.training, steps, torch.device(device), call_model, labels)
    micro = MicroBatches(size, count=labels) if splits else None
    strategy = strategy_class(of.training.strategy)(of, learner, StepMeter(device), micro)
    batches, late, losses = strategy.batches(build_loader(of, endless=True)), SyncPolicy(every=10).losses(device), []
    for step in range(steps):
        strategy.meter.begin(step)
        loss = strategy.step([next(batches) for _ in range(of.training.accumulation)])
        losses += late.log(step, learner.loss_or_nan(loss))
    losses += late.wait()
    strategy.close()
    return [loss for _step, loss in losses]


def slowed(model: nn.Module) -> nn.Module:
    """Let the GPU work for milliseconds before each forward, so that it is behind the host."""
    model.register_forward_pre_hook(lambda *_: torch.cuda._sleep(20_000_000))
    return model


@contextmanager
def checked(order: Order) -> Iterator[None]:
    with order:
        yield
    assert {"forward", "backward", "optimizer"} <= set(order.clocks)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize(("splits", "size"), [(False, 4), (True, 4), (True, 2)])
def test_each_operation_waits_for_what_it_uses(accumulation: int, splits: bool, size: int, order: Order) -> None:
    with checked(order):
        logged(config("streams", accumulation=accumulation), "cpu", 2, splits=splits, size=size)


def test_missing_wait_is_found(order: Order) -> None:
    stream, other = Stream("other", "cpu"), Stream("current", "cpu")
    with order:
        with stream:
            made = torch.ones(2) + 1
        other.wait(stream)
        assert made.sum() == 4
        with (
            stream,
            pytest.raises(OrderError, match=r"add_.* on other does not wait for .*current"),
        ):  # the sum may be late
            made.add_(1)
        stream.wait(other)
        with stream:
            made.add_(1)
        with pytest.raises(OrderError, match=r"sum.* on current does not wait for .*other"):
            made.sum()


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("strategy", ["prefetch", "streams"])
def test_losses_of_a_gpu_behind_the_host(strategy: str, accumulation: int, device: str) -> None:
    of, slow = config(strategy, accumulation=accumulation), device == "cuda"
    plain = replace(of, training=replace(of.training, strategy="serial"))
    assert logged(of, device, 6, splits=True, slow=slow) == logged(plain, device, 6, splits=True)
