"""Which iteration and which phase a training program is in, from the calls that it makes on its main thread.

An iteration ends when every optimizer has stepped: with gradient accumulation after several batches, in a GAN after the
steps of both networks. The next one begins with the next batch that a loader of the training returns, or, in a program
without a loader, with the next forward. A validation or a checkpoint between two iterations belongs to neither.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

import torch
from torch import nn
from torch.optim import Optimizer

from instrument.monitor.loader import LoaderGauge
from instrument.ranges import (
    BACKWARD,
    CHECKPOINT,
    COPY,
    DATA_LOAD,
    FORWARD,
    OPTIMIZER,
    VALIDATE,
    annotate,
    iteration_name,
    mark,
    phase,
)

if TYPE_CHECKING:
    from instrument.run.live import Live

MAX_STEPS = 16  # an iteration does not wait for an optimizer while the others step so often
Value = TypeVar("Value")
_current_thread = threading.get_ident
_has_gradients = torch.is_grad_enabled


class ByIdentity(dict[int, tuple[object, Value]]):
    """Values of objects by id. One leaves when its object is freed; no code of Python runs then, as in weakref's."""

    def put(self, owner: object, value: Value) -> None:
        """Set the value of an object."""
        self[id(owner)] = ref(owner, partial(self.pop, id(owner))), value


class CallRange:
    """The context of one kind of call. At most one of each kind is open.

    Args:
        steps: what knows the open phase.
        name: the name of the range.
    """

    def __init__(self, steps: ProgramSteps, name: str) -> None:
        self.name, self._steps = name, steps
        self._outer: CallRange | None = None
        self._timed: AbstractContextManager[None] | None = None
        range_ = annotate(name) if isinstance(self, CollectiveRange) else phase(name)
        self._push, self._pop = range_.__enter__, range_.__exit__

    def __enter__(self) -> None:
        steps = self._steps
        self._outer, steps.phase = steps.phase, self
        self._push()
        if steps.live is not None:
            self._timed = steps.live.part(self.name)
            self._timed.__enter__()

    def __exit__(self, kind: type[BaseException] | None = None, *_raised: object) -> None:
        if self._timed is not None:
            self._timed.__exit__(None, None, None)
        self._pop()
        self._steps.phase = self._outer


class OpenRange(CallRange):
    """The context of a loader that starts, and of its workers, which count their batches."""

    loader: object = None

    def __enter__(self) -> None:
        super().__enter__()
        self._opening = self._steps.gauge.opening(self.loader)
        self._opening.__enter__()

    def __exit__(self, kind: type[BaseException] | None = None, *_raised: object) -> None:
        self._opening.__exit__(None, None, None)
        self.loader = None
        super().__exit__()


class LoadRange(CallRange):
    """The context of a loader's work on its next batch."""

    batches: Any = None

    def __enter__(self) -> None:
        super().__enter__()
        self._steps.gauge.begin(self.batches)

    def __exit__(self, kind: type[BaseException] | None = None, *_raised: object) -> None:
        data = id(self.batches._dataset)
        if kind is None and data in self._steps.training_data:
            self._steps.gauge.end(self.batches)
        super().__exit__()
        if self._steps.phase is None:
            self._steps.fetched(data, exhausted=kind is not None)
        self.batches = None


class CollectiveRange(CallRange):
    """The context of a call of torch.distributed."""


