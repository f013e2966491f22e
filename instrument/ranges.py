"""NVTX ranges and marks.

A range is pushed and popped on the calling thread, so ranges nest, and GPU work launched inside a range is attributed
to it (docs/definitions.md "NVTX projected on the GPU"). Without the package `nvtx`, or with NVTX_DISABLE set, there are
no NVTX ranges and marks. While torch.profiler records, it gets every range too, with nvtx and without.

In a function that torch.compile traces, they also do nothing and cause no graph break: torch.compile fuses the kernels
of several ranges, so their work cannot be attributed.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
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
# The names that nvtx knows by itself. With matplotlib installed it would know more, on that machine only.
COLORS = ("green", "blue", "yellow", "purple", "rapids", "cyan", "red", "white", "darkgreen", "orange")
MAX_ITERATION_NAMES = 100_000
MAX_KEPT_RANGES = 1024


AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any] | property)
Suspendable = Any  # a generator or a coroutine


class annotate:  # noqa: N801 - used like a function, as contextlib.suppress
    """An NVTX range around a block or a function. Use it as a context manager or as a decorator.

        with annotate("h2d", color="green"):
            batch = batch.to("cuda")

        @annotate()  # named after the function
        def forward(batch): ...

    The range also ends if the block or function raises an exception. A generator or coroutine gets one range for each
    time it is resumed, so the time while it is suspended is not included.

    An object can be entered many times, also by several threads at once. nvtx keeps every name and payload until the
    process ends: use thousands of different ones, not millions.

    Inside a function for torch.compile, create the object in the `with` statement. An object created outside causes a
    graph break, because TorchDynamo cannot enter it.

    Args:
        name: the name of the range; None for the qualified name of the decorated function.
        color: one of `COLORS`, such as "green", or 0xAARRGGBB.
        domain: the NVTX domain; None for the default domain, which torch.cuda.nvtx also uses.
        category: a name or number that groups ranges in a domain.
        payload: a number shown with the range, such as a batch size.
    """

    __slots__ = ("_attributes", "_live", "_name", "_range")

    def __init__(
        self,
        name: str | None = None,
        *,
        color: str | int | None = None,
        domain: str | None = None,
        category: str | int | None = None,
        payload: float | None = None,
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise TypeError(f"the name of a range is {name!r}: write @annotate(), with parentheses, above a function")
        self._name, self._attributes = name, (color, domain, category, payload)
        self._range: AbstractContextManager[Any] | None = None
        self._live = not _is_traced()
        if color is not None and self._live:
            _check_color(color)
        if nvtx is not None and self._live:
            if payload is None:
                self._range = _kept_range(nvtx, name or "", color, domain, category)
            else:
                self._range = nvtx.annotate(name or "", color, domain, category, payload)

    def __enter__(self) -> annotate:
        if self._range is not None:
            self._range.__enter__()
        if self._live and (profiler := sys.modules.get("torch.autograd.profiler")) and profiler._is_profiler_enabled:
            _push_record_function(self._name or "")
        return self

    def __exit__(self, *_raised: object) -> None:
        if self._range is not None:
            self._range.__exit__(None, None, None)
        if self._live and _opened.functions:
            _opened.functions.pop().__exit__(None, None, None)

    def __call__(self, function: AnyFunction) -> AnyFunction:
        """Return `function` with a range around each call.

        It may be a static method, a class method, a property, a `functools.partial` or another callable object.

        Raises:
            TypeError: `function` is a class or an asynchronous generator, whose methods or blocks can be annotated; or
                it is not callable.
        """
        if isinstance(function, staticmethod | classmethod):
            return cast(AnyFunction, type(function)(self(function.__func__)))
        if isinstance(function, property):
            getter, setter, deleter = (part and self(part) for part in (function.fget, function.fset, function.fdel))
            return cast(AnyFunction, property(getter, setter, deleter, function.__doc__))  # type: ignore[arg-type]
        name, called = _called_function(function)
        if inspect.isclass(function) or not callable(function):
            remedy = "a class: annotate its methods" if inspect.isclass(function) else "not callable"
            raise TypeError(f"{name} is {remedy}")
        if inspect.isasyncgenfunction(called):
            raise TypeError(f"{name} is an asynchronous generator: annotate blocks inside it")
        range_ = self if self._name is not None else self._with_name(name)
        if inspect.iscoroutinefunction(called):
            return cast(AnyFunction, _annotate_coroutine(range_, function))
        if inspect.isgeneratorfunction(called):
            return cast(AnyFunction, _annotate_generator(range_, function))
        return cast(AnyFunction, _annotate_function(range_, function))

    def _with_name(self, name: str) -> annotate:
        color, domain, category, payload = self._attributes
        return annotate(name, color=color, domain=domain, category=category, payload=payload)


def phase(name: str, *, color: str | int | None = None, payload: float | None = None) -> annotate:
    """Return a range for one phase of a training step: an `annotate` in the category "phase".

        with phase("forward"):
            loss = model(batch)

    Args:
        name: the phase, such as "data_load", "h2d", "forward", "backward" or "optimizer".
        color: as in `annotate`.
        payload: as in `annotate`.
    """
    if payload is None and not _is_traced():
        return _kept_phase(nvtx, name, color)
    return annotate(name, color=color, category="phase", payload=payload)


@contextmanager
def annotate_collections() -> Iterator[None]:
    """Put a range around each garbage collection while the block runs: "gc generation 2".

    The range is on the thread that collects, so `traceview` shows how long a GPU waits for collections.
    """
    own = [annotate(f"gc generation {generation}") for generation in range(len(gc.get_threshold()))]

    def on_collection(when: str, info: Mapping[str, int]) -> None:
        collection = own[min(info["generation"], len(own) - 1)]
        if when == "start":
            collection.__enter__()
        else:
            collection.__exit__()

    gc.callbacks.append(on_collection)
    try:
        yield
    finally:
        gc.callbacks.remove(on_collection)


def iteration_name(step: int) -> str:
    """Return the range name of a training step, counted from 0: "iteration 7".

    Numbers start again at 0 after `MAX_ITERATION_NAMES` steps, because nvtx keeps every name until the process ends.
    """
    return f"iteration {step % MAX_ITERATION_NAMES}"


def flops_name(flops: int) -> str:
    """Return the name of the mark from which `traceview` reads a step's floating-point operations on one GPU."""
    return f"flops_per_iteration: {flops}"


