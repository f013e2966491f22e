"""A part of a capture, and the runner of functions over all parts.

A part is its trace, and what several passes over parts derive from it. Functions run over the parts one after another
or in worker processes.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from functools import cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.measure.activity import Activity, device_activity
from traceview.measure.devices import clip_gaps
from traceview.measure.gaps import IdleGaps, ThreadStates, attribute, device_gaps
from traceview.measure.host import HostIdle
from traceview.measure.nvtx import Projection, project_operations
from traceview.model.analysis import CAUSES, Gaps
from traceview.model.trace import EVERYTHING, Trace, Window

if TYPE_CHECKING:
    from traceview.workers.processes import Processes


FIRST, LAST = EVERYTHING.start, EVERYTHING.end  # the first part begins before, and the last ends after, any event

# Operations of each device, and calls of each thread, on each side of a part: chains of kernels cross its borders.
NEIGHBOURS = 128
MIN_FREE_DISK = 2_000_000_000  # bytes that files of traces leave free

Result = TypeVar("Result")
Made = TypeVar("Made")


class Passed(NamedTuple):
    """What one pass over parts leaves for later passes, by name: small results that take long to compute.

    It is in files beside `file`, that of the part's trace, where no other user can write. Without a file nothing is
    passed on: a part that is kept still has its results.
    """

    file: Path | None = None

    def get(self, name: str) -> Any:
        """Return what was left; None without it."""
        path = self.file and self.file.with_suffix(f".{name}")
        return pickle.loads(path.read_bytes()) if path and path.exists() else None

    def __setitem__(self, name: str, value: Any) -> None:
        """Leave a value, or replace it."""
        if self.file is not None:
            content = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
            if has_room(self.file, len(content)):
                self.file.with_suffix(f".{name}").write_bytes(content)


def has_room(file: Path, size: int) -> bool:
    """Return whether the disk of a file has room for `size` more bytes."""
    return shutil.disk_usage(file.parent).free - size > MIN_FREE_DISK


NOTHING_PASSED = Passed()


class PartTrace:
    """The trace of a part, whose window is that of the part. Derived parts are made once, when they are needed.

    `passed` has what earlier passes left.
    """

    def __init__(self, trace: Trace, passed: Passed = NOTHING_PASSED) -> None:
        self.trace, self.passed = trace, passed
        self._made: dict[Hashable, tuple[Hashable, Any]] = {}
        self._gaps: dict[int, tuple[Window, Gaps]] = {}

    def once(self, key: Hashable, make: Callable[[], Made], about: Hashable = None) -> Made:
        """Return what `make` returned at the last call with this key, or make it anew if `about` has changed."""
        if key not in self._made or self._made[key][0] != about:
            self._made[key] = about, make()
        made: Made = self._made[key][1]
        return made

    def once_for_all_passes(self, name: str, make: Callable[[], Made], about: Hashable) -> Made:
        """Return what `once` returns, or what an earlier pass made `about` the same."""

        def make_or_read() -> Made:
            known: tuple[Hashable, Made] | None = self.passed.get(name)
            if known is None or known[0] != about:
                known = about, make()
                self.passed[name] = known
            return known[1]

        return self.once(name, make_or_read, about)

    def forget(self, key: Hashable) -> None:
        """Free what `once` made with this key."""
        self._made.pop(key, None)

    @cached_property
    def complete(self) -> Trace:
        """The trace without its window: it has operations around the part."""
        return replace(self.trace, window=None)

    def work(self, device: int) -> Activity | None:
        """Return the work of a device, also around the part; None if it has none."""
        return device_activity(self.complete, device)

    def keep_gaps(self, device: int, window: Window, gaps: Gaps) -> None:
        """Keep the measured gaps of a device in the part of its time that the part has, for later passes."""
        self._gaps[device] = window, gaps

    def gaps(self, work: Activity) -> Gaps:
        """Return the gaps of a device in a part of its time."""
        window, known = self._gaps.get(work.device, (None, None))
        if window is None or known is None or work.window.within(window) != work.window:
            return device_gaps(self.trace, self.idle_gaps(work))
        return known if window == work.window else clip_gaps(self.trace, self.threads, known, work.window)

    def idle_gaps(self, work: Activity) -> IdleGaps:
        """Return the gaps of a device in a part of its time. Gaps that an earlier pass attributed keep their causes."""
        gaps, operation = work.idle_gaps()
        known = self._known_causes(work.device)
        if known is None:
            causes = attribute(self.trace, self.threads, gaps.start, gaps.end, operation)
        else:
            causes = np.zeros((len(CAUSES), len(gaps.start)), np.int64)
            new = self._fill_known(causes, work, *known)
            if len(new):  # the states of threads take long to collect
                causes[:, new] = attribute(self.trace, self.threads, gaps.start[new], gaps.end[new], operation[new])
        is_new = work.device not in self._gaps and (known is None or known[0] != work.window)
        if is_new and self.passed.file is not None:
            occurring = np.flatnonzero(causes.any(axis=1)).tolist()
            self.passed[f"causes {work.device}"] = work.window, {code: _narrow(causes[code]) for code in occurring}
        return IdleGaps(gaps, operation, causes)

    def _known_causes(self, device: int) -> tuple[Window, Mapping[int, Times]] | None:
        """Return the time in which the causes of a device's gaps are known, and the ns of each by code."""
        if device in self._gaps:
            window, gaps = self._gaps[device]
            codes = (code for code, cause in enumerate(CAUSES) if gaps.causes[cause])
            return window, {code: gaps.frame[CAUSES[code]].to_numpy() for code in codes}
        known: tuple[Window, dict[int, Times]] | None = self.passed.get(f"causes {device}")
        return known

    def _fill_known(self, causes: NDArray[np.int64], work: Activity, part: Window, known: Mapping[int, Times]) -> Times:
        """Fill in the causes of gaps that are known from another part of the device's time; return the other gaps."""
        gaps, operation = work.idle_gaps()
        whole, count = self.work(work.device), len(gaps.start)
        if whole is None or count == 0:
            return np.arange(count)
        (start, end), ended_by = whole.clip(part).idle_gaps()
        # The parts differ in the gaps at their edges, so the second gap tells by how many rows they are apart.
        shift = int(np.searchsorted(end, gaps.end[:2])[-1]) - min(count, 2) + 1
        own = slice(max(-shift, 0), min(count, len(end) - shift))
        there = slice(own.start + shift, own.stop + shift)
        same = (start[there] == gaps.start[own]) & (end[there] == gaps.end[own]) & (ended_by[there] == operation[own])
        for code, ns in known.items():
            causes[code, own] = ns[there]
        return np.append(np.flatnonzero(~same) + own.start, np.delete(np.arange(count), own))

    @cached_property
    def projection(self) -> Projection:
        """The ranges of each operation (see project_operations)."""
        return project_operations(self.trace)

    @property
    def threads(self) -> ThreadStates:
        """What the host threads do (see ThreadStates)."""
        return self.once("threads", partial(ThreadStates.from_trace, self.trace))

    @cached_property
    def host_idle(self) -> HostIdle | None:
        """What the host does while devices are idle (see HostIdle); None if nothing shows it."""
        return HostIdle.build(self.trace, self.threads) if self.trace.evidence.shows_idle_host else None


