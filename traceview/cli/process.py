"""The process around the commands: signals, errors, exit codes and memory settings.

The module imports only small standard modules at the top, so that Ctrl-C is handled from the first moment.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from itertools import accumulate
from pathlib import Path
from types import FrameType, ModuleType
from typing import NoReturn

from traceview.allocators import limit_memory_and_threads

EXIT_ERROR = 2
SIGNAL_EXIT_CODES: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}
# polars lists the functions of these packages among its own. Importing them takes a fifth of its time to start.
PACKAGES_OF_POLARS = ("polars.io", "polars.io.cloud", "polars.catalog.unity")
_received: list[int] = []  # signals, in order


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. Python ends by the signal itself after a plain KeyboardInterrupt, which loses the exit code."""


def run() -> NoReturn:
    """Run main, then os._exit to skip interpreter teardown, which takes a tenth of a second."""
    code: object = 0
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


def main() -> None:
    """Run the command line. Every failure becomes one line on standard error and an exit code."""
    _received.clear()
    try:
        signal.signal(signal.SIGTERM, _handle_signal)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background jobs ignore SIGINT
            signal.signal(signal.SIGINT, _handle_signal)
        limit_memory_and_threads()
        import_on_use("importlib.metadata")  # polars imports it for readers of tables, which nothing here reads
        import_on_call(*PACKAGES_OF_POLARS)
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
    """Print one line for the error and exit with its code."""
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
        _exit(f"traceview: error: {error.format_message()} (see {command} --help)", EXIT_ERROR)
    if isinstance(error, TraceviewError):
        _exit(f"traceview: error: {error}", error.exit_code)
    if os.environ.get("TRACEVIEW_DEBUG"):
        raise error
    _exit(f"traceview: error: {_unexpected_error_text(error)}", EXIT_ERROR)


def _exit_interrupted() -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
    with suppress(OSError):
        sys.stderr.write("traceview: interrupted\n")
    sys.exit(SIGNAL_EXIT_CODES[_received[-1] if _received else signal.SIGINT])


def _exit(line: str, code: int) -> NoReturn:
    from traceview.cli.outputs import print_error

    print_error(line)
    sys.exit(code)


def _unexpected_error_text(error: BaseException) -> str:
    """Describe a full disk, or a bug by type and line. The error's own text may hold data from the capture."""
    import errno
    from traceback import extract_tb

    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"cannot write standard output ({os.strerror(errno.ENOSPC)})"
    frames = [frame for frame in extract_tb(error.__traceback__) if "traceview" in Path(frame.filename).parts]
    where = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"internal error ({type(error).__name__}{where}); run again with TRACEVIEW_DEBUG=1 and report what it prints"


class _ImportedOnUse(ModuleType):
    """Stand in for a module until an attribute of it is looked up."""

    def __getattr__(self, name: str) -> object:
        sys.modules.pop(self.__name__, None)
        return getattr(import_module(self.__name__), name)


def import_on_use(name: str) -> None:
    """Delay the import of a module of a package."""
    if name not in sys.modules:
        package, _, child = name.rpartition(".")
        sys.modules[name] = _ImportedOnUse(name)
        setattr(import_module(package), child, sys.modules[name])


class _ImportedOnCall(ModuleType):
    """A package that is imported when one of its functions is called. Until then each public name is a function."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *values, **named: _imported_name(self, name)(*values, **named)


def _imported_name(package: ModuleType, name: str) -> Callable[..., object]:
    spec = package.__spec__
    if isinstance(package, _ImportedOnCall) and spec is not None and spec.loader is not None:
        package.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader.exec_module(package)
    function: Callable[..., object] = getattr(package, name)
    return function


def import_on_call(*packages: str) -> None:
    """Delay the import of packages until one of their functions is called. Others may import these functions before."""
    for package in packages:
        spec, path = None, None
        for name in accumulate(package.split("."), "{}.{}".format):
            spec = PathFinder.find_spec(name, path)
            path = None if spec is None else spec.submodule_search_locations
        if spec is not None and package not in sys.modules:
            sys.modules[package] = module_from_spec(spec)
            sys.modules[package].__class__ = _ImportedOnCall
