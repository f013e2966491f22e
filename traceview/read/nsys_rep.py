"""Nsight Systems' own report (.nsys-rep, formerly .qdrep): `nsys export` makes an SQLite export of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path

from traceview.errors import DamagedExportError, NotAnExportError, ReportError, RequestError
from traceview.read.limits import DecodedSize
from traceview.read.nsys_json import is_export
from traceview.read.sqlite.database import shown

REPORT = b"NVIDIA Tegra Profiler Report "
STREAM = b"NVIDIA Nsight Systems Stream"
# The first bytes of the exports that traceview does not read.
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
AS_SQLITE = "nsys export --type sqlite -o report.sqlite report.nsys-rep"
SUFFIXES = (".nsys-rep", ".qdrep")
VERSION = re.compile(rb"(\d{4})@(\d{1,3})@(\d{1,3})")
OLDER = re.compile(rb"(\d{4})\.(\d{1,3})\.(\d{1,3})\.\d{1,9}-")  # until 2022, at the end of a report
END = 4096
SAID = re.compile(r"version (\d{4})\.(\d{1,3})\.(\d{1,3})")
ASKING = 30  # seconds that `nsys --version` may take
CHECK_EVERY = 0.2  # seconds between two looks at the size of an export

# What --nsys names, for the command under way; None is the one on PATH.
CHOSEN: ContextVar[str | None] = ContextVar("nsys", default=None)


def is_report(head: bytes) -> bool:
    """Does a file that begins so come from nsys profile?"""
    return head.startswith(REPORT)


def refuse_stream(path: Path, head: bytes) -> None:
    """Say what to do with a raw stream (.qdstrm), and with what only calls itself a report."""
    name = shown(path)
    if STREAM in head or path.suffix == ".qdstrm":
        raise NotAnExportError(
            f"{name}: a raw stream that nsys did not turn into a report; do it with QdstrmImporter, in the "
            f"host-linux-x64 folder of the Nsight Systems that made it: QdstrmImporter --input-file {name}"
        )
    if path.suffix in SUFFIXES:
        raise NotAnExportError(f"{name}: not a report of Nsight Systems, whatever its name says; capture it again")


def refuse_other_exports(path: Path, head: bytes) -> None:
    """Refuse an export in a format that traceview does not read. Raises NotAnExportError with the remedy."""
    kind = next((kind for matches, kind in OTHER_EXPORTS if matches(head)), None)
    if kind is not None:
        raise NotAnExportError(
            f"{shown(path)}: {kind}, which traceview does not read; export the report as SQLite: {AS_SQLITE}"
        )


def find_nsys(name: str) -> str:
    """Return the nsys to call; `name` is the report that needs it. Raises ReportError, RequestError."""
    chosen = CHOSEN.get()
    found = shutil.which(chosen or "nsys")
    if found is not None:
        return str(Path(found).absolute())
    if chosen is not None:
        raise RequestError("--nsys: no program that can be run; name the file nsys in Nsight Systems' bin folder")
    raise ReportError(
        f"{name}: reading it needs nsys, which is not on PATH; name it with --nsys, "
        f"or where it is installed: nsys export --type sqlite {name}"
    )


def export(path: Path, head: bytes, folder: Path) -> Path:
    """Export a report into `folder` as SQLite and return the export.

    Raises ReportError (also NotAnExportError, DamagedExportError) where nsys is absent, too old or fails.
    """
    name = shown(path)
    nsys = find_nsys(name)
    # A name of our own: nsys would take one that begins with a dash for an option.
    link, out = folder / "report.nsys-rep", folder / f"{path.stem}.sqlite"
    link.symlink_to(path.resolve())
    made = folder / "report.sqlite"
    command = [nsys, "export", "--type", "sqlite", "--output", str(made), str(link)]
    code = _run(command, folder, name, made)
    if code or not made.is_file():
        raise _failed(nsys, path, head, code)
    return made.rename(out)


def _run(command: list[str], folder: Path, name: str, made: Path) -> int:
    """Run nsys without input or output, and return its exit code; an exception here ends nsys too.

    Raises ReportError when the file that it makes exceeds --max-decoded.
    """
    try:
        running = subprocess.Popen(
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
            f"{name}: nsys does not run ({error.strerror}); name another with --nsys, or export it by hand: "
            f"nsys export --type sqlite {name}"
        ) from None
    size = DecodedSize(name)
    try:
        while True:
            size.check(_size_of(made))
            with suppress(subprocess.TimeoutExpired):
                code = running.wait(CHECK_EVERY)
                size.check(_size_of(made))
                return code
    finally:
        if running.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _failed(nsys: str, path: Path, head: bytes, code: int) -> ReportError:
    name, made_by, have = shown(path), _version_of_report(path, head), version_of_nsys(nsys)
    if have is None:
        return ReportError(
            f"{name}: the nsys that was found does not say its version, so it is none or is broken; "
            "name another with --nsys"
        )
    ours = ".".join(map(str, have))
    if made_by is not None and made_by > have:
        theirs = ".".join(map(str, made_by))
        return ReportError(
            f"{name}: made by nsys {theirs}, and the nsys found is {ours}, which is too old to read it; "
            f"name one from {theirs} on with --nsys"
        )
    return DamagedExportError(
        f"{name}: nsys {ours} cannot export it (exit code {code}), so it is cut off or damaged; copy it whole, "
        f"or see what nsys says: nsys export --type sqlite {name}"
    )


def _version_of_report(path: Path, head: bytes) -> tuple[int, ...] | None:
    found = VERSION.search(head) or OLDER.search(_end(path))
    return tuple(int(part) for part in found.groups()) if found else None


def _end(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(-min(END, path.stat().st_size), os.SEEK_END)
            return file.read(END)
    except OSError:
        return b""


def version_of_nsys(nsys: str) -> tuple[int, ...] | None:
    """Return what an nsys says its version is; None where it says none."""
    try:
        said = subprocess.run(
            [nsys, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=ASKING, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = SAID.search(said[:1000].decode("ascii", "replace"))
    return tuple(int(part) for part in found.groups()) if found else None
