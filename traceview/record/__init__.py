"""Records a program with the options of nsys that traceview needs."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from traceview.errors import ReportError, RequestError
from traceview.frozen import frozen
from traceview.read.nsys_rep import installed_nsys
from traceview.read.source import display_name

TRACED = "cuda,nvtx"  # with `osrt` some programs in PyTorch hang
# CPU samples and context switches need permissions, and slow the program down.
WITHOUT_CPU = ("--sample=none", "--cpuctxsw=none")
PYTHON_SAMPLES = ("--python-sampling=true", "--python-sampling-frequency=1000")
TIMEOUT = 60  # seconds that a program may take to answer


@frozen
class Recording:
    """What to record: the program and its arguments, and the report without its suffix.

    `delay` and `seconds` limit the time that is recorded; None records from the start, and to the end.
    """

    command: tuple[str, ...]
    output: Path
    traced: str = TRACED
    python: bool = False
    delay: float | None = None
    seconds: float | None = None
    replaces: bool = False

    @property
    def report(self) -> Path:
        """The file that nsys writes."""
        return self.output.with_name(f"{self.output.name}.nsys-rep")

    def arguments(self, nsys: str) -> list[str]:
        """Return the command that records."""
        limits = [
            f"--{name}={value:g}"
            for name, value in (("delay", self.delay), ("duration", self.seconds))
            if value is not None
        ]
        samples = PYTHON_SAMPLES if self.python else ()
        overwrite = f"--force-overwrite={str(self.replaces).lower()}"
        options = [f"--trace={self.traced}", *WITHOUT_CPU, *samples, *limits, overwrite, f"--output={self.output}"]
        return [nsys, "profile", *options, *self.command]


def record(recording: Recording) -> int:
    """Run nsys with the program, and return its exit code. Ctrl-C ends the program and keeps the report.

    Raises RequestError or ReportError if it cannot record.
    """
    nsys = installed_nsys()
    if nsys is None:
        raise RequestError("nsys is not on PATH; install Nsight Systems, or name the program with --nsys")
    if shutil.which(recording.command[0]) is None:
        raise RequestError(f"{recording.command[0][:80]!r} is not a program; write it as in the shell, after --")
    if recording.report.exists() and not recording.replaces:
        raise RequestError(f"{display_name(recording.report)} exists; replace it with --force, or choose --output")
    if recording.python and not _has_option(nsys, PYTHON_SAMPLES[0]):
        raise RequestError("this nsys samples no Python stacks; name a newer one with --nsys, or leave out --python")
    with _interrupts_left_to_nsys():
        code = subprocess.run(recording.arguments(nsys), check=False).returncode
    if not recording.report.is_file():
        raise ReportError(
            f"{display_name(recording.report)}: nsys wrote no report (exit code {code}); `traceview doctor` looks for "
            "the reason"
        )
    return code


def _has_option(nsys: str, option: str) -> bool:
    return option.partition("=")[0] in (output_of(nsys, "profile", "--help") or "")


def output_of(*command: str, folder: str | None = None) -> str | None:
    """Return what a program prints; None if it is missing, fails or takes longer than TIMEOUT."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False, cwd=folder
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


@contextmanager
def _interrupts_left_to_nsys() -> Iterator[None]:
    """Ignore Ctrl-C, which nsys gets too: it ends the program and writes the report."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
