"""Runs functions over the parts of a capture, one after another or in worker processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import polars as pl

from traceview.engine.part import PartTrace, Passed, Result, has_room
from traceview.model.trace import Trace, Window

if TYPE_CHECKING:
    from traceview.workers.processes import Processes

DERIVED_SHARE = 2  # bytes of a part for each byte of its trace


class CaptureSource(Protocol):
    """A capture that returns the trace of any time window."""

    @property
    def resident(self) -> Trace:
        """The small tables of the trace."""

    def trace(self, window: Window) -> Trace:
        """Return the trace of a window."""


class TraceInMemory(NamedTuple):
    """A complete trace as the source of parts."""

    complete: Trace

    @property
    def resident(self) -> Trace:
        """The trace without operations and calls."""
        return replace(self.complete, operations=self.complete.operations.clear(), api=self.complete.api.clear())

    def trace(self, window: Window) -> Trace:
        """Return the complete trace with this window."""
        return self.complete.with_window(window)


class PartRunner:
    """Runs functions of a part in this process, one part after another.

    Parts are kept for the next function while their traces take at most `keep_bytes` together. The others are kept as
    files in `folder`: reading these takes a tenth of the time. Without a folder, or if its disk is full, the parts are
    read from the export again.
    """

    def __init__(
        self, source: CaptureSource, windows: Sequence[Window], keep_bytes: int = 0, folder: Path | None = None
    ) -> None:
        """Prepare the parts of a capture; `windows` adjoin, in the order of time."""
        self.source, self.windows, self.keep_bytes, self.folder = source, windows, keep_bytes, folder
        self.count = len(windows)
        self.kept: dict[int, PartTrace] = {}

    def over_parts(self, function: Callable[[PartTrace], Result]) -> Iterator[Result]:
        """Yield the results for all parts in the order of time."""
        return (self.in_part(number, function) for number in range(len(self.windows)))

    def in_part(self, number: int, function: Callable[[PartTrace], Result]) -> Result:
        """Return the result for one part."""
        return function(self.kept.get(number) or self._part(number))

    def _part(self, number: int) -> PartTrace:
        file = None if self.folder is None else self.folder / f"{number}.trace"
        if file is not None and file.exists():
            return PartTrace(_read_trace(file, self.source.resident), Passed(file))
        part = PartTrace(self.source.trace(self.windows[number]))
        if (size := _size(part.trace)) <= self.keep_bytes:
            self.keep_bytes -= size
            self.kept[number] = part
        elif file is not None and has_room(file, size):
            _write_trace(part.trace, file, self.source.resident)
            part.passed = Passed(file)
        return part


def _size(trace: Trace) -> int:
    """Return the bytes of a part: of the frames that grow with its window, and of what passes derive from them."""
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
    """Return a frame, compressed to about a quarter: then the system's cache can hold the files of most parts."""
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
    """Runs functions of a part in worker processes. Each process has parts of its own, which it may keep."""

    def __init__(self, runner: PartRunner, workers: Processes) -> None:
        """Send `runner` to the processes: it has the parts, and the bytes that each process may keep."""
        self.count, self.workers = len(runner.windows), workers
        workers.in_each(_keep_runner, runner)

    def over_parts(self, function: Callable[[PartTrace], Result]) -> Iterator[Result]:
        """Yield the results for all parts in the order of time. All parts begin at once."""
        return self.workers.in_order(partial(_run_in_worker, function), range(self.count))

    def in_part(self, number: int, function: Callable[[PartTrace], Result]) -> Result:
        """Return the result for one part."""
        future: Future[Result] = self.workers.submit_to(number, _run_in_worker, function, number)
        return self.workers.result(future)


_runner: PartRunner | None = None


def _keep_runner(runner: PartRunner) -> None:
    """Keep the parts in a worker process."""
    global _runner
    _runner = runner


def _run_in_worker(function: Callable[[PartTrace], Result], number: int) -> Result:
    assert _runner is not None, "the process has parts"
    return _runner.in_part(number, function)
