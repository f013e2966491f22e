"""Runs functions over the slices of a capture, one after another or in worker processes."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from traceview.allocators import limit_memory_and_threads
from traceview.errors import RequestError
from traceview.frozen import frozen
from traceview.model.trace import Trace, Window
from traceview.slices.slice import Result, Slice

THREADS = "POLARS_MAX_THREADS"
MIN_FREE_DISK = 2_000_000_000  # bytes that files of traces leave free


class CaptureSource(Protocol):
    """A capture of which the trace of any time window can be had."""

    @property
    def resident(self) -> Trace:
        """The small tables of the trace."""

    def trace(self, window: Window) -> Trace:
        """Return the trace of a window."""


@frozen
class TraceInMemory:
    """A complete trace as the source of slices."""

    complete: Trace

    @property
    def resident(self) -> Trace:
        """The trace without operations and calls."""
        return replace(self.complete, operations=self.complete.operations.clear(), api=self.complete.api.clear())

    def trace(self, window: Window) -> Trace:
        """Return the complete trace with this window."""
        return self.complete.with_window(window)


class SliceRunner:
    """Runs functions of a slice in this process, one slice after another.

    Slices are kept for the next function while their traces take at most `keep_bytes` together. The others are kept as
    files in `folder`, which is a tenth of the work of reading them again; without a folder, or where its disk is full,
    they are read again.
    """

    def __init__(
        self, source: CaptureSource, windows: Sequence[Window], keep_bytes: int = 0, folder: Path | None = None
    ) -> None:
        """Prepare the slices of a capture; `windows` adjoin, in the order of time."""
        self.source, self.windows, self.keep_bytes, self.folder = source, windows, keep_bytes, folder
        self.kept: dict[int, Slice] = {}

    def over_slices(self, function: Callable[[Slice], Result]) -> Iterator[Result]:
        """Yield the results for all slices in the order of time."""
        return (self.in_slice(number, function) for number in range(len(self.windows)))

    def in_slices(self, calls: Iterable[tuple[int, Callable[[Slice], Result]]]) -> Iterator[Result]:
        """Yield the results of functions of single slices, each with the number of its slice."""
        return (self.in_slice(number, function) for number, function in calls)

    def in_slice(self, number: int, function: Callable[[Slice], Result]) -> Result:
        """Return the result for one slice."""
        return function(self.kept.get(number) or self._slice(number))

    def _slice(self, number: int) -> Slice:
        file = None if self.folder is None else self.folder / f"{number}.trace"
        if file is not None and file.exists():
            return Slice(_read_trace(file, self.source.resident))
        part = Slice(self.source.trace(self.windows[number]))
        if (size := _size(part.trace)) <= self.keep_bytes:
            self.keep_bytes -= size
            self.kept[number] = part
        elif file is not None and shutil.disk_usage(file.parent).free - size > MIN_FREE_DISK:
            _write_trace(part.trace, file, self.source.resident)
        return part


def _size(trace: Trace) -> int:
    """Return the bytes of the frames of a trace that grow with its window."""
    return int(trace.operations.estimated_size() + trace.api.estimated_size() + trace.stream_events.estimated_size())


def _write_trace(trace: Trace, file: Path, resident: Trace) -> None:
    """Write a trace to a file, without the frames that it shares with `resident`."""
    shared = {id(frame): field.name for field in fields(Trace) if (frame := getattr(resident, field.name)) is not None}

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> str | None:
            return shared.get(id(item)) if isinstance(item, pl.DataFrame) else None

    with file.open("xb") as output:
        Pickler(output, pickle.HIGHEST_PROTOCOL).dump(trace)


def _read_trace(file: Path, resident: Trace) -> Trace:
    """Return the trace that this program wrote to a file in a folder that no other user can write to."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, name: str) -> Any:
            return getattr(resident, name)

    with file.open("rb") as trace:
        return Unpickler(trace).load()  # type: ignore[no-any-return]


class ProcessRunner:
    """Runs functions of a slice in worker processes. Each process has slices of its own.

    The processes get `runner` and each function once; results are sent back. They are new processes, not copies of
    this one, whose threads may hold locks.
    """

    def __init__(self, runner: SliceRunner, workers: int) -> None:
        """Prepare `workers` processes; `runner` has the slices, and the bytes that each process may keep."""
        self.count, context = len(runner.windows), get_context("spawn")
        self.pools = [ProcessPoolExecutor(1, context, _keep_runner, (runner,)) for _ in range(workers)]

    def __enter__(self) -> ProcessRunner:
        # New processes inherit it. The processes share the processors.
        self.threads = os.environ.get(THREADS)
        os.environ[THREADS] = str(max((os.cpu_count() or 1) // len(self.pools), 1))
        return self

    def __exit__(self, *_error: object) -> None:
        os.environ.pop(THREADS)
        if self.threads is not None:
            os.environ[THREADS] = self.threads
        for pool in self.pools:
            pool.shutdown(cancel_futures=True)

    def over_slices(self, function: Callable[[Slice], Result]) -> Iterator[Result]:
        """Yield the results for all slices in the order of time. All slices begin at once."""
        content = pickle.dumps(function, pickle.HIGHEST_PROTOCOL)
        for pool in self.pools[: self.count]:
            pool.submit(_keep_function, content)
        futures = [self._pool(number).submit(_run_kept, number) for number in range(self.count)]
        futures.reverse()  # a result is freed as soon as the caller has it
        return (_result(futures.pop()) for _ in range(self.count))

    def in_slices(self, calls: Iterable[tuple[int, Callable[[Slice], Result]]]) -> Iterator[Result]:
        """Yield the results of functions of single slices, each with the number of its slice. All begin at once."""
        futures = [self._pool(number).submit(_run_in_worker, number, function) for number, function in calls]
        return (_result(future) for future in futures)

    def in_slice(self, number: int, function: Callable[[Slice], Result]) -> Result:
        """Return the result for one slice."""
        return _result(self._pool(number).submit(_run_in_worker, number, function))

    def _pool(self, number: int) -> ProcessPoolExecutor:
        """Return the process that has a slice, and may have kept its trace."""
        return self.pools[number % len(self.pools)]


def _result(future: Future[Result]) -> Result:
    try:
        return future.result()
    except BrokenProcessPool:
        raise RequestError("a process that measures slices died, probably out of memory; use less --memory") from None


_runner: SliceRunner | None = None
_function: Callable[[Slice], Any] | None = None


def _keep_runner(runner: SliceRunner) -> None:
    """Keep the slices in a worker process, which has the memory settings of the command."""
    limit_memory_and_threads()
    global _runner
    _runner = runner


def _keep_function(content: bytes) -> None:
    """Keep the function of the calls of _run_kept that follow; a process runs its calls in order."""
    global _function
    _function = pickle.loads(content)


def _run_kept(number: int) -> Any:
    assert _function is not None, "the process has a function"
    return _run_in_worker(number, _function)


def _run_in_worker(number: int, function: Callable[[Slice], Result]) -> Result:
    assert _runner is not None, "the process has slices"
    return _runner.in_slice(number, function)
