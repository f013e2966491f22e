"""One checkpoint file: written whole or not at all, read only when it is whole, and never executed.

A file is written under a temporary name in its own folder, flushed to the disk and then renamed: whoever
reads the final name sees the old file or the new one. While it is written it is locked; the kernel drops
the lock of a process that dies, so what a killed run left behind is known from what another is writing.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, cast

import torch

from instrument.errors import InstrumentError

PROGRAM = "instrument"
FORMAT = 1
TEMPORARY = ".writing"
_NAME = re.compile(r"\d+-step-\d+(-emergency)?\.pt")

# Exactly these types: a subclass, such as numpy's float64 of float, is pickled as a call of its own.
_MAPPINGS: tuple[type, ...] = (dict, OrderedDict, Counter)
_SEQUENCES: tuple[type, ...] = (list, tuple, set, torch.Size)
_PLAIN: tuple[type, ...] = (
    type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.Tensor, torch.nn.Parameter,
)  # fmt: skip


def write(path: Path, contents: Mapping[str, Any]) -> None:
    """Write a checkpoint, whole or not at all; what stood at `path` stays until the new one is on the disk.

    Raises:
        InstrumentError: a value could not be read back without executing code, or the file cannot be written.
    """
    contents = {"program": PROGRAM, "format": FORMAT, **contents}
    _refuse_code(contents, path.name)
    with _one_line(f"{path} cannot be written"), _replacing(path) as file:
        torch.save(contents, file)


def link(path: Path, name: Path) -> None:
    """Let `name` be the file `path` too, replacing what `name` was; a copy where the file system has no links.

    Raises:
        InstrumentError: `name` cannot be written.
    """
    temporary = _temporary(name)
    with _one_line(f"{name} cannot be written"):
        try:
            temporary.unlink(missing_ok=True)
            os.link(path, temporary)
            temporary.replace(name)
            _flush_folder(name.parent)
        except OSError:
            with path.open("rb") as source, _replacing(name) as file:
                shutil.copyfileobj(source, file)
        finally:
            # Two names of one file: renaming one to the other leaves both.
            temporary.unlink(missing_ok=True)


def read(path: Path) -> dict[str, Any]:
    """Return a checkpoint's contents, tensors on the CPU, after checking every byte of the file.

    Raises:
        InstrumentError: the file is missing, damaged, or not a checkpoint of this program.
    """
    with _one_line(f"{path} cannot be read"):
        _refuse_damaged(path)
    return _contents(path)


def read_loss(path: Path) -> float | None:
    """Return the loss a checkpoint was saved with, None where there is none; its tensors are not read."""
    loss: object = _contents(path, mmap=True).get("loss")
    if loss is not None and type(loss) not in (int, float):
        raise InstrumentError(f"{path} is damaged: its loss is not a number")
    return cast("float | None", loss)


def history(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, oldest first, without the best one's second name."""
    return sorted((path for path in folder.glob("*.pt") if _NAME.fullmatch(path.name)), key=_place)


def latest(folder: Path) -> Path | None:
    """Return the checkpoint that was written last; None where there is none."""
    return next(reversed(history(folder)), None)


def next_name(folder: Path, step: int, *, emergency: bool) -> Path:
    """Return the name after the last one: its place is counted, because a run can go back to an earlier step."""
    last = latest(folder)
    place = 1 if last is None else _place(last)[0] + 1
    return folder / f"{place:04}-step-{step}{'-emergency' if emergency else ''}.pt"


def _place(path: Path) -> tuple[int, int]:
    place, _, step, *_ = path.stem.split("-")
    return int(place), int(step)


def remove_stale(folder: Path) -> None:
    """Remove what runs that died while they wrote left in `folder`; what a living one writes is left alone."""
    for leftover in folder.glob(f".*{TEMPORARY}"):
        # OSError: another run writes it, has just renamed it, or the file system knows no locks.
        with contextlib.suppress(OSError), leftover.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            leftover.unlink()


def refuse_unwritable(folder: Path) -> None:
    """Make `folder` and write to it once, so that a run fails at its start and not at its first checkpoint.

    Raises:
        InstrumentError: it cannot be made or written to.
    """
    with _one_line(f"checkpoint folder {folder} cannot be written to"):
        folder.mkdir(parents=True, exist_ok=True)
        probe = _temporary(folder / "probe")
        try:
            probe.write_bytes(b"checkpoint")
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    temporary = _temporary(path)
    try:
        with temporary.open("wb") as file:
            with contextlib.suppress(OSError):  # no locks here: a leftover is then never removed
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
    """Put the new name on the disk as well; some file systems cannot, and need not."""
    handle = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fsync(handle)
    os.close(handle)


@contextlib.contextmanager
def _one_line(problem: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise InstrumentError(f"{problem}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return why a file could not be used; torch hides the OSError of a full disk behind its own complaint."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _refuse_damaged(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        if not path.stat().st_size:
            raise InstrumentError(f"{path} is empty; resume from another checkpoint")
        raise InstrumentError(f"{path} is cut off or is not a checkpoint; resume from another one")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load checks no checksum
    except (zipfile.BadZipFile, EOFError) as error:
        raise InstrumentError(f"{path} is damaged ({error}); resume from another checkpoint") from error
    if damaged is not None:
        raise InstrumentError(f"{path} is damaged (the checksum of {damaged} is wrong); resume from another checkpoint")


def _contents(path: Path, mmap: bool = False) -> dict[str, Any]:
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except UnpicklingError as error:
        raise InstrumentError(
            f"{path} holds more than tensors and plain values, so it is not read: not a checkpoint of this program"
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
    """Refuse at once what `read` would refuse when it is too late."""
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
            f"{where} is a {type(value).__module__}.{type(value).__qualname__}: a checkpoint holds tensors, numbers, "
            "text, lists and dictionaries alone; give it as one of these"
        )
