"""Checks whether this machine can record what traceview reads."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from traceview.read.nsys_rep import installed_nsys, version_of_nsys
from traceview.record import WITHOUT_CPU, is_complete, output_of
from traceview.workers.python_process import python_command

OK, WARNING, FAILED = "ok", "warning", "failed"
# nsys 2022.4 and 2024.2 record no range of the Python package nvtx from this version on; 0.2.11 is recorded.
LOSES_RANGES = (0, 2, 12)
LAST_NSYS_THAT_LOSES = (2024, 2)
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
        yield Check("nsys", OK, ".".join(map(str, version)))
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
    version = tuple(int(part) for part in match.groups())
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
        yield Check("instrument", OK, "traceview's")
        return
    folder = file.parent if file.name == "__init__.py" else file
    text = f"another {folder.name} in {folder.parent.name} hides traceview's"
    yield Check(
        "instrument", WARNING, text, "rename it, or: pip uninstall instrument; pip install --force-reinstall traceview"
    )


def _python() -> str:
    """Return the Python on PATH, which is most often the program's."""
    return shutil.which("python") or shutil.which("python3") or sys.executable
