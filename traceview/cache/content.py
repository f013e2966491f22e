"""What a capture holds, as a digest, and whether it stayed the same meanwhile."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20
# A file system's clock ticks every few ms: what was written later than that before a look may still change unseen.
SETTLED = 50_000_000  # ns
TABLES = (".parquet", ".arrow")
UNFINISHED = ("-wal", "-journal")


class StoppedError(Exception):
    """The digest is not wanted any more."""


@dataclass(frozen=True, slots=True)
class State:
    """Which files make up a capture, and what of each would change if it were written to or replaced."""

    files: tuple[tuple[Path, int, int, int, int, int], ...]  # path, device, inode, bytes, mtime and ctime in ns

    @classmethod
    def of(cls, report: Path) -> State | None:
        """Return the state of a file or of a folder of tables; None where it is neither, or still being written."""
        try:
            files = _files(report)
            return cls(tuple(_state(path) for path in files)) if files else None
        except OSError:
            return None

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(one[3] for one in self.files)

    def settled(self) -> bool:
        """Was the last change long enough ago for the next one to show?"""
        now = time.time_ns()
        return all(now - max(one[4], one[5]) > SETTLED for one in self.files)

    def digest(self, stop: threading.Event | None = None) -> str:
        """Return a digest of the names in a folder and of everything that the files hold.

        Raises OSError, and StoppedError when `stop` is set meanwhile.
        """
        whole = hashlib.blake2b(digest_size=32)
        for path, *_ in self.files:
            name = path.name.encode("utf-8", "surrogateescape") if len(self.files) > 1 else b""
            whole.update(b"%d:%b" % (len(name), name) + _digest(path, stop))
        return whole.hexdigest()


def _files(report: Path) -> list[Path]:
    if report.is_dir():
        return sorted(path for path in report.iterdir() if path.suffix in TABLES and path.is_file())
    beside = [Path(f"{report}{suffix}") for suffix in UNFINISHED]
    return [report] if report.is_file() and not any(path.exists() for path in beside) else []


def _state(path: Path) -> tuple[Path, int, int, int, int, int]:
    found = path.stat()
    return path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(path: Path, stop: threading.Event | None) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            if stop is not None and stop.is_set():
                raise StoppedError("not wanted any more")
    return digest.digest()
