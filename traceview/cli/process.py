"""The program around the commands: what ends it, with which words and exit code, and how little it takes.

At the top stand only small modules of Python's own, so that Ctrl-C is understood from the first moment.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

CANNOT_SAY = 2
ENDED_BY: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}
M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -8, -3, -1  # malloc.h
LARGE = 16 << 20
ENOUGH = 4  # threads of polars
_asked: list[int] = []  # the signals that came


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; of KeyboardInterrupt itself Python remembers some, and ends by the signal instead of our exit code."""


def run() -> NoReturn:
    """Be the program: `main`, and out without taking apart what the process held, which takes a tenth of a second."""
    code: object = 0
    try:
        main()
    except SystemExit as left:
        code = left.code or 0
    # Other processes and threads have ends of their own to come to.
    if not isinstance(code, int) or "multiprocessing" in sys.modules or threading.active_count() > 1:
        sys.exit(code)  # type: ignore[arg-type]
    with suppress(OSError):  # what was printed was flushed, or is an error already
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Run the command line; whatever goes wrong is one line and an exit code."""
    _asked.clear()
    try:
        _listen()
        _use_little()
        from traceview.cli import cli

        cli(prog_name="traceview", standalone_mode=False)
    except SystemExit:
        raise
    except BaseException as error:  # also a panic inside polars, which is no Exception
        _end(error)


def _listen() -> None:
    signal.signal(signal.SIGTERM, _asked_to_end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore it
        signal.signal(signal.SIGINT, _asked_to_end)


def _asked_to_end(number: int, _frame: FrameType | None) -> NoReturn:
    # An exception, so that a half-written file is removed on the way out; it may come back as another one.
    _asked.append(number)
    sys.unraisablehook = _lost
    if number == signal.SIGINT:
        raise Interrupted
    sys.exit(ENDED_BY[number])


def _lost(_what: object) -> None:
    """Ask again in a moment: what the signal raised met a place that raises nothing, as the end of an object has."""
    threading.Timer(0.01, signal.pthread_kill, [threading.main_thread().ident, _asked[-1]]).start()


def _end(error: BaseException) -> NoReturn:
    """Leave with one line on standard error and the exit code that belongs to what went wrong."""
    # What a signal raises may come back as another exception: a class that it met half made says RuntimeError.
    if _asked or isinstance(error, KeyboardInterrupt):
        _leave_interrupted()
    import click

    from traceview.errors import TraceviewError

    if isinstance(error, click.exceptions.Exit):
        raise error
    if isinstance(error, click.Abort):
        _leave_interrupted()
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "traceview"
        _leave(f"traceview: error: {error.format_message()} (see {command} --help)", CANNOT_SAY)
    if isinstance(error, TraceviewError):
        _leave(f"traceview: error: {error}", error.exit_code)
    if os.environ.get("TRACEVIEW_DEBUG"):
        raise error
    _leave(f"traceview: error: {_mistake(error)}", CANNOT_SAY)


def _leave_interrupted() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # again means at once
    with suppress(OSError):
        sys.stderr.write("traceview: interrupted\n")
    sys.exit(ENDED_BY[_asked[-1] if _asked else signal.SIGINT])


def _leave(line: str, code: int) -> NoReturn:
    from traceview.cli.outputs import complain

    complain(line)
    sys.exit(code)


def _mistake(error: BaseException) -> str:
    """Name a full disk, or a bug by type and place; its own text may hold names or values from the capture."""
    import errno
    from traceback import extract_tb

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"standard output cannot be written ({os.strerror(errno.ENOSPC)})"
    frames = [frame for frame in extract_tb(error.__traceback__) if "traceview" in Path(frame.filename).parts]
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return (
        f"a mistake of traceview's own ({type(error).__name__}{where}); "
        "please report it, with what TRACEVIEW_DEBUG=1 prints"
    )


def _use_little() -> None:
    """Let threads share one heap, and give large arrays back when they are freed: a quarter less memory at once.

    What polars frees goes back at once too (jemalloc's option: what another allocator makes of it is nothing). One
    command makes no garbage that counting references leaves, and multiplies no matrices: the search for the
    one and a thread a core for the other are time alone.
    """
    import ctypes

    gc.disable()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if (os.cpu_count() or 1) > ENOUGH:  # with 32 threads the same work takes half as much processor time again
        os.environ.setdefault("POLARS_MAX_THREADS", str(ENOUGH))
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    with suppress(AttributeError, OSError):  # another C library has no such options
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_ARENA_MAX, 1)
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, LARGE // 2)
