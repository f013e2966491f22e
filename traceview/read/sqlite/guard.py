"""Limits on what SQLite does with an untrusted file: no endless queries, no code in the file."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from typing import TypeVar

from traceview.read.limits import MAX_TEXT

PROGRESS_STEP = 200_000  # SQLite instructions between two calls of the progress handler
# A row of six bytes costs some tens of instructions: reading every table of a file ten times stays far below this.
MAX_INSTRUCTIONS, MAX_INSTRUCTIONS_PER_BYTE = 40_000_000, 300

Result = TypeVar("Result")


class Guard:
    """Stops a connection that runs more instructions than a file of its size needs: pages that form a cycle never end.

    SQLite discards exceptions (Ctrl-C, SIGTERM) that Python raises inside its callbacks. The guard keeps them, stops
    SQLite, and `reraise` raises them again.
    """

    def __init__(self, connection: sqlite3.Connection, size: int) -> None:
        self.left = MAX_INSTRUCTIONS + MAX_INSTRUCTIONS_PER_BYTE * size
        self.raised: BaseException | None = None
        _harden(connection)
        connection.set_progress_handler(self._on_progress, PROGRESS_STEP)

    def watched(self, function: Callable[[bytes], Result], otherwise: Result) -> Callable[[bytes], Result]:
        """Return `function` for use in SQL: its exceptions are kept for `reraise`, and it then returns `otherwise`."""

        def call(text: bytes) -> Result:
            try:
                return otherwise if self.raised else function(text)
            except BaseException as error:
                self.raised = error
                return otherwise

        return call

    def reraise(self, error: sqlite3.Error | None = None) -> None:
        """Raise the exception that was kept while SQLite ran, if there is one.

        A signal that arrives as Python enters a callback is raised before the callback can keep it. SQLite then reports
        an interruption or a failed function that the guard did not cause: this is a KeyboardInterrupt.
        """
        if self.raised is not None:
            raise self.raised
        message = str(error)
        if "user-defined function" in message or ("interrupted" in message and self.left >= 0):
            raise KeyboardInterrupt from None

    def _on_progress(self) -> int:
        try:
            self.left -= PROGRESS_STEP
            return int(self.left < 0 or self.raised is not None)
        except BaseException as error:
            self.raised = error
            return 1


def _harden(connection: sqlite3.Connection) -> None:
    """Disable SQLite features that only a hostile file uses, as far as this Python version can."""
    connection.execute("PRAGMA trusted_schema=OFF")
    connection.execute("PRAGMA cell_size_check=ON")
    if sys.version_info >= (3, 11):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_TEXT)
        connection.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0)
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
