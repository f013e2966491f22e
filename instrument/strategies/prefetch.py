r"""Two streams: batch N+1 is copied while batch N computes.

    copy      | copy N+1 |              | copy N+2 |
                        \ ready                    \ ready
    compute   forward N, backward N, optimizer N | forward N+1, ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from instrument.prefetch import PrefetchLoader
from instrument.strategies.base import Strategy
from instrument.trainer.learner import Batch


class Prefetch(Strategy):
    """A background thread pins and copies ahead on a stream of its own; the compute waits for an event."""

    pins = "kept"
    copies_ahead = True

    _loader: PrefetchLoader | None = None

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the loader's batches on the device, each copied there ahead of its use."""
        data = self.config.data
        self._loader = PrefetchLoader(
            loader,
            self.device,
            depth=data.depth,
            budget_bytes=data.pinned_budget,
            on_copy=self.meter.copied,
        )
        return self.timed(iter(self._loader))

    def close(self) -> None:
        """End the thread that copies."""
        if self._loader is not None:
            self._loader.close()
