"""NVTX ranges that a capture shows: one decorator and context manager, one instant.

A range is pushed and popped on the thread that runs it, so ranges nest, and GPU work launched inside
one is credited to it (docs/metrics.md "NVTX projected on the GPU"). Without the `nvtx` package, or with
NVTX_DISABLE set, everything here does nothing.

Inside a function that torch.compile traces, ranges and marks do nothing either, and break no graph: the compiled
kernels of several ranges are fused, so a range could not name its work.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

try:
    import nvtx
except ImportError:
    nvtx = None

# The ranges of the trainer. traceview finds phases and iterations by these names.
DATA_LOAD = "data_load"
COPY = "h2d"
FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
REPLAY = "replay"  # one launch of a CUDA graph that holds forward, backward and optimizer
SYNCHRONIZE = "sync"
CHECKPOINT = "checkpoint"
VALIDATE = "validate"
PHASES = (DATA_LOAD, COPY, FORWARD, BACKWARD, OPTIMIZER, REPLAY, SYNCHRONIZE, CHECKPOINT, VALIDATE)
MAX_ITERATION_NAMES = 100_000

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])
Suspendable = Any  # a generator or a coroutine: both have send, throw and close


class annotate:  # noqa: N801 - it reads as what it is used as, like contextlib's own
    """Mark what a block or a function does, for as long as it runs.

        with annotate("h2d", color="green"):
            ...

        @annotate()  # named after the function
        def forward(batch): ...

    A generator or a coroutine is marked while it runs, not while it is suspended: each resumption is
    one range. So ranges nest whatever else the thread does meanwhile, and "data_load" on a generator
    is the time spent loading. The range is closed when the block or the function raises.

    One object can be entered many times, by several threads at once. nvtx keeps each different name
    and payload for the life of the process: give it thousands of them, not millions.

    In code for torch.compile, write `with annotate("name"):` or decorate. TorchDynamo cannot enter any context
    manager object that was made outside the compiled function, and breaks the graph there.

    Args:
        name: what the timeline shows; a decorated function's qualified name where None.
        color: a name such as "green", or 0xAARRGGBB.
        domain: the NVTX domain; None is the one that torch.cuda.nvtx writes to as well.
        category: a name or a number that groups ranges inside a domain.
        payload: one number shown with the range, such as a batch size.
    """

    __slots__ = ("_category", "_color", "_domain", "_name", "_payload", "_range")

    def __init__(
        self,
        name: str | None = None,
        *,
        color: str | int | None = None,
        domain: str | None = None,
        category: str | int | None = None,
        payload: float | None = None,
    ) -> None:
        self._name, self._color, self._domain = name, color, domain
        self._category, self._payload = category, payload
        self._range: AbstractContextManager[Any] | None = None
        if nvtx is not None and not _is_traced():
            self._range = nvtx.annotate(name or "", color, domain, category, payload)

    def __enter__(self) -> annotate:
        if self._range is not None:
            self._range.__enter__()
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)

    def __call__(self, function: AnyFunction) -> AnyFunction:
        """Return `function`, marked whenever it runs.

        Raises TypeError for an asynchronous generator: annotate the blocks inside it instead.
        """
        if inspect.isasyncgenfunction(function):
            raise TypeError(
                f"{function.__qualname__} is an asynchronous generator: annotate blocks inside it"
            )
        marked = self if self._name is not None else self._named(function.__qualname__)
        if inspect.iscoroutinefunction(function):
            return cast(AnyFunction, _marked_coroutine(marked, function))
        if inspect.isgeneratorfunction(function):
            return cast(AnyFunction, _marked_generator(marked, function))
        return cast(AnyFunction, _marked_function(marked, function))

    def _named(self, name: str) -> annotate:
        return annotate(
            name, color=self._color, domain=self._domain, category=self._category, payload=self._payload
        )


def phase(name: str, *, color: str | int | None = None, payload: float | None = None) -> annotate:
    """Mark one phase of a training step, such as "data_load", "h2d", "forward" or "optimizer".

    Phases are annotations in the category "phase", so that a timeline can show them alone.
    """
    return annotate(name, color=color, category="phase", payload=payload)


def iteration_name(step: int) -> str:
    """Return the range name of a training step, counted from 0: "iteration 7".

    Numbers start again at 0 after `MAX_ITERATION_NAMES` steps, because nvtx keeps every name until the process ends.
    """
    return f"iteration {step % MAX_ITERATION_NAMES}"


def mark(
    name: str,
    *,
    color: str | int | None = None,
    domain: str | None = None,
    category: str | int | None = None,
    payload: float | None = None,
) -> None:
    """Mark one instant; the arguments are those of `annotate`."""
    if nvtx is not None and not _is_traced():
        nvtx.mark(name, color, domain, category, payload)


def _is_traced() -> bool:
    """Return whether TorchDynamo traces the caller; it folds the answer into a constant."""
    # Not torch.compiler.is_compiling(): that is true on all threads while one compiles, so that a range of
    # another thread could be opened and never closed.
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_dynamo_compiling()


def _marked_function(marked: annotate, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_traced():
            return function(*args, **kwargs)
        with marked:
            return function(*args, **kwargs)

    return call


def _marked_generator(marked: annotate, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        if _is_traced():
            return (yield from function(*args, **kwargs))
        return (yield from _Resumed(marked, function(*args, **kwargs)))

    return call


def _marked_coroutine(marked: annotate, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await _Resumed(marked, function(*args, **kwargs))

    return call


class _Resumed(Generator[Any, Any, Any], Awaitable[Any]):
    """What `yield from` and `await` drive: the wrapped one, inside a range whenever it runs."""

    __slots__ = ("_marked", "_wrapped")

    def __init__(self, marked: annotate, wrapped: Suspendable) -> None:
        self._marked, self._wrapped = marked, wrapped

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def send(self, value: Any) -> Any:
        with self._marked:
            return self._wrapped.send(value)

    def throw(self, *raised: Any) -> Any:
        with self._marked:
            return self._wrapped.throw(*raised)

    def close(self) -> None:
        with self._marked:
            self._wrapped.close()
