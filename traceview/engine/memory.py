"""The memory that an analysis may use, and whether a capture fits into it. The module imports little on purpose."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from tempfile import gettempdir

from traceview.errors import ReportError, RequestError
from traceview.model.units import size
from traceview.read.source import read_head

BYTES_PER_FILE_BYTE = 2.5  # memory of the analysis of a complete export, measured on 1 to 10 million kernels
BYTES_PER_PROCESS = 200_000_000
MIN_BYTES_IN_SLICES = 400_000_000  # bytes of an export from which processes side by side are faster
MIN_CORES = 4  # with fewer, parts of such an export are not the default, because they gain little
MIN_MEMORY = 500_000_000  # the least for an analysis in parts, and for each process that measures them
HEADER = b"SQLite format 3\0"
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


def check_fits(path: Path) -> None:
    """Raise ReportError if an SQLite export needs more memory than is free: without memory, the process is killed."""
    if is_sqlite(path) and not fits_memory(path, free := free_memory()):
        needed = path.stat().st_size * BYTES_PER_FILE_BYTE + BYTES_PER_PROCESS
        raise ReportError(
            f"{path.name}: reading it as a whole takes about {size(needed)} of memory, and {size(free)} are free; use "
            "a machine with more memory, or a shorter capture (`traceview analyze` and `traceview fleet` read it in "
            "parts)"
        )


def fits_memory(path: Path, memory: int) -> bool:
    """Return whether the analysis of a complete export fits into `memory` bytes, by the size of its file."""
    return path.stat().st_size * BYTES_PER_FILE_BYTE + BYTES_PER_PROCESS <= memory


def check_memory(given: int | None) -> None:
    """Raise RequestError if a limit that the user states is too small for any capture."""
    if given is not None and given < MIN_MEMORY:
        raise RequestError(f"--memory {size(given)} is too small; give at least {size(MIN_MEMORY)}")


def memory_limit(path: Path, given: int | None, side_by_side: bool = False) -> int | None:
    """Return the bytes within which a capture is analyzed in parts; None if it is analyzed as a whole.

    `given` is the limit that the user states; the default is half of the free memory, and for SQLite exports alone.
    `side_by_side` is true if several processes can measure parts: then a large capture that fits is sliced, too, with
    MIN_CORES or a stated limit. Raises RequestError if the limit is too small for any capture.
    """
    check_memory(given)
    memory = max(free_memory() // 2, MIN_MEMORY) if given is None else given
    if not path.is_file() or (given is None and not is_sqlite(path)):
        return None
    is_faster = side_by_side and _is_faster_in_parts(path, MIN_CORES if given is None else 2)
    return memory if is_faster or not fits_memory(path, memory) else None


def _is_faster_in_parts(path: Path, cores: int) -> bool:
    """Return whether a machine with `cores` analyzes an export faster in parts than as a whole, and this one has.

    Parts need room for temporary files, about as large as the export.
    """
    length = path.stat().st_size
    if (os.cpu_count() or 1) < cores or length < MIN_BYTES_IN_SLICES or not is_sqlite(path):
        return False
    try:
        return shutil.disk_usage(gettempdir()).free > 2 * length
    except OSError:  # no folder for temporary files
        return False


def is_sqlite(path: Path) -> bool:
    """Return whether a file is an SQLite database."""
    return read_head(path).startswith(HEADER)
