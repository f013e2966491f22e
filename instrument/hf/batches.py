"""An epoch's batches on their way to a Trainer: read as the stock one does, or ahead and in the background."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from instrument import names
from instrument.hf.throughput import Amount, Throughput, amount
from instrument.prefetch import PrefetchLoader
from instrument.ranges import phase


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
        with phase(names.DATA_LOAD):
            batch = next(self.source)
        return batch, amount(batch, self._main_input)

    def close(self) -> None:
        """Stop reading; what was read ahead is dropped."""


class AsyncBatches(StockBatches):
    """An epoch's batches, read and copied to the device while the ones before are trained on.

    The loader names `data_load` and `h2d` itself. Close it before the source is asked for another epoch:
    its thread is ahead, and would move the source's state (epoch, end of data) under the new one.
    """

    def __init__(
        self, source: Iterator[Any], main_input: str, throughput: Throughput, device: torch.device, depth: int
    ) -> None:
        super().__init__(source, main_input, throughput)
        self._counted: deque[Amount] = deque()
        self._loader = PrefetchLoader(self._counting(), device, depth=depth)
        self._batches = iter(self._loader)

    def _counting(self) -> Iterator[Any]:
        # The loader keeps the order, so the oldest count is the one of the next batch that comes out.
        for batch in self.source:
            self._counted.append(amount(batch, self._main_input))
            yield batch

    def _next(self) -> tuple[Any, Amount]:
        batch = next(self._batches)
        return batch, self._counted.popleft()

    def close(self) -> None:
        """Stop the loader's thread and wait for its end."""
        self._loader.close()
