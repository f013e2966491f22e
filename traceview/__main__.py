"""`python -m traceview` is `traceview`: the process around the commands, its signals, errors and exit codes.

The module imports only small standard modules at the top, so that Ctrl-C is handled from the first moment.
"""

from __future__ import annotations

import os
import sys

# `python -m` puts the working folder first on the path: there a file json.py would run in place of Python's own module.
# A checkout that is not installed stays there.
if (
    __name__ == "__main__"
    and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False))
    and sys.path[0] != os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - pathlib is not imported yet
):
    del sys.path[0]

import signal
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

EXIT_ERROR = 2
SIGNAL_EXIT_CODES: dict[int, int] = {signal.SIGHUP: 129, signal.SIGINT: 130, signal.SIGTERM: 143}
_received: list[int] = []  # signals, in order


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. Python ends by the signal itself after a plain KeyboardInterrupt, which loses the exit code."""


def run() -> NoReturn:
    """Run main, then os._exit to skip interpreter teardown, which takes a tenth of a second."""
    code: object = 0
    _open_closed_streams()
    try:
        main()
    except SystemExit as left:
        code = left.code or 0
    # Child processes and other threads still need the normal shutdown.
    if not isinstance(code, int) or "multiprocessing" in sys.modules or threading.active_count() > 1:
        sys.exit(code)  # type: ignore[arg-type]
    with suppress(OSError):  # print_bytes has flushed the output and reported its errors
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _open_closed_streams() -> None:
    """Open the standard streams that were closed (`>&-`), so that no file takes their numbers.

    What is written to standard error is dropped. Standard output cannot be written, which a command reports.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def main() -> None:
    """Run the command line. Every failure becomes one line on standard error and an exit code."""
    _received.clear()
    try:
        signal.signal(signal.SIGTERM, _handle_signal)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore SIGINT
            signal.signal(signal.SIGINT, _handle_signal)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # a program under nohup ignores SIGHUP
            signal.signal(signal.SIGHUP, _handle_signal)
        from traceview.process import limit_memory_and_threads, require_open_files

        limit_memory_and_threads()
        require_open_files()
        from traceview.cli import cli

        cli(prog_name="traceview", standalone_mode=False)
    except SystemExit:
        raise
    except BaseException as error:  # a panic inside polars is not an Exception
        _exit_with_error(error)


def _handle_signal(number: int, _frame: FrameType | None) -> NoReturn:
    # An exception unwinds the stack, which removes half-written files. It may arrive as another exception.
    _received.append(number)
    sys.unraisablehook = _resend_signal
    if number == signal.SIGINT:
        raise Interrupted
    sys.exit(SIGNAL_EXIT_CODES[number])


def _resend_signal(_unraisable: object) -> None:
    """Send the signal again soon: Python drops an exception that is raised inside `__del__`."""
    threading.Timer(0.01, signal.pthread_kill, [threading.main_thread().ident, _received[-1]]).start()


def _exit_with_error(error: BaseException) -> NoReturn:
    """Print one line for the error and exit with EXIT_ERROR, or the code of a signal."""
    # A signal's exception may arrive as another one, for example as RuntimeError from a class body.
    if _received or isinstance(error, KeyboardInterrupt):
        _exit_interrupted()
    import click

    from traceview.errors import TraceviewError

    if isinstance(error, click.exceptions.Exit):
        raise error
    if isinstance(error, click.Abort):
        _exit_interrupted()
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "traceview"
        _exit(f"{error.format_message()} (see {command} --help)")
    if isinstance(error, TraceviewError):
        _exit(str(error))
    if os.environ.get("TRACEVIEW_DEBUG"):
        raise error
    _exit(_unexpected_error_text(error))


def _exit_interrupted() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
    with suppress(OSError):
        sys.stderr.write("traceview: interrupted\n")
    sys.exit(SIGNAL_EXIT_CODES[_received[-1] if _received else signal.SIGINT])


def _exit(reason: str) -> NoReturn:
    from traceview.cli.outputs import print_error

    print_error(f"traceview: error: {reason}")
    sys.exit(EXIT_ERROR)


def _working_folder_is_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _unexpected_error_text(error: BaseException) -> str:
    """Describe a full disk, or a bug by type and line. The error's own text may hold data from the capture."""
    import errno
    from traceback import extract_tb

    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many open files; allow more: ulimit -n 1024"
    if isinstance(error, FileNotFoundError) and _working_folder_is_gone():
        return "the working folder does not exist any more; change to another one"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF):
        # Outputs and print_bytes name themselves: what remains is the help, which click prints, or a temporary file.
        if "click" in Path(extract_tb(error.__traceback__)[-1].filename).parts:
            return f"cannot write standard output ({error.strerror})"
        return f"cannot write a temporary file ({error.strerror}); set TMPDIR to a folder with more room"
    if isinstance(error, FileNotFoundError) and "No usable temporary directory" in str(error):
        return "no folder for temporary files can be written; set TMPDIR to a folder with room"
    frames = [frame for frame in extract_tb(error.__traceback__) if "traceview" in Path(frame.filename).parts]
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"internal error ({type(error).__name__}{where}); run again with TRACEVIEW_DEBUG=1 and report what it prints"


if __name__ == "__main__":
    run()
