"""Records a program with the options of nsys that traceview needs, and checks whether this machine can."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from traceview.errors import ReportError, RequestError
from traceview.model.frozen import dataclass
from traceview.process import python_command
from traceview.read.nsys_rep import installed_nsys, required_nsys, version_of_nsys
from traceview.read.source import display_name
from traceview.report.files import refuse_link

TRACED = "cuda,nvtx"  # with `osrt` some programs in PyTorch hang
# CPU samples and context switches need permissions, and slow the program down.
WITHOUT_CPU = ("--sample=none", "--cpuctxsw=none")
PYTHON_SAMPLES = ("--python-sampling=true", "--python-sampling-frequency=1000")
GPU_METRICS = ("--gpu-metrics-devices=all", "--gpu-metrics-device=all")  # by the version of nsys, the newer first
# With --iterations: the seconds that a session takes to begin, of the first recording, and of the longest.
SESSION_SECONDS, FIRST_SECONDS, MAX_SECONDS = 1.0, 2.0, 120.0
ATTEMPT = ".part.nsys-rep"  # each of the recordings of --iterations
MARGIN = 1.2  # iterations differ in length
TIMEOUT = 60  # seconds that a program may take to answer


# Where launchers write the rank of a process and the number of ranks: torchrun, Slurm's srun, Open MPI, MPICH.
RANKS = {
    "RANK": "WORLD_SIZE",
    "SLURM_PROCID": "SLURM_STEP_NUM_TASKS",
    "OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK": "PMI_SIZE",
}


def rank_of_process() -> int | None:
    """Return the rank that a launcher gave this process; None if it started no others."""
    for rank, size in RANKS.items():
        number, count = (os.environ.get(name, "") for name in (rank, size))
        if number.isdecimal() and count.isdecimal() and int(count) > 1:
            return int(number)
    return None


class SteadyIterations(NamedTuple):
    """The number of iterations after the warm-up, and their mean time in ns: 0 if there are none.

    The time is None without GPU work: the program still starts.
    """

    iterations: int
    time_ns: int | None


@dataclass(frozen=True, slots=True)
class Recording:
    """What to record: the program and its arguments, and the report without its suffix.

    `delay` and `seconds` limit the time that is recorded; None records from the start, and to the end. `iterations`
    ends the recording when it has as many.
    """

    command: tuple[str, ...]
    output: Path
    traced: str = TRACED
    python: bool = False
    gpu_metrics: bool = False
    delay: float | None = None
    seconds: float | None = None
    iterations: int | None = None
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
        overwrite = f"--force-overwrite={str(self.replaces).lower()}"
        options = [*self.traces, *WITHOUT_CPU, *self.counters(nsys), *limits, overwrite]
        return [nsys, "profile", *options, f"--output={self.output}", *self.command]

    @property
    def traces(self) -> tuple[str, ...]:
        """The options on the APIs and the Python stacks that nsys records."""
        return (f"--trace={self.traced}", *(PYTHON_SAMPLES if self.python else ()))

    def counters(self, nsys: str) -> tuple[str, ...]:
        """Return the option on GPU metrics. Raises RequestError if this nsys has none."""
        if not self.gpu_metrics:
            return ()
        names = [option for option in GPU_METRICS if _has_option(nsys, option)]
        if not names:
            raise RequestError(
                "this nsys samples no GPU metrics; name a newer one with --nsys, or leave out --gpu-metrics"
            )
        return (names[0],)


def record(recording: Recording, steady: Callable[[Path], SteadyIterations]) -> int:
    """Run nsys with the program, and return its exit code. Ctrl-C ends the program and keeps the report.

    `steady` returns the iterations of a report. Raises RequestError or ReportError if it cannot record.
    """
    nsys = required_nsys()
    if shutil.which(recording.command[0]) is None:
        raise RequestError(f"{recording.command[0][:80]!r} is not a program; write it as in the shell, after --")
    for written in (recording.report, *map(recording.report.with_suffix, (".qdstrm", ATTEMPT))):
        refuse_link(written, "--output")
    if recording.report.exists() and not recording.replaces:
        raise RequestError(f"{display_name(recording.report)} exists; replace it with --force, or choose --output")
    if recording.python and not _has_option(nsys, PYTHON_SAMPLES[0]):
        raise RequestError("this nsys samples no Python stacks; name a newer one with --nsys, or leave out --python")
    with _interrupts_left_to_nsys():
        if recording.iterations is None:
            code = subprocess.run(recording.arguments(nsys), check=False).returncode
        else:
            code = _record_iterations(recording, nsys, recording.iterations, steady)
    if not is_complete(recording.report, nsys):
        raise ReportError(
            f"{display_name(recording.report)}: nsys wrote no report (exit code {code}); `traceview doctor` looks for "
            "the reason"
        )
    return code


def _record_iterations(recording: Recording, nsys: str, wanted: int, steady: Callable[[Path], SteadyIterations]) -> int:
    """Record until the report has the wanted iterations, for longer each time; then end the program.

    Until the program uses the GPU, each recording has the length of the first.

    nsys can record a running program again and again in a session, but it cannot count. Each recording has a session
    of its own name, because nsys refuses a name whose last session has just shut down.
    """
    session, attempt = f"--session=traceview-{secrets.token_hex(8)}", recording.report.with_suffix(ATTEMPT)
    launch = [nsys, "launch", session.replace("session", "session-new"), *recording.traces]
    counters = recording.counters(nsys)
    program = subprocess.Popen([*launch, "--wait=primary", *recording.command])
    start = ("start", session, *WITHOUT_CPU, *counters, "--force-overwrite=true", f"--output={attempt}")
    seconds, most = FIRST_SECONDS, -1
    ended = _ends_within(program, max(recording.delay or 0, SESSION_SECONDS))
    while not ended and most < wanted and seconds <= MAX_SECONDS:
        if output_of(nsys, *start) is None:
            _shut_down(nsys, session, program)
            raise ReportError("nsys cannot record in a session; use --delay and --seconds in place of --iterations")
        # If the program ends, nsys still writes the report, and refuses to stop.
        ended = _ends_within(program, seconds) or output_of(nsys, "stop", session) is None
        if ended:
            program.wait()
        is_recorded = is_complete(attempt, nsys)
        known = steady(attempt)
        if is_recorded and known.iterations >= most:
            attempt.replace(recording.report)
            most = known.iterations
        if known.time_ns is not None:
            needed = (wanted - known.iterations + 1) * known.time_ns / 1e9
            seconds = max(2 * seconds, MARGIN * (seconds + needed))
    attempt.unlink(missing_ok=True)
    return program.returncode if ended else _shut_down(nsys, session, program)


def _shut_down(nsys: str, session: str, program: subprocess.Popen[bytes]) -> int:
    """End the program of a session, and return 0."""
    output_of(nsys, "shutdown", session)
    program.wait()
    return 0


def _ends_within(program: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether a program ends within this time."""
    with suppress(subprocess.TimeoutExpired):
        program.wait(seconds)
    return program.poll() is not None


