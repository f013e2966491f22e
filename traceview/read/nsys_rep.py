"""Nsight Systems' own report (.nsys-rep, formerly .qdrep), read through `nsys export --type sqlite`."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from traceview.errors import DamagedExportError, NotAnExportError, ReportError, RequestError
from traceview.read import payloads, raw
from traceview.read.payloads import is_export
from traceview.read.raw import RawCapture, Wanted
from traceview.read.source import DecodedSize, display_name, private_folder, read_head
from traceview.read.sqlite.reader import read_sqlite

REPORT_MAGIC = b"NVIDIA Tegra Profiler Report "
STREAM_MAGIC = b"NVIDIA Nsight Systems Stream"
# The first bytes of exports that traceview does not read, and their names in messages.
OTHER_EXPORTS: tuple[tuple[Callable[[bytes], object], str], ...] = (
    (re.compile(rb"\x89HDF\r\n\x1a\n").match, "an HDF5 file (nsys export --type hdf)"),
    (is_export, "a JSON export (nsys export --type json or jsonlines)"),
    (re.compile(rb'\s*\{\s*"VmSystemInformation"').match, "nsys export --type info, which has no events"),
    (re.compile(rb'data: "').match, "nsys export --type text"),
    (
        re.compile(rb"\xff\xff\xff\xff..\x00\x00\x10\x00\x00\x00", re.DOTALL).match,
        "nsys export --type arrow, all tables in one file (arrowdir is read)",
    ),
)
EXPORT_SQLITE = "nsys export --type sqlite -o report.sqlite report.nsys-rep"
SUFFIXES = (".nsys-rep", ".qdrep")
HEAD_VERSION = re.compile(rb"(\d{4})@(\d{1,3})@(\d{1,3})")
TAIL_VERSION = re.compile(rb"(\d{4})\.(\d{1,3})\.(\d{1,3})\.\d{1,9}-")  # until 2022, at the end of a report
TAIL_BYTES = 4096
NSYS_VERSION = re.compile(r"version (\d{4})\.(\d{1,3})\.(\d{1,3})")
VERSION_TIMEOUT = 30  # seconds that `nsys --version` may take
SIZE_CHECK_INTERVAL = 0.2  # seconds between two checks of an export's size

# The value of --nsys for the current command; None means the nsys on PATH.
CHOSEN: ContextVar[str | None] = ContextVar("nsys", default=None)


class NsysReportReader:
    """Reads .nsys-rep and .qdrep files. Needs nsys, of the report's version or newer."""

    kind = "nsys report"

    def matches(self, _path: Path, head: bytes) -> bool:
        """Return whether a file with these first bytes is a report."""
        return head.startswith(REPORT_MAGIC)

    def check(self, path: Path) -> None:
        """Check that there is an nsys to run. Raises ReportError, RequestError."""
        find_nsys(display_name(path))

    def read(self, path: Path, wanted: Wanted | None = None) -> RawCapture:
        """Read a report. Its Python stacks and NCCL's payloads come from a second export, as JSON.

        Raises ReportError, RequestError.
        """
        with private_folder(path) as folder:
            capture = read_sqlite(export_report(path, folder), wanted)
            tables, nvtx = capture.tables, capture.tables.get(raw.NVTX)
            with_stacks = raw.PYTHON_SAMPLES not in tables and raw.has_domain(nvtx, payloads.STACK_DOMAIN)
            with_calls = raw.NCCL_CALLS not in tables and raw.has_domain(nvtx, payloads.NCCL_DOMAIN)
            if not with_stacks and not with_calls:
                return capture
            export = export_report(path, folder, "json")
            stacks = payloads.json_samples(export) if with_stacks else {}
            calls = payloads.calls_from_json(export, tables, display_name(path)) if with_calls else {}
            return capture._replace(tables={**tables, **stacks, **calls})

    @contextmanager
    def as_sqlite(self, path: Path) -> Iterator[Path]:
        """Yield the report's SQLite export, in a temporary folder. Raises ReportError, RequestError."""
        with private_folder(path) as folder:
            yield export_report(path, folder)


def refuse_stream(path: Path, head: bytes) -> None:
    """Raise NotAnExportError for a raw stream (.qdstrm), and for any other file with the suffix of a report."""
    name = display_name(path)
    if STREAM_MAGIC in head or path.suffix == ".qdstrm":
        raise NotAnExportError(
            f"{name}: a raw stream that nsys did not turn into a report; convert it with QdstrmImporter, in the "
            f"host-linux-x64 folder of the Nsight Systems that made it: QdstrmImporter --input-file {name}"
        )
    if path.suffix in SUFFIXES:
        raise NotAnExportError(f"{name}: not a report of Nsight Systems, despite its name; capture it again")


