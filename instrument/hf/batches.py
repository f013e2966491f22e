"""The batches of an epoch of a Trainer, and the ranges of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import chain, islice
from statistics import median
from time import perf_counter_ns
from typing import Any

from instrument.prefetch import PrefetchLoader
from instrument.ranges import DATA_LOAD, annotate, iteration_name, phase
from instrument.streams import Stream

STEP_MS = "perf/step_ms"


class StepRanges:
    """The open range `iteration N` of a loop, with at most one phase inside it, and the times of the steps."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._iteration, self._phase = ExitStack(), ExitStack()
        self._began_at = 0
        self._durations: list[int] = []

    def begin(self, step: int) -> None:
        """Start a step, which ends the one before. Do nothing if `step` has begun already."""
        if step == self._step:
            return
        now = perf_counter_ns()
        if self._step is not None:
            self._durations.append(now - self._began_at)
        self.close()
        self._step, self._began_at = step, now
        self._iteration.enter_context(annotate(iteration_name(step)))

    def enter(self, name: str) -> None:
        """Open a phase, and close the open one."""
        self.leave()
        self._phase.enter_context(phase(name))

    def leave(self) -> None:
        """Close the open phase, if there is one."""
        self._phase.close()

    def close(self) -> None:
        """Close all ranges."""
        self.leave()
        self._iteration.close()
        self._step = None

    def figures(self) -> dict[str, float]:
        """Return perf/step_ms, the median host time of the steps since the last call; empty if none has ended."""
        durations, self._durations = self._durations, []
        return {STEP_MS: median(durations) / 1e6} if durations else {}


class StockBatches:
    """The batches of an epoch, read as the stock Trainer reads them, with a range around each read."""

    def __init__(self, source: Iterator[Any]) -> None:
        self.source = source
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._read()
        except StopIteration:
            self.ended = True
            raise

    def _read(self) -> Any:
        with phase(DATA_LOAD):
            return next(self.source)

    def close(self) -> None:
        """Stop reading and drop batches read ahead."""


class AsyncBatches(StockBatches):
    """The batches of an epoch, read and copied to the device while earlier ones are trained on.

    Close it before the source starts another epoch: its thread reads ahead and would change the source's state.

    Args:
        source: host batches. The first one is read in the constructor, the others on the loader's thread.
        stream: the copy stream; it also gives the device.
        depth: how many batches can be ready.
    """

    def __init__(self, source: Iterator[Any], stream: Stream, depth: int) -> None:
        super().__init__(source)
        # At its first batch the source forks workers, draws a seed and communicates with other processes. That must
        # happen on this thread, which would wait for the first batch anyway.
        with phase(DATA_LOAD):
            first = list(islice(source, 1))
        self._loader = PrefetchLoader(chain(first, source), stream.device, depth=depth, stream=stream)
        self._batches = iter(self._loader)

    def _read(self) -> Any:
        return next(self._batches)

    def close(self) -> None:
        """Stop the loader's thread and wait for its end; then end the source, and with it its worker processes."""
        self._loader.close()
        end = getattr(self.source, "close", None)
        if callable(end):
            with suppress(ValueError):  # the thread was abandoned while it reads
                end()
