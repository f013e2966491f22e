"""Select the figures that findings name, and join their words."""

from __future__ import annotations

import re

import numpy as np

from traceview.intervals import Times

NUMBER = re.compile(r"-?\d+(?![A-Za-z])")
BLOCK = 4096


def largest_positions(values: Times, count: int) -> list[int]:
    """Return the positions of the `count` largest positive values, largest first; equal values in their order.

    Only the blocks that hold the largest values are searched, so the array is not sorted.
    """
    if len(values) == 0:
        return []
    block_maxima = np.maximum.reduceat(values, np.arange(0, len(values), BLOCK))
    remaining: dict[int, Times] = {}
    positions: list[int] = []
    while len(positions) < count:
        block = int(block_maxima.argmax())
        if block_maxima[block] <= 0:
            break
        left = remaining.setdefault(block, values[block * BLOCK : (block + 1) * BLOCK].copy())
        at = int(left.argmax())
        positions.append(block * BLOCK + at)
        left[at] = 0
        block_maxima[block] = left.max()
    return positions


def join_words(words: list[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def fold_numbers(name: str) -> str:
    """Return the name of a range with # for each number: `layer7` gives `layer#`, `h2d` stays."""
    return NUMBER.sub("#", name)
