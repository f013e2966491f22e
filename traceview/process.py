"""This Python process: its memory and threads, and the command that starts another one.

Python puts the working folder first on the path of `python -c` and `python -m`: there a file `socket.py` would run in
place of Python's own module. No Python that is started here imports from the working folder. `-P` does the same from
Python 3.11 on; `-I` also ignores PYTHONPATH and the user's packages.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import sys
from contextlib import suppress

from traceview.errors import TraceviewError

M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD = -8, -4, -1  # malloc.h
TRIM_THRESHOLD_BYTES = 64 << 20
MAX_POLARS_THREADS = 4
MIN_OPEN_FILES = 64  # systems allow 256 or more; analyze opens 10, and each worker of fleet 4
# The path of `python -c` begins with "", the working folder; without it under -P, -I and PYTHONSAFEPATH.
NO_WORKING_FOLDER = "import sys; sys.path[:1] == [''] and sys.path.pop(0); "


def python_command(code: str, *arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs `code` in a new Python, which does not import from the working folder."""
    return [python, "-c", NO_WORKING_FOLDER + code, *arguments]


def limit_memory_and_threads() -> None:
    """Configure the allocators and thread pools for one short command; this saves a quarter of the memory.

    - glibc: all threads share one heap, also for the largest arrays. It keeps freed memory for the next arrays: the
      system clears each page that it gives, which takes a quarter of the time at 10 million kernels.
    - jemalloc, which polars uses: its threads share one arena too. Freed memory serves the next frames for 0.2 s and
      then returns to the system.
    - The cyclic garbage collector is off: one command creates almost no cycles.
    - OpenBLAS gets one thread, because nothing multiplies matrices.
    """
    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if (os.cpu_count() or 1) > MAX_POLARS_THREADS:  # 32 threads use 1.5 times the processor time of 4
        os.environ.setdefault("POLARS_MAX_THREADS", str(MAX_POLARS_THREADS))
    os.environ.setdefault("_RJEM_MALLOC_CONF", "narenas:1,dirty_decay_ms:200,muzzy_decay_ms:0")
    with suppress(AttributeError, OSError):  # only glibc has mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def require_open_files() -> None:
    """Raise the limit on open files to MIN_OPEN_FILES. Raises TraceviewError if it cannot be raised.

    Libraries panic, with a page of text each, where they cannot open another file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= MIN_OPEN_FILES:
        return
    if hard != resource.RLIM_INFINITY and hard < MIN_OPEN_FILES:
        raise TraceviewError(f"at most {hard} files may be open at once, too few; allow more: ulimit -n 1024")
    resource.setrlimit(resource.RLIMIT_NOFILE, (MIN_OPEN_FILES, hard))


def return_freed_memory() -> None:
    """Return to the system what malloc keeps of freed arrays."""
    with suppress(AttributeError, OSError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
