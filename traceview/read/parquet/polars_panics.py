"""What polars says on standard error when damaged data makes it panic is not for the user: one line of ours is."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STDERR = 2


@contextmanager
def unsaid() -> Iterator[None]:
    """Keep what is written to standard error; passed on at the end, but forgotten where something was raised."""
    with tempfile.TemporaryFile() as kept:
        try:
            before = os.dup(STDERR)
        except OSError:  # there is no standard error
            yield
            return
        _flush()
        os.dup2(kept.fileno(), STDERR)
        try:
            yield
            _flush()
        except BaseException:
            kept.truncate(0)
            raise
        finally:
            os.dup2(before, STDERR)
            os.close(before)
            kept.seek(0)
            while chunk := kept.read(1 << 16):
                os.write(STDERR, chunk)


def _flush() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
