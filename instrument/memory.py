"""Host memory: how much is available, and how much a process uses."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE = 4096
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def pinned_bytes(size: int) -> int:
    """Return how many bytes torch pins for `size` bytes: the next power of two, at least one page (4096)."""
    return max(_PAGE, 1 << (size - 1).bit_length()) if size else 0


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes this process can still allocate without swapping: the minimum of machine and container.

    Returns None if the system reports neither.
    """
    known = [size for size in (_machine_bytes(meminfo), _container_bytes(cgroup)) if size is not None]
    return min(known, default=None)


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


def _machine_bytes(meminfo: Path) -> int | None:
    fields = _read_fields(meminfo)
    return fields["MemAvailable"] * 1024 if "MemAvailable" in fields else None


def _container_bytes(cgroup: Path) -> int | None:
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None  # "max": the container has no limit
    # memory.current includes cached file pages, which the kernel frees when memory is needed.
    return max(0, int(limit) - used + _read_fields(cgroup / "memory.stat").get("file", 0))


def _read_fields(path: Path) -> dict[str, int]:
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
