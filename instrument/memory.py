"""Host memory: how much a process uses, and how much of it pinned memory takes."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = 4096


def pinned_bytes(size: int) -> int:
    """Return how many bytes torch pins for `size` bytes: the next power of two, at least one page (4096)."""
    return max(_PAGE, 1 << (size - 1).bit_length()) if size else 0


def resident_bytes(statm: Path = Path("/proc/self/statm")) -> int | None:
    """Return the bytes of this process in physical memory; None if the system does not report them."""
    try:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def format_bytes(nbytes: int) -> str:
    """Format a size for a message: "512 KiB", "1.5 GiB"."""
    size, units = float(nbytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.1f}".removesuffix(".0") + f" {units[0]}"
