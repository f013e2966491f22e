"""Memory between the steps of a large analysis."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Hand freed memory back to the system, where the C library has a call for it.

    glibc keeps freed arrays of up to 32 MB for later use; between two steps that need differently sized
    ones this holds 100 MB of nothing for every million kernels.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
