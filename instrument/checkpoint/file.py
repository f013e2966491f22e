"""Checkpoint files: atomic writes, verified reads, no code execution.

A file is written under a temporary name in the same folder, flushed to disk and renamed, so readers see either the old
file or the new one. The writer locks the temporary file. The kernel releases the lock when the process dies, so
`remove_stale` can tell the leftovers of a killed run from a file that another run is writing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import zipfile
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, TypeVar

import torch

from instrument.errors import InstrumentError, LogFunction

Loaded = TypeVar("Loaded")

PROGRAM = "instrument"
FORMAT = 1
TEMPORARY = ".writing"
_NAME = re.compile(r"\d+-step-\d+(-emergency)?\.pt")

# Exact types only: pickle stores a subclass, such as numpy.float64, as a function call.
_MAPPINGS: tuple[type, ...] = (dict, OrderedDict, Counter)
_SEQUENCES: tuple[type, ...] = (list, tuple, set, torch.Size)
_PLAIN: tuple[type, ...] = (
    type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Tensor, torch.nn.Parameter,
)  # fmt: skip


class DamagedError(InstrumentError):
    """A checkpoint is damaged, so another one has to be used."""


def write(path: Path, contents: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically: an existing file at `path` stays until the new one is on disk.

    Args:
        path: the file to write.
        contents: entries by name, of tensors, numbers, text, lists and dictionaries.

    Raises:
        InstrumentError: a value has a type that `read` would refuse, or the file cannot be written.
    """
    contents = {"program": PROGRAM, "format": FORMAT, **contents}
    _refuse_code(contents, path.name)
    with io_errors(f"{path} cannot be written"), replacing(path) as file:
        torch.save(contents, file)


def link(path: Path, name: Path) -> None:
    """Make `name` a hard link to the file `path`, replacing `name`; copy it if the file system has no hard links.

    Raises:
        InstrumentError: `name` cannot be written.
    """
    temporary = _temporary(name)
    with io_errors(f"{name} cannot be written"):
        try:
            temporary.unlink(missing_ok=True)
            os.link(path, temporary)
            temporary.replace(name)
            _flush_folder(name.parent)
        except OSError:
            with path.open("rb") as source, replacing(name) as file:
                shutil.copyfileobj(source, file)
        finally:
            # os.replace does nothing if both names already are the same file.
            temporary.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """Verify every checksum of a checkpoint file and return its entries, with tensors on the CPU.

    Raises:
        DamagedError: the file is damaged.
        InstrumentError: the file is missing or not a checkpoint of this program.
    """
    with io_errors(f"{path} cannot be read"):
        _refuse_damaged(path)
    return _load_contents(path)


def read_loss(path: Path) -> float | None:
    """Return the loss stored in a checkpoint, or None, without reading its tensors."""
    loss: float | None = _load_contents(path, mmap=True).get("loss")
    return loss


