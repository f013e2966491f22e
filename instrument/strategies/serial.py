"""The naive baseline: pageable memory, one stream, and with `--sync every` a wait after each step.

    host     load | copy (blocked) | launch forward, backward, optimizer | wait
    stream          ---- copy ----   ------ forward --- backward --- optimizer
"""

from __future__ import annotations

from instrument.strategies.base import Strategy


class Serial(Strategy):
    """A copy from pageable memory holds the host until it is done, so nothing overlaps."""

    blocks_host = True
    sync_interval = 1
