"""What a DataLoader can do: the batches a second that its workers can make, and how often none was ready.

A worker adds the time in which it makes a batch to memory that it shares with the training process, so the capacity is
known also while the workers wait for the training. Without workers, the training process makes the batches itself.

    gauge = LoaderGauge()
    for batch in gauge.watched(loader):
        ...
    print(gauge.counts.batches_per_s, gauge.counts.empty_fraction)
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.sharedctypes import RawArray
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data._utils import fetch

from instrument.monitor.metrics import LoaderCounts

WINDOW = 50  # steps whose figures a mark states
MARKS = {"workers": "loader_workers", "batches_per_s": "loader_batches_per_s", "empty": "loader_queue_empty_percent"}


class WorkerTimes:
    """A `worker_init_fn` that lets each worker count the batches that it makes, and their time.

    Args:
        workers: the number of workers.
        init: the loader's own `worker_init_fn`.
    """

    def __init__(self, workers: int, init: Callable[[int], None] | None) -> None:
        self.workers, self._init = workers, init
        self._shared: Any = RawArray("q", 2 * workers)  # made, busy_ns of each worker, which alone writes them
        self._seen = (0, 0)

    def __call__(self, worker: int) -> None:
        """Count in this process, which is a worker, from now on."""
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            setattr(fetcher, "fetch", self._counting(fetcher.fetch, worker))  # noqa: B010 - a method, for mypy
        if self._init is not None:
            self._init(worker)

    def latest(self) -> tuple[int, int]:
        """Return the batches and the nanoseconds that the workers counted since the last call."""
        now, before = (sum(self._shared[0::2]), sum(self._shared[1::2])), self._seen
        self._seen = now
        return now[0] - before[0], now[1] - before[1]

    def _counting(self, function: Callable[..., Any], worker: int) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            start = time.perf_counter_ns()
            made = function(*args)
            self._shared[2 * worker] += 1
            self._shared[2 * worker + 1] += time.perf_counter_ns() - start
            return made

        return call


class LoaderGauge:
    """Counts what the DataLoaders of a training do.

    Attributes:
        counts: what was counted so far.
    """

    def __init__(self) -> None:
        self.counts = LoaderCounts()
        self._recent: deque[LoaderCounts] = deque([self.counts], maxlen=WINDOW)
        self._started_ns, self._was_empty = 0, False

    @contextmanager
    def opening(self, loader: Any) -> Iterator[None]:
        """Let the workers that a loader starts in this block count."""
        if not (isinstance(loader, DataLoader) and loader.num_workers):
            yield
            return
        init = loader.worker_init_fn
        loader.worker_init_fn = WorkerTimes(loader.num_workers, init)
        try:
            yield
        finally:
            loader.worker_init_fn = init

    def watched(self, loader: Any) -> Iterator[Any]:
        """Return an iterator over a loader that counts; of an iterable that is no DataLoader, its own iterator."""
        with self.opening(loader):
            batches = iter(loader)
        return _WatchedBatches(self, batches) if isinstance(loader, DataLoader) else batches

    def begin(self, batches: Any) -> None:
        """Note that the training requests a batch; `batches` is the iterator of a DataLoader."""
        queue = getattr(batches, "_data_queue", None)
        # Batches that arrived before their turn are in _task_info, with their place.
        early = queue is not None and len(batches._task_info.get(batches._rcvd_idx, ())) > 1
        self._was_empty = queue is None or (queue.empty() and not early)
        self._started_ns = time.perf_counter_ns()

    def end(self, batches: Any) -> None:
        """Note that it arrived."""
        times = getattr(batches, "_worker_init_fn", None)
        workers, made = 0, (1, time.perf_counter_ns() - self._started_ns)
        if isinstance(times, WorkerTimes):
            workers, made = times.workers, times.latest()
        elif hasattr(batches, "_data_queue"):
            workers, made = batches._num_workers, (0, 0)
        before = self.counts
        self.counts = LoaderCounts(
            workers,
            before.requests + 1,
            before.empty + self._was_empty,
            before.made + made[0],
            before.busy_ns + made[1],
        )

    def marks(self) -> list[str]:
        """Return the names of a step's marks, from which a reader of captures knows the last `WINDOW` steps.

        Two digits are enough, and give few different names: nvtx keeps each until the process ends.
        """
        recent = self.counts.plus(self._recent[0], -1)
        self._recent.append(self.counts)
        rate, empty = recent.batches_per_s, recent.empty_fraction
        if rate is None or empty is None:
            return []
        values = {"workers": recent.workers, "batches_per_s": float(f"{rate:.2g}"), "empty": round(100 * empty)}
        return [f"{MARKS[name]}: {value:g}" for name, value in values.items()]


class _WatchedBatches(Iterator[Any]):
    """Unlike a generator it continues after an exception, with the next batch."""

    def __init__(self, gauge: LoaderGauge, batches: Iterator[Any]) -> None:
        self._gauge, self._batches = gauge, batches

    def __next__(self) -> Any:
        self._gauge.begin(self._batches)
        batch = next(self._batches)
        self._gauge.end(self._batches)
        return batch
