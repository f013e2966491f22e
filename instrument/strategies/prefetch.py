r"""Two streams: copies batch N+1 while batch N computes.

copy      | copy N+1 |              | copy N+2 |
                    \ ready                    \ ready
compute   forward N, backward N, optimizer N | forward N+1, ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from instrument.prefetch import PrefetchLoader
from instrument.strategies.base import Strategy
from instrument.streams import Stream
from instrument.trainer.learner import Batch


class Prefetch(Strategy):
    """Pins and copies batches ahead on a background thread and a copy stream; compute waits for an event."""

    _loader: PrefetchLoader | None = None

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches on the device, copied ahead of their use."""
        return self._copied_ahead(loader, self.config.data.depth)

    def close(self) -> None:
        """End the copy thread."""
        if self._loader is not None:
            self._loader.close()

    def _copied_ahead(
        self, loader: Iterable[Batch], depth: int, streams: Sequence[Stream] | None = None
    ) -> Iterator[Batch]:
        budget, on_copy = self.config.data.pinned_budget, self.meter.copied
        self._loader = PrefetchLoader(
            loader, self.device, depth=depth, budget_bytes=budget, stream=streams, on_copy=on_copy
        )
        return self.timed(iter(self._loader))
