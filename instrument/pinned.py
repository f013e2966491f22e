"""Pinned host memory, from which a copy to the GPU does not block the host.

torch keeps the memory that was pinned once and gives it to the next batch, once the copies from it are done.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from instrument.memory import pinned_bytes
from instrument.trees import leaves, map_leaves, moves_itself, nbytes

Tree = TypeVar("Tree")


def pin(tree: Tree) -> Tree:
    """Return a batch with its tensors in pinned memory where possible; what is pinned already is not copied."""
    with torch.no_grad():
        return map_leaves(tree, lambda leaf: leaf.pin_memory() if _is_pageable(leaf) else leaf)


def bytes_to_pin(tree: Any) -> int:
    """Return the bytes of pinned memory that `pin` takes for a batch."""
    return sum(pinned_bytes(nbytes(leaf)) for leaf in leaves(tree) if _is_pageable(leaf))


def _is_pageable(leaf: Any) -> bool:
    if not isinstance(leaf, torch.Tensor):
        return moves_itself(leaf)
    return leaf.device.type == "cpu" and leaf.layout is torch.strided and leaf.numel() > 0 and not leaf.is_pinned()