def is_complete(report: Path, nsys: str) -> bool:
    """Return whether there is a report.

    Where its importer does not answer soon, as on a loaded machine, nsys leaves a raw stream: import that here.
    """
    stream = report.with_suffix(".qdstrm")
    if not report.is_file() and stream.is_file():
        for importer in Path(nsys).resolve().parent.parent.glob("host-*/QdstrmImporter"):
            subprocess.run([importer, "-i", stream, "-o", report], capture_output=True, check=False)
    if report.is_file():
        stream.unlink(missing_ok=True)
    return report.is_file()


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


OK, WARNING, FAILED = "ok", "warning", "failed"
# nsys 2022.4 and 2024.2 record no range of the Python package nvtx from this version on; 0.2.11 is recorded.
LOSES_RANGES = (0, 2, 12)
LAST_NSYS_THAT_LOSES = (2024, 2)
NEWEST_NSYS = (2026, 2)  # the newest whose exports traceview was tested with (docs/inputs.md)
DRIVER_PARAMETERS = Path("/proc/driver/nvidia/params")
VERSION_OF_NVTX = "import importlib.metadata as m; print(m.version('nvtx'))"
# Prints the file of the module that `import instrument` would load in the working folder, and imports nothing from it.
FILE_OF_INSTRUMENT = (
    "import importlib.util as u; sys.path.insert(0, ''); s = u.find_spec('instrument'); print(s.origin if s else '')"
)
OUR_INSTRUMENT = "NVTX annotations for PyTorch"  # in the docstring of traceview's own package


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, OK, WARNING or FAILED, what it showed, and what to do about it."""

    name: str
    status: str
    text: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Checks:
    """The result of every check, and whether none failed."""

    can_record: bool
    checks: tuple[Check, ...]


def checks() -> Iterator[Check]:
    """Yield the result of each check."""
    nsys = installed_nsys()
    version = None if nsys is None else version_of_nsys(nsys)
    if nsys is None or version is None:
        text = "not on PATH" if nsys is None else "does not report a version"
        yield Check("nsys", FAILED, text, "install Nsight Systems, or name the program with --nsys")
    else:
        text = f"{'.'.join(map(str, version))}; exports up to {'.'.join(map(str, NEWEST_NSYS))} are known"
        remedy = "look at `traceview info` of a report: what it does not know is listed there"
        yield Check("nsys", WARNING, text, remedy) if version[:2] > NEWEST_NSYS else Check("nsys", OK, text)
        yield _test_recording(nsys)
        yield _cpu_samples(nsys)
    yield _driver()
    yield _gpu_metrics()
    yield _nvtx(version)
    yield from _instrument()


def _test_recording(nsys: str) -> Check:
    """Record a program that does nothing."""
    with tempfile.TemporaryDirectory(prefix="traceview-") as folder:
        command = (nsys, "profile", "--trace=nvtx", *WITHOUT_CPU, "--output=test", *python_command("pass"))
        output_of(*command, folder=folder)
        if is_complete(Path(folder, "test.nsys-rep"), nsys):
            return Check("test recording", OK, "nsys wrote a report")
        has_stream = Path(folder, "test.qdstrm").is_file()
    if has_stream:
        remedy = "install all of Nsight Systems, or convert reports elsewhere with its QdstrmImporter"
        return Check("test recording", FAILED, "nsys wrote a raw stream: its importer is missing", remedy)
    return Check("test recording", FAILED, "nsys wrote nothing", "run: nsys profile -t nvtx -o test true")


def _cpu_samples(nsys: str) -> Check:
    status = output_of(nsys, "status", "--environment") or ""
    match = re.search(r"CPU Profiling Environment \(process-tree\): (\w+)", status)
    if match is not None and match[1] == "OK":
        return Check("CPU samples", OK, "allowed")
    remedy = "sudo sysctl kernel.perf_event_paranoid=2; traceview does not need them"
    return Check("CPU samples", WARNING, "not allowed" if match else "unknown", remedy)


def _driver() -> Check:
    listed = output_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    gpus = [line.strip() for line in (listed or "").splitlines() if line.strip()]
    if not gpus:
        return Check("GPU", WARNING, "no NVIDIA driver answers", "record on a machine with a GPU")
    return Check("GPU", OK, f"{len(gpus)} x {gpus[0]}" if len(set(gpus)) == 1 else "; ".join(gpus))


def _gpu_metrics() -> Check:
    try:
        restricted = "RmProfilingAdminOnly: 1" in DRIVER_PARAMETERS.read_text()
    except OSError:
        return Check("GPU metrics", WARNING, "unknown", "no driver; traceview does not need them")
    if restricted:
        remedy = "load the driver with NVreg_RestrictProfilingToAdminUsers=0; traceview does not need them"
        return Check("GPU metrics", WARNING, "for administrators only", remedy)
    return Check("GPU metrics", OK, "allowed")


def _nvtx(nsys: tuple[int, ...] | None) -> Check:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", output_of(*python_command(VERSION_OF_NVTX, python=_python())) or "")
    if match is None:
        remedy = "pip install nvtx==0.2.11 for ranges; torch.cuda.nvtx needs no package"
        return Check("nvtx package", WARNING, "not installed for the Python on PATH", remedy)
    version = tuple(int(number) for number in match.groups())
    if version >= LOSES_RANGES and nsys is not None and nsys[:2] <= LAST_NSYS_THAT_LOSES:
        text = f"{match[0]}: this nsys records none of its ranges"
        return Check("nvtx package", FAILED, text, "pip install nvtx==0.2.11, or use a newer nsys")
    return Check("nvtx package", OK, match[0])


def _instrument() -> Iterator[Check]:
    """Check that no other module of this name comes before traceview's `instrument`; nothing if there is none."""
    file = Path((output_of(*python_command(FILE_OF_INSTRUMENT, python=_python())) or "").strip())
    if not file.is_file():
        return
    if OUR_INSTRUMENT in file.read_text(encoding="utf-8", errors="replace"):
        yield Check("instrument", OK, f"traceview's, in {file.parents[1].name}")
        return
    folder = file.parent if file.name == "__init__.py" else file
    text = f"another {folder.name} in {folder.parent.name} hides traceview's"
    yield Check(
        "instrument", WARNING, text, "rename it, or: pip uninstall instrument; pip install --force-reinstall traceview"
    )


def _python() -> str:
    """Return the Python on PATH, which is most often the program's."""
    return shutil.which("python") or shutil.which("python3") or sys.executable