def refuse_other_exports(path: Path, head: bytes) -> None:
    """Refuse an export in a format that traceview does not read. Raises NotAnExportError with the remedy."""
    kind = next((kind for matches, kind in OTHER_EXPORTS if matches(head)), None)
    if kind is not None:
        raise NotAnExportError(
            f"{display_name(path)}: {kind}, which traceview does not read; export the report as SQLite: {EXPORT_SQLITE}"
        )


def installed_nsys() -> str | None:
    """Return the absolute path of the nsys of --nsys or on PATH."""
    path = shutil.which(CHOSEN.get() or "nsys")
    return None if path is None else str(Path(path).absolute())


def required_nsys() -> str:
    """Return the nsys to record with. Raises RequestError."""
    nsys = installed_nsys()
    if nsys is None:
        raise RequestError("nsys is not on PATH; install Nsight Systems, or name the program with --nsys")
    return nsys


def find_nsys(name: str) -> str:
    """Return the nsys to run; `name` is the report that needs it. Raises ReportError, RequestError."""
    path = installed_nsys()
    if path is not None:
        return path
    if CHOSEN.get() is not None:
        raise RequestError("--nsys: not an executable program; name the file nsys in Nsight Systems' bin folder")
    raise ReportError(
        f"{name}: reading it needs nsys, which is not on PATH; name it with --nsys, "
        f"or export the report where nsys is installed: nsys export --type sqlite {name}"
    )


def export_report(path: Path, folder: Path, kind: str = "sqlite") -> Path:
    """Export a report into `folder`, as SQLite or JSON, and return the export.

    Raises ReportError (also NotAnExportError, DamagedExportError) if nsys is missing, too old or fails.
    """
    name = display_name(path)
    nsys = find_nsys(name)
    # nsys would take a name that begins with a dash for an option: give it a link with a fixed name.
    link, renamed = folder / f"{kind}.nsys-rep", folder / f"{path.stem}.{kind}"
    link.symlink_to(path.resolve())
    output = folder / f"report.{kind}"
    command = [nsys, "export", "--type", kind, "--output", str(output), str(link)]
    code = _run_nsys(command, folder, name, output)
    if code or not output.is_file():
        raise _export_error(nsys, path, code)
    return output.rename(renamed)


def _run_nsys(command: list[str], folder: Path, name: str, output: Path) -> int:
    """Run nsys without input or output, and return its exit code; an exception here also kills nsys.

    Raises ReportError if the output file exceeds --max-decoded.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
        )
    except OSError as error:
        raise ReportError(
            f"{name}: nsys does not run ({error.strerror}); name another nsys with --nsys, or export the report "
            f"yourself: nsys export --type sqlite {name}"
        ) from None
    size = DecodedSize(name)
    try:
        while True:
            size.check(_file_size(output))
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(SIZE_CHECK_INTERVAL)
                size.check(_file_size(output))
                return code
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _export_error(nsys: str, path: Path, code: int) -> ReportError:
    """Return the error for a failed export: no nsys, an old nsys or a damaged report."""
    name, report_version, version = display_name(path), _version_of_report(path), version_of_nsys(nsys)
    if version is None:
        return ReportError(
            f"{name}: the nsys on PATH or of --nsys does not report its version, so it is not nsys or it is broken; "
            "name another with --nsys"
        )
    own = ".".join(map(str, version))
    if report_version is not None and report_version > version:
        needed = ".".join(map(str, report_version))
        return ReportError(
            f"{name}: made by nsys {needed}; nsys {own} is too old to read it; "
            f"name an nsys of version {needed} or newer with --nsys"
        )
    return DamagedExportError(
        f"{name}: nsys {own} cannot export it (exit code {code}), so it is cut off or damaged; copy it again, "
        f"or see what nsys reports: nsys export --type sqlite {name}"
    )


def _version_of_report(path: Path) -> tuple[int, ...] | None:
    match = HEAD_VERSION.search(read_head(path)) or TAIL_VERSION.search(_tail(path))
    return tuple(int(part) for part in match.groups()) if match else None


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(-min(TAIL_BYTES, path.stat().st_size), os.SEEK_END)
            return file.read(TAIL_BYTES)
    except OSError:
        return b""


def version_of_nsys(nsys: str) -> tuple[int, ...] | None:
    """Return the version that an nsys prints; None if it prints none."""
    try:
        output = subprocess.run(
            [nsys, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=VERSION_TIMEOUT, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = NSYS_VERSION.search(output[:1000].decode("ascii", "replace"))
    return tuple(int(part) for part in match.groups()) if match else None
