"""The baseline: pageable memory, one stream, and a wait after each step with `--sync every` or `auto`.

host     load | copy (blocked) | launch forward, backward, optimizer | wait
stream          ---- copy ----   ------ forward --- backward --- optimizer
"""

from __future__ import annotations

from instrument.strategies.base import Strategy


class Serial(Strategy):
    """Copies from pageable memory, which block the host, so nothing overlaps."""
