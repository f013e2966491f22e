"""The longest tables decoded by processes of their own, while this one still imports what it measures with.

Importing polars and the rest takes as long as decoding a million kernels, and holds the interpreter: what a process
does meanwhile costs no time. It is a copy of this one, taken before polars is here, whose threads no copy has. It hands
over whole columns as memory that both see. Where it cannot (another system, other threads, no memory, a damaged file)
nothing is lost but time: the caller decodes by itself.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from traceview.read.database import state_of
from traceview.read.forked import forked, is_alone
from traceview.read.raw import KERNEL, RUNTIME

if TYPE_CHECKING:
    from traceview.read.pages import Columns, Plan

LARGE = 32 << 20  # bytes of an export; below it a process takes longer to start than it saves
LONGEST = (RUNTIME, KERNEL)  # the tables that are decoded ahead
MESSAGE, MOST_HANDLES = 1 << 16, 100
PATIENCE, PATIENCE_A_MB = 10.0, 0.1  # seconds; a process that was stopped is not waited for without end


@contextmanager
def decoding(path: Path) -> Iterator[Ahead | None]:
    """Begin to decode an export's large tables aside, until the end of the context; None where it does not pay."""
    ahead = _begun(path)
    try:
        yield ahead
    finally:
        if ahead is not None:
            ahead.end()


def _begun(path: Path) -> Ahead | None:
    cores = os.cpu_count() or 1
    state = state_of(path)
    if state is None or state[0] < LARGE or not hasattr(os, "memfd_create") or cores < 2 or not is_alone():
        return None
    ahead = Ahead(state)
    with suppress(OSError, ValueError):
        for tables in [[one] for one in LONGEST] if cores > 2 else [LONGEST]:
            ahead.begin(path, tables)
    return ahead


class Ahead:
    """What processes decode of the file that was in `state`."""

    def __init__(self, state: tuple[int, int]) -> None:
        self.state = state
        self._processes: list[int] = []
        self._answers: dict[str, socket.socket] = {}

    def begin(self, path: Path, tables: Sequence[str]) -> None:
        """Begin to decode tables, one after the other, in one process. Raises OSError where there is no room for it."""
        # NumPy comes with it, and is imported once for both; it may begin threads, if it is told to.
        from traceview.read.ahead_child import hand_over

        if not is_alone():
            return
        theirs: dict[str, socket.socket] = {}

        def decode() -> None:
            for table, answer in theirs.items():
                with answer:
                    hand_over(answer, path, table)

        try:
            for table in tables:
                self._answers[table], theirs[table] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._answers[table].settimeout(PATIENCE + PATIENCE_A_MB * (path.stat().st_size >> 20))
            self._processes.append(forked(decode))
        finally:
            for one in theirs.values():
                one.close()

    def columns(self, table: str, plan: Plan) -> Columns | None:
        """Return the columns of a table, as soon as they are there; None where no process decoded it."""
        found = self.answer(table) if table in self._answers else None
        return found if found is not None and tuple(found) == plan.columns else None

    def answer(self, table: str) -> Columns | None:
        """Wait for the one answer about a table; None where the process ended without."""
        try:
            said, handles, *_ = socket.recv_fds(self._answers[table], MESSAGE, MOST_HANDLES)
            return _mapped(json.loads(said), handles) if said else None
        except (OSError, ValueError, MemoryError):
            return None

    def end(self) -> None:
        """End the processes; what they decoded stays until it is let go of."""
        while self._processes:
            process = self._processes.pop()
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        while self._answers:
            self._answers.popitem()[1].close()


def _mapped(told: list[tuple[str, int, int, bool]], handles: list[int]) -> Columns:
    """Return columns that lie in memory of these handles: name, first byte, rows, and whether some are null."""
    import numpy as np

    from traceview.read.records import Column

    columns: Columns = {}
    left = iter(handles)
    try:
        for name, first, rows, has_null in told:
            values = np.frombuffer(_memory(next(left)), np.int64, rows, first)
            columns[name] = Column(values, np.frombuffer(_memory(next(left)), np.bool_, rows) if has_null else None)
    finally:
        for handle in handles:
            os.close(handle)
    return columns


def _memory(handle: int) -> mmap.mmap:
    return mmap.mmap(handle, 0, prot=mmap.PROT_READ)