class ProgramSteps:
    """The open iteration and phase. The methods named after a call return its context, or None for no range.

    Args:
        live: what measures the steps; None measures nothing.
    """

    def __init__(self, live: Live | None = None) -> None:
        self.live, self.number = live, -1
        self.phase: CallRange | None = None
        self.optimizers: ByIdentity[None] = ByIdentity()
        self._iteration: annotate | None = None
        self._stepped: set[int] = set()
        self._steps, self._is_done, self._trains = 0, False, False
        self._fetched: int | None = None  # the data set of the last batch
        self.training_data: set[int] = set()
        self._learner: int | None = None  # the module whose forward began an iteration
        self._thread = threading.main_thread().ident
        self.gauge = LoaderGauge() if live is None else live.gauge
        self._open, self._load = OpenRange(self, DATA_LOAD), LoadRange(self, DATA_LOAD)
        names = (COPY, FORWARD, BACKWARD, OPTIMIZER, CHECKPOINT, VALIDATE)
        self._copy, self._forward, self._backward, self._optimizer, self._checkpoint, self._validate = (
            CallRange(self, name) for name in names
        )

    def open_loader(self, loader: object) -> CallRange | None:
        """A loader starts."""
        if self.phase is not None or _current_thread() != self._thread:
            return None
        self._open.loader = loader
        return self._open

    def load(self, batches: object) -> CallRange | None:
        """A loader fetches its next batch; `batches` is its iterator."""
        if self.phase is not None or _current_thread() != self._thread:
            return None
        self._load.batches = batches
        return self._load

    def copy(self) -> CallRange | None:
        """A tensor goes to a device, outside the other phases."""
        return self._copy if self.phase is None and _current_thread() == self._thread else None

    def forward(self, module: nn.Module) -> CallRange | None:
        """A module is called. Its calls of other modules belong to it; those of an optimizer's closure do not."""
        if not (self.phase is None or self.phase is self._optimizer) or _current_thread() != self._thread:
            return None
        if self._iteration is not None and not self._is_done:
            return self._forward  # also that of a teacher, which has no gradients
        if module.training and _has_gradients():
            if self.phase is None and (id(module) == self._learner or _learns(module)):
                self._learner = id(module)
                self._begin()
            return self._forward
        if self.phase is not None or not (self._trains or self.optimizers):
            return self._forward  # such as that of a program which does not train
        self.pause()
        return self._validate

    def backward(self, *_args: object, **_kwargs: object) -> CallRange | None:
        """Gradients are computed. Without any optimizer, this ends an iteration."""
        if not (self.phase is None or self.phase is self._optimizer) or _current_thread() != self._thread:
            return None
        if self._iteration is None and self.phase is None:
            self._begin()  # a program that trains in evaluation mode
        self._trains = True
        self._is_done |= not self.optimizers
        return self._backward

    def step(self, optimizer: Optimizer, *_args: object, **_kwargs: object) -> CallRange | None:
        """An optimizer steps, or a GradScaler decides whether it does."""
        if _current_thread() != self._thread:
            return None
        if id(optimizer) not in self.optimizers:
            self.optimizers.put(optimizer, None)
        self._stepped.add(id(optimizer))
        self._steps += 1
        if len(self._stepped) < len(self.optimizers) and self._steps >= MAX_STEPS:
            for key in self.optimizers.keys() - self._stepped:
                del self.optimizers[key]
        self._is_done = len(self._stepped) >= len(self.optimizers)
        if self._fetched is not None:
            self.training_data.add(self._fetched)
        return self._optimizer if self.phase is None else None

    def checkpoint(self, *_args: object, **_kwargs: object) -> CallRange | None:
        """A state is saved."""
        if self.phase is not None or _current_thread() != self._thread:
            return None
        self.pause()
        return self._checkpoint

    def collective(self, context: CollectiveRange, *_args: object, **_kwargs: object) -> CallRange | None:
        """Ranks communicate, in any phase. Collectives that one calls belong to it."""
        inside = isinstance(self.phase, CollectiveRange) or _current_thread() != self._thread
        return None if inside else context

    def fetched(self, data: int, *, exhausted: bool) -> None:
        """Note that a loader returned a batch, or that it has no more."""
        if exhausted:
            self.pause()
            return
        self._fetched = data
        between = self._is_done or self._iteration is None
        if between and data in self.training_data and _has_gradients():
            self._begin()

    def pause(self) -> None:
        """Close the iteration, if it has ended."""
        if self._is_done:
            self.close()

    def close(self) -> None:
        """Close the iteration."""
        if self._iteration is not None:
            self._iteration.__exit__()
            self._iteration = None
            if self.live is not None:
                self.live.end()

    def _begin(self) -> None:
        if self._iteration is not None:
            self._iteration.__exit__()
        self.number += 1
        self._stepped.clear()
        self._steps, self._is_done = 0, False
        self._iteration = annotate(iteration_name(self.number))
        self._iteration.__enter__()
        for name in self.gauge.marks():
            mark(name)
        if self.live is not None:
            self.live.begin(self.number)


def _learns(module: nn.Module) -> bool:
    """Return whether a module has parameters to train; a loss function has none."""
    return any(parameter.requires_grad for parameter in module.parameters())