def _narrow(ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return lengths in the narrowest type."""
    return ns if ns.min(initial=0) < 0 else ns.astype(np.min_scalar_type(int(ns.max(initial=0))))


class Runner(Protocol):
    """Runs functions over the parts of a capture."""

    count: int

    def over_parts(
        self, function: Callable[[PartTrace], Result], numbers: Sequence[int] | None = None, /
    ) -> Iterable[Result]:
        """Return the results for all parts, or those with these numbers, in this order."""

    def in_part(self, number: int, function: Callable[[PartTrace], Result], /) -> Result:
        """Return the result for the part with this number, from 0 in the order of time."""


class OverParts(Protocol):
    """Runs a function over all parts."""

    def __call__(self, function: Callable[[PartTrace], Result], /) -> Iterable[Result]:
        """Return the results in the order of time."""


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

    def over_parts(
        self, function: Callable[[PartTrace], Result], numbers: Sequence[int] | None = None
    ) -> Iterator[Result]:
        """Yield the results for all parts in the order of time, or for those with these numbers."""
        return (self.in_part(number, function) for number in (range(self.count) if numbers is None else numbers))

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
            return (pl.read_ipc_stream, (_compressed(item),)) if isinstance(item, pl.DataFrame) else NotImplemented

    with file.open("xb") as output:
        Pickler(output, pickle.HIGHEST_PROTOCOL).dump(trace)


def _compressed(frame: pl.DataFrame) -> bytes:
    """Return a frame, compressed to about a quarter: then the system's cache can hold the files of most parts."""
    content = BytesIO()
    frame.write_ipc_stream(content, compression="zstd")
    return content.getvalue()


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

    def over_parts(
        self, function: Callable[[PartTrace], Result], numbers: Sequence[int] | None = None
    ) -> Iterator[Result]:
        """Yield the results for all parts in the order of time, or for those with these numbers. All begin at once."""
        return self.workers.in_order(
            partial(_run_in_worker, function), range(self.count) if numbers is None else numbers
        )

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
