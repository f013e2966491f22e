"""Runs functions over the slices of a capture, one after another or in worker processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from traceview.model.trace import Trace, Window
from traceview.slices.slice import Passed, Result, Slice, has_room

if TYPE_CHECKING:
    from traceview.workers.processes import Processes

DERIVED_SHARE = 2  # bytes of a slice for each byte of its trace


class CaptureSource(Protocol):
    """A capture that returns the trace of any time window."""

    @property
    def resident(self) -> Trace:
        """The small tables of the trace."""

    def trace(self, window: Window) -> Trace:
        """Return the trace of a window."""


@dataclass(frozen=True, slots=True)
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
    files in `folder`: reading these takes a tenth of the time. Without a folder, or if its disk is full, the slices are
    read from the export again.
    """

    def __init__(
        self, source: CaptureSource, windows: Sequence[Window], keep_bytes: int = 0, folder: Path | None = None
    ) -> None:
        """Prepare the slices of a capture; `windows` adjoin, in the order of time."""
        self.source, self.windows, self.keep_bytes, self.folder = source, windows, keep_bytes, folder
        self.count = len(windows)
        self.kept: dict[int, Slice] = {}

    def over_slices(self, function: Callable[[Slice], Result]) -> Iterator[Result]:
        """Yield the results for all slices in the order of time."""
        return (self.in_slice(number, function) for number in range(len(self.windows)))

    def in_slice(self, number: int, function: Callable[[Slice], Result]) -> Result:
        """Return the result for one slice."""
        return function(self.kept.get(number) or self._slice(number))

    def _slice(self, number: int) -> Slice:
        file = None if self.folder is None else self.folder / f"{number}.trace"
        if file is not None and file.exists():
            return Slice(_read_trace(file, self.source.resident), Passed(file))
        part = Slice(self.source.trace(self.windows[number]))
        if (size := _size(part.trace)) <= self.keep_bytes:
            self.keep_bytes -= size
            self.kept[number] = part
        elif file is not None and has_room(file, size):
            _write_trace(part.trace, file, self.source.resident)
            part.passed = Passed(file)
        return part


def _size(trace: Trace) -> int:
    """Return the bytes of a slice: of the frames that grow with its window, and of what passes derive from them."""
    frames = trace.operations, trace.api, trace.stream_events
    return DERIVED_SHARE * sum(int(frame.estimated_size()) for frame in frames)


def _write_trace(trace: Trace, file: Path, resident: Trace) -> None:
    """Write a trace to a file, without the frames that it shares with `resident`."""
    shared = {id(frame): field.name for field in fields(Trace) if (frame := getattr(resident, field.name)) is not None}

    class Pickler(pickle.Pickler):
        def persistent_id(self, item: Any) -> str | None:
            return shared.get(id(item))

        def reducer_override(self, item: Any) -> Any:
            return (_read_frame, (_compressed(item),)) if isinstance(item, pl.DataFrame) else NotImplemented

    with file.open("xb") as output:
        Pickler(output, pickle.HIGHEST_PROTOCOL).dump(trace)


def _compressed(frame: pl.DataFrame) -> bytes:
    """Return a frame, compressed to about a quarter: then the system's cache can hold the files of most slices."""
    content = BytesIO()
    frame.write_ipc_stream(content, compression="zstd")
    return content.getvalue()


def _read_frame(content: bytes) -> pl.DataFrame:
    return pl.read_ipc_stream(content)


def _read_trace(file: Path, resident: Trace) -> Trace:
    """Return the trace that this program wrote to a file in a folder that no other user can write to."""

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, name: str) -> Any:
            return getattr(resident, name)

    with file.open("rb") as content:
        trace: Trace = Unpickler(content).load()
    # polars returns a long frame in pieces, and would join the pieces of a column at each access.
    return replace(trace, operations=trace.operations.rechunk(), api=trace.api.rechunk())


class ProcessRunner:
    """Runs functions of a slice in worker processes. Each process has slices of its own, which it may keep."""

    def __init__(self, runner: SliceRunner, workers: Processes) -> None:
        """Send `runner` to the processes: it has the slices, and the bytes that each process may keep."""
        self.count, self.workers = len(runner.windows), workers
        workers.in_each(_keep_runner, runner)

    def over_slices(self, function: Callable[[Slice], Result]) -> Iterator[Result]:
        """Yield the results for all slices in the order of time. All slices begin at once."""
        return self.workers.in_order(partial(_run_in_worker, function), range(self.count))

    def in_slice(self, number: int, function: Callable[[Slice], Result]) -> Result:
        """Return the result for one slice."""
        future: Future[Result] = self.workers.submit_to(number, _run_in_worker, function, number)
        return self.workers.result(future)


_runner: SliceRunner | None = None


def _keep_runner(runner: SliceRunner) -> None:
    """Keep the slices in a worker process."""
    global _runner
    _runner = runner


def _run_in_worker(function: Callable[[Slice], Result], number: int) -> Result:
    assert _runner is not None, "the process has slices"
    return _runner.in_slice(number, function)
