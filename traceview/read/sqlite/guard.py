"""Bounds on what SQLite does with a file that nobody vouches for, and a way for Ctrl-C to reach it."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from typing import TypeVar

LONGEST_VALUE = 64 << 20  # bytes of one text or row; kernels' names have thousands
AT_ONCE = 200_000  # instructions of SQLite between two looks
# A row of six bytes costs some tens of instructions: reading every table of a file ten times stays far below this.
INSTRUCTIONS, INSTRUCTIONS_A_BYTE = 40_000_000, 300
Made = TypeVar("Made")


class Guard:
    """Stops a connection that does more than a file of its size can ask for: pages that lead to each other never end.

    What is raised while SQLite runs (Ctrl-C, an end by SIGTERM) would be lost inside it: it is kept, SQLite is stopped,
    and `reraise` passes it on.
    """

    def __init__(self, connection: sqlite3.Connection, size: int) -> None:
        self.left = INSTRUCTIONS + INSTRUCTIONS_A_BYTE * size
        self.raised: BaseException | None = None
        _harden(connection)
        connection.set_progress_handler(self._look, AT_ONCE)

    def watched(self, function: Callable[[bytes], Made], otherwise: Made) -> Callable[[bytes], Made]:
        """Return a function that SQLite may call: what it raises is kept for `reraise`."""

        def call(text: bytes) -> Made:
            try:
                return otherwise if self.raised else function(text)
            except BaseException as error:
                self.raised = error
                return otherwise

        return call

    def reraise(self, error: sqlite3.Error | None = None) -> None:
        """Raise what was raised while SQLite ran; nothing, where it stopped for another reason.

        A signal that comes as Python enters a function of ours is raised before the function can keep it: SQLite then
        says that it was interrupted, or that a function failed, and it was not us.
        """
        if self.raised is not None:
            raise self.raised
        said = str(error)
        if "user-defined function" in said or ("interrupted" in said and self.left >= 0):
            raise KeyboardInterrupt from None

    def _look(self) -> int:
        try:
            self.left -= AT_ONCE
            return int(self.left < 0 or self.raised is not None)
        except BaseException as error:
            self.raised = error
            return 1


def _harden(connection: sqlite3.Connection) -> None:
    """Take away what only a hostile file would use, as far as this Python can say so to SQLite."""
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    if sys.version_info >= (3, 11):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
        connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0)
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
