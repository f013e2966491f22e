"""Run a command line, usually in this process, because starting Python takes longer than a case."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

Way = Literal["sqlite", "pages", "apart"]
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    """The exit code, output and traceback of a command."""

    code: int
    out: str
    err: str
    raised: str


def run(arguments: tuple[str, ...], scratch: Path, way: Way = "sqlite") -> Ended:
    """Run the command line; `scratch` takes its temporary files.

    With the way "sqlite", SQLite reads small tables; with "pages", the page decoder reads them too; with "apart", the
    command runs in a separate process, as for a user. Only there a fleet has workers.
    """
    if way == "apart":
        return _run_apart(arguments, scratch)
    from traceview.__main__ import SIGNAL_EXIT_CODES, main
    from traceview.read.sqlite import decoder

    before = {number: signal.getsignal(number) for number in SIGNAL_EXIT_CODES}
    code, raised = 0, ""
    with tempfile.TemporaryFile(dir=scratch.parent) as out, tempfile.TemporaryFile(dir=scratch.parent) as err:
        with (
            mock.patch.object(sys, "argv", ["traceview", *arguments]),
            mock.patch.object(tempfile, "tempdir", str(scratch)),
            mock.patch.object(decoder, "MIN_TABLE_BYTES", decoder.MIN_TABLE_BYTES if way == "sqlite" else 0),
            mock.patch("traceview.ranks.analyze_reports.in_processes", _in_this_process),
            mock.patch.dict(os.environ, {"TRACEVIEW_DEBUG": "1"}),
            _streams(out.fileno(), err.fileno()),
        ):
            try:
                main()
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except BaseException:
                code, raised = -1, traceback.format_exc()
        out.seek(0)
        err.seek(0)
        ended = Ended(code, out.read().decode("utf-8", "replace"), err.read().decode("utf-8", "replace"), raised)
    for number, handler in before.items():
        signal.signal(number, handler)
    gc.enable()  # a program of one command does without
    return ended


def _in_this_process(function: Callable[[Any], object], jobs: Sequence[Any], _count: int) -> Iterator[Any]:
    yield from ((index, function(job)) for index, job in enumerate(jobs))


def _run_apart(arguments: tuple[str, ...], scratch: Path) -> Ended:
    # Packages may be where PYTHONPATH says alone.
    places = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": places, "TRACEVIEW_DEBUG": "1"}
    ended = subprocess.run(
        [sys.executable, "-m", "traceview", *arguments],
        cwd=scratch.parent, env=environment, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    out, err = (stream.decode("utf-8", "replace") for stream in (ended.stdout, ended.stderr))
    return Ended(ended.returncode, out, err, err if "Traceback" in err else "")


@contextmanager
def _streams(out: int, err: int) -> Iterator[None]:
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    python = sys.stdout, sys.stderr
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = (open(fd, "w", encoding="utf-8", closefd=False) for fd in (1, 2))  # noqa: SIM115
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        sys.stdout, sys.stderr = python
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        os.close(kept[0])
        os.close(kept[1])
