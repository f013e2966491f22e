"""The memory that an analysis may use."""

from __future__ import annotations

import os
import re
from pathlib import Path

BYTES_PER_FILE_BYTE = 2.5  # memory of the analysis of a complete export, measured on 1 to 10 million kernels
BYTES_PER_PROCESS = 200_000_000
MEMINFO, STATM, CONTAINER = Path("/proc/meminfo"), Path("/proc/self/statm"), Path("/sys/fs/cgroup")


def free_memory() -> int:
    """Return the bytes of memory that this machine has free, or this process's container or `ulimit -v` has left."""
    free, left = _free_of_container(), _left_of_address_space()
    return free if left is None else max(0, min(free, left))


def _free_of_container() -> int:
    try:
        free = 1024 * int(re.findall(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text())[0])
    except (OSError, IndexError):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # no Linux: half of all memory
    try:
        limit, used = ((CONTAINER / name).read_text() for name in ("memory.max", "memory.current"))
        return max(0, min(free, int(limit) - int(used)))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return free


def _left_of_address_space() -> int | None:
    """Return the bytes that this process may still allocate; None without a limit."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit

        limit = getrlimit(RLIMIT_AS)[0]
        pages = int(STATM.read_text().split()[0])
    except (ImportError, OSError):  # no Linux
        return None
    return None if limit == RLIM_INFINITY else limit - pages * os.sysconf("SC_PAGE_SIZE")
