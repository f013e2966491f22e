"""How much memory this process can still have: of the machine, and of the container around it."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Return the bytes that can still be had without swapping; None where the system does not tell."""
    known = [size for size in (_of_machine(meminfo), _of_container(cgroup)) if size is not None]
    return min(known, default=None)


def in_words(nbytes: int) -> str:
    """Return a size for a message: "512 KiB", "1.5 GiB"."""
    size, units = float(nbytes), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.1f}".removesuffix(".0") + f" {units[0]}"


def _of_machine(meminfo: Path) -> int | None:
    fields = _numbers(meminfo)
    return fields["MemAvailable"] * 1024 if "MemAvailable" in fields else None


def _of_container(cgroup: Path) -> int | None:
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    if not limit.isdigit():
        return None  # "max": the container has no limit of its own
    # Cached file pages count as used there, and are given up when memory is needed.
    return max(0, int(limit) - used + _numbers(cgroup / "memory.stat").get("file", 0))


def _numbers(path: Path) -> dict[str, int]:
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