def history(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, oldest first, without `best.pt`."""
    return sorted((path for path in folder.glob("*.pt") if _NAME.fullmatch(path.name)), key=_sequence_and_step)


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint in `folder`, or None."""
    return next(reversed(history(folder)), None)


def newest_first(path: Path) -> list[Path]:
    """Return the checkpoints in a folder, the newest first, or the file `path`.

    Raises:
        InstrumentError: there is no such file, or no checkpoint in the folder.
    """
    if path.is_dir():
        if not (paths := history(path)[::-1]):
            raise InstrumentError(f"{path} contains no checkpoint; start without --resume")
        return paths
    if not path.exists():
        last = latest(path.parent)
        remedy = f"the last one there is {last.name}" if last else "give a file, or a folder with checkpoints"
        raise InstrumentError(f"checkpoint {path} does not exist; {remedy}")
    return [path]


def first_undamaged(paths: Sequence[Path], load: Callable[[Path], Loaded], log: LogFunction) -> Loaded:
    """Return what `load` returns for the first of the checkpoints that is not damaged; log each one that is.

    Raises:
        DamagedError: all are damaged.
    """
    for path, before in pairwise(paths):
        try:
            return load(path)
        except DamagedError as error:
            log(f"{str(error).partition(';')[0]}; trying the checkpoint before it, {before.name}")
    return load(paths[-1])


def next_name(folder: Path, step: int, *, emergency: bool) -> Path:
    """Return the path of the next checkpoint, such as "0007-step-300.pt".

    Names start with a sequence number, because a run can return to an earlier step.
    """
    last = latest(folder)
    sequence = 1 if last is None else _sequence_and_step(last)[0] + 1
    return folder / f"{sequence:04}-step-{step}{'-emergency' if emergency else ''}.pt"


def _sequence_and_step(path: Path) -> tuple[int, int]:
    sequence, _, step, *_ = path.stem.split("-")
    return int(sequence), int(step)


def remove_stale(folder: Path) -> None:
    """Remove temporary files of runs that died while writing; keep those that a live run is writing."""
    for leftover in folder.glob(f".*{TEMPORARY}"):
        # OSError: another run holds the lock or has renamed the file, or the file system has no locks.
        with contextlib.suppress(OSError), leftover.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()


def refuse_unwritable(folder: Path) -> None:
    """Create `folder` and write a test file, so that a run fails at its start and not at its first checkpoint.

    Raises:
        InstrumentError: the folder cannot be created or written to.
    """
    with io_errors(f"checkpoint folder {folder} cannot be written to"):
        folder.mkdir(parents=True, exist_ok=True)
        probe = _temporary(folder / "probe")
        try:
            probe.write_bytes(b"checkpoint")
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of `path` at the end of the block, once it is on disk."""
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            with contextlib.suppress(OSError):  # without locks, remove_stale keeps leftovers
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(path)
        _flush_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")


def _flush_folder(folder: Path) -> None:
    """Flush the folder entry to disk, where the file system supports it."""
    handle = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fsync(handle)
    os.close(handle)


@contextlib.contextmanager
def io_errors(problem: str) -> Iterator[None]:
    """Raise InstrumentError with `problem` and the reason instead of an OSError or a torch error."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise InstrumentError(f"{problem}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return the reason of an I/O error; torch wraps the OSError of a full disk in a RuntimeError."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _refuse_damaged(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        problem = "cut off or is not a checkpoint" if path.stat().st_size else "empty"
        raise DamagedError(f"{path} is {problem}; resume from another checkpoint")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load does not verify checksums
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError) as error:
        raise DamagedError(f"{path} is damaged ({error}); resume from another checkpoint") from error
    if damaged is not None:
        raise DamagedError(f"{path} is damaged (the checksum of {damaged} is wrong); resume from another checkpoint")


def _load_contents(path: Path, mmap: bool = False) -> dict[str, Any]:
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except UnpicklingError as error:
        raise InstrumentError(
            f"{path} contains other objects than tensors and plain values: it is not a checkpoint of this program"
        ) from error
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise InstrumentError(f"{path} cannot be read as a checkpoint: {_reason(error)}") from error
    if not isinstance(contents, dict) or contents.get("program") != PROGRAM:
        raise InstrumentError(f"{path} was written by another program; resume from a checkpoint of this one")
    if contents.get("format") != FORMAT:
        raise InstrumentError(
            f"{path} has format {contents.get('format')}, this version reads {FORMAT}: use the version that wrote it"
        )
    return contents


def _refuse_code(value: object, where: str) -> None:
    """Raise InstrumentError for a value that `read` would refuse."""
    visit: Callable[[object, str], None] = _refuse_code
    if type(value) in _MAPPINGS and isinstance(value, Mapping):
        for key, item in value.items():
            visit(key, f"{where}, key {key!r}")
            visit(item, f"{where}[{key!r}]")
    elif type(value) in _SEQUENCES and isinstance(value, list | tuple | set):
        for index, item in enumerate(value):
            visit(item, f"{where}[{index}]")
    elif type(value) not in _PLAIN:
        raise InstrumentError(
            f"{where} is a {type(value).__module__}.{type(value).__qualname__}: a checkpoint can only contain tensors, "
            "numbers, text, lists and dictionaries; convert it to one of these"
        )
