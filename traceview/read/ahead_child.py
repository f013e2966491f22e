"""A process of ahead.py: decodes one table of an export, if it is plain, and hands it over."""

from __future__ import annotations

import json
import mmap
import os
import socket
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from traceview.errors import TraceviewError
from traceview.read import pages
from traceview.read.database import EXPORT_AGAIN, check_file, columns_of, open_read_only, real_tables, shown
from traceview.read.raw import wanted_columns
from traceview.read.records import Numbers


def hand_over(answers: socket.socket, path: Path, table: str) -> None:
    """Decode a table and send its columns; whatever goes wrong is an end without, and the parent reads by itself."""
    with suppress(TraceviewError, OSError, ValueError, MemoryError):
        plan = _plan(path, table)
        if plan is not None:
            _send(answers, plan)


def _plan(path: Path, table: str) -> pages.Plan | None:
    check_file(path)
    with open_read_only(path) as connection:
        if table not in real_tables(connection, shown(path)):
            return None
        present = columns_of(connection, table)
        columns = wanted_columns(present, table, [], file=shown(path), remedy=EXPORT_AGAIN)
        return pages.plan(path, connection, table, columns) if columns else None


def _send(answers: socket.socket, plan: pages.Plan) -> None:
    shared: list[tuple[Numbers, int]] = []

    def empty(count: int) -> Numbers:
        handle, memory = _shared(8 * count)
        numbers = np.frombuffer(memory, np.int64)
        shared.append((numbers, handle))
        return numbers

    columns = pages.decoded(plan, empty)
    if columns is None:
        return
    told, handles = [], []
    for name, column in columns.items():
        null = column.null if column.null is not None and column.null.any() else None
        # Columns lie where room was made for them, unless they were put together from several parts.
        within = [(numbers, handle) for numbers, handle in shared if np.may_share_memory(numbers, column.values)]
        first = _address(column.values) - _address(within[0][0]) if within else 0
        told.append((name, first, len(column.values), null is not None))
        handles.append(within[0][1] if within else _copied(column.values))
        if null is not None:
            handles.append(_copied(null))
    socket.send_fds(answers, [json.dumps(told).encode()], handles)


def _address(numbers: Numbers) -> int:
    return int(numbers.__array_interface__["data"][0])


def _copied(column: NDArray[np.generic]) -> int:
    handle, memory = _shared(column.nbytes)
    np.frombuffer(memory, np.uint8)[: column.nbytes] = column.view(np.uint8)
    return handle


def _shared(size: int) -> tuple[int, mmap.mmap]:
    """Make memory that other processes may map; of no length there is none."""
    handle = os.memfd_create("traceview")
    os.ftruncate(handle, max(size, 1))
    return handle, mmap.mmap(handle, max(size, 1))