def mark(
    name: str,
    *,
    color: str | int | None = None,
    domain: str | None = None,
    category: str | int | None = None,
    payload: float | None = None,
) -> None:
    """Add an NVTX mark at the current time. The arguments are those of `annotate`."""
    if color is not None:
        _check_color(color)
    if nvtx is not None and not _is_traced():
        nvtx.mark(name, color, domain, category, payload)


def _check_color(color: str | int) -> None:
    if color not in COLORS and not isinstance(color, int):
        raise ValueError(f"the color {color!r} is unknown: use one of {', '.join(COLORS)}, or 0xAARRGGBB")


def _called_function(function: Any) -> tuple[str, Any]:
    """Return the name of a callable, and the function that a call of it runs."""
    while isinstance(function, functools.partial):
        function = function.func
    if hasattr(function, "__qualname__"):
        return function.__qualname__, function
    return type(function).__qualname__, inspect.getattr_static(type(function), "__call__", None)


# Making a range takes longer than entering it, so ranges without a payload are kept. `nvtx` is part of the key.
@functools.lru_cache(maxsize=MAX_KEPT_RANGES)
def _kept_range(nvtx: Any, name: str, *attributes: str | int | None) -> AbstractContextManager[Any]:
    made: AbstractContextManager[Any] = nvtx.annotate(name, *attributes, None)
    return made


@functools.lru_cache(maxsize=MAX_KEPT_RANGES)
def _kept_phase(_nvtx: Any, name: str, color: str | int | None) -> annotate:
    return annotate(name, color=color, category="phase")


class _Opened(threading.local):
    """The ranges of this thread that torch.profiler has got and that are open."""

    def __init__(self) -> None:
        self.functions: list[Any] = []


_opened = _Opened()


def _push_record_function(name: str) -> None:
    torch: Any = sys.modules["torch"]
    if torch._C._autograd._profiler_type() == torch._C._profiler.ActiveProfilerType.NVTX:
        return  # emit_nvtx would make a second NVTX range
    opened = torch.autograd.profiler.record_function(name)
    opened.__enter__()
    _opened.functions.append(opened)


def _is_traced() -> bool:
    """Return whether TorchDynamo traces the caller. TorchDynamo replaces the call by a constant."""
    # torch.compiler.is_compiling() is true on all threads while one compiles, so another thread could open a range
    # and not close it.
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_dynamo_compiling()


def _annotate_function(range_: annotate, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_traced():
            return function(*args, **kwargs)
        with range_:
            return function(*args, **kwargs)

    return call


def _annotate_generator(range_: annotate, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        if _is_traced():
            return (yield from function(*args, **kwargs))
        return (yield from _AnnotatedResumptions(range_, function(*args, **kwargs)))

    return call


def _annotate_coroutine(range_: annotate, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await _AnnotatedResumptions(range_, function(*args, **kwargs))

    return call


class _AnnotatedResumptions(Generator[Any, Any, Any], Awaitable[Any]):
    """A generator or coroutine with a range around each resumption, for `yield from` and `await`."""

    __slots__ = ("_range", "_wrapped")

    def __init__(self, range_: annotate, wrapped: Suspendable) -> None:
        self._range, self._wrapped = range_, wrapped

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def send(self, value: Any) -> Any:
        with self._range:
            return self._wrapped.send(value)

    def throw(self, *raised: Any) -> Any:
        with self._range:
            return self._wrapped.throw(*raised)

    def close(self) -> None:
        with self._range:
            self._wrapped.close()
