"""Host memory: how much is available, and a budget for pinned memory."""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path

from instrument.errors import ConfigError, InstrumentError

_PAGE = 4096
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class PinnedBudget:
    """A limit on the bytes of pinned memory in use. Can be shared between threads.

    Pinned memory cannot be swapped out, so a program that pins without a limit can run the machine out of memory.

        budget = PinnedBudget(2 << 30)
        budget.take(size)  # raises InstrumentError above 2 GiB
        budget.give(size)

    Args:
        limit_bytes: the limit in bytes.

    Raises:
        ConfigError: `limit_bytes` is not positive.
    """

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes <= 0:
            raise ConfigError(f"invalid pinned budget of {limit_bytes} bytes: use at least the size of one batch")
        self.limit_bytes = limit_bytes
        self._used = self._peak = 0
        self._returned: deque[int] = deque()
        self._lock = threading.Lock()

    @property
    def used_bytes(self) -> int:
        """Bytes in use now."""
        with self._lock:
            return self._settle()

    def try_take(self, size: int) -> bool:
        """Count `size` bytes as used and return True; return False, without counting them, if that exceeds the limit.

        Raises:
            InstrumentError: the limit allows it, but the machine does not have that much memory left.
        """
        with self._lock:
            used = self._settle() + size
            if used > self.limit_bytes:
                return False
            if used > self._peak:  # torch keeps returned memory, so use up to the peak needs no new memory
                self._check_machine(used - self._peak)
                self._peak = used
            self._used = used
            return True

    def take(self, size: int) -> None:
        """Count `size` bytes as used.

        Raises:
            InstrumentError: that exceeds the limit, or the machine does not have that much memory left.
        """
        if not self.try_take(size):
            raise InstrumentError(
                f"pinned memory: {format_bytes(size)} more exceed the budget of {format_bytes(self.limit_bytes)}, of "
                f"which {format_bytes(self.used_bytes)} are in use: raise the budget, or use a smaller batch or depth"
            )

    def give(self, size: int) -> None:
        """Count `size` bytes as returned."""
        # Takes no lock: the garbage collector can call this while this thread holds the lock.
        self._returned.append(size)

    def _settle(self) -> int:
        while self._returned:
            self._used -= self._returned.popleft()
        return self._used

    def _check_machine(self, size: int) -> None:
        available = available_bytes()
        if available is not None and size > available:
            raise InstrumentError(
                f"pinned memory: {format_bytes(size)} more fit into the budget of {format_bytes(self.limit_bytes)}, "
                f"but the machine has only {format_bytes(available)} left: use a smaller batch or depth"
            )


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
