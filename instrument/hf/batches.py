"""An epoch's batches on their way to a Trainer: read as the stock one does, or ahead and in the background."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from instrument.hf.throughput import Amount, Throughput, amount
from instrument.prefetch import PrefetchLoader
from instrument.ranges import DATA_LOAD, phase
from instrument.streams import Stream


class StockBatches:
    """An epoch's batches as the stock Trainer reads them, with the reading named and counted."""

    def __init__(self, source: Iterator[Any], main_input: str, throughput: Throughput) -> None:
        self.source, self._main_input, self._throughput = source, main_input, throughput
        self.ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            batch, counted = self._next()
        except StopIteration:
            self.ended = True
            raise
        self._throughput.add(counted)
        return batch

    def _next(self) -> tuple[Any, Amount]:
        with phase(DATA_LOAD):
            batch = next(self.source)
        return batch, amount(batch, self._main_input)

    def close(self) -> None:
        """Stop reading; what was read ahead is dropped."""


class AsyncBatches(StockBatches):
    """An epoch's batches, read and copied to the device while the ones before are trained on.

    The loader names `data_load` and `h2d` itself. Close it before the source is asked for another epoch:
    its thread is ahead, and would move the source's state (epoch, end of data) under the new one.

    Args:
        source: host batches; the first one is read here, the others by the loader's thread.
        main_input: see `amount`.
        throughput: what the batches are counted by, as they come out.
        stream: copies the batches to its device.
        depth: how many batches may be ready.
    """

    def __init__(
        self, source: Iterator[Any], main_input: str, throughput: Throughput, stream: Stream, depth: int
    ) -> None:
        super().__init__(source, main_input, throughput)
        self._counted: deque[Amount] = deque()
        # The source forks its workers, draws its seed and agrees with other processes at its first batch: all
        # of that belongs on this thread, which would wait for that batch anyway.
        with phase(DATA_LOAD):
            first = list(islice(source, 1))
        self._loader = PrefetchLoader(self._counting(chain(first, source)), stream.device, depth=depth, stream=stream)
        self._batches = iter(self._loader)

    def _counting(self, batches: Iterator[Any]) -> Iterator[Any]:
        # The loader keeps the order, so the oldest count is the one of the next batch that comes out.
        for batch in batches:
            self._counted.append(amount(batch, self._main_input))
            yield batch

    def _next(self) -> tuple[Any, Amount]:
        batch = next(self._batches)
        return batch, self._counted.popleft()

    def close(self) -> None:
        """Stop the loader's thread and wait for its end."""
        self._loader.close()
