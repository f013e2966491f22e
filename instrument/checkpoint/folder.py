"""The checkpoint folder of a run: the last K checkpoints, the best one, and emergency checkpoints.

A part is any object with `state_dict()` and `load_state_dict()`: model, optimizer, scheduler, scaler. For a model in a
torch.compile, DDP or FSDP wrapper, pass the inner module, because the wrapper changes the names in its state. One rank
writes, and its state must be complete. The random generators are saved as the part "random" unless it is given.

File names start with a sequence number, so a copied folder keeps its order: `0007-step-300.pt`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from instrument.checkpoint import file
from instrument.checkpoint.resume import Parts, Resumed, Stateful, flatten, load
from instrument.checkpoint.states import random_state
from instrument.errors import ConfigError, InstrumentError, LogFunction, log_warning
from instrument.ranges import SYNCHRONIZE, phase

if TYPE_CHECKING:
    from instrument.config.schema import Config

__all__ = ["BEST", "Checkpoints", "Parts", "Resumed", "Stateful", "load"]


BEST = "best.pt"


class Checkpoints:
    """Saves and loads the checkpoints of one run in one folder.

        checkpoints = Checkpoints("runs/a", keep=3)
        parts = {"model": model, "optimizer": optimizer}
        resumed = checkpoints.load("latest", parts, "cuda")  # if the folder has checkpoints
        ...
        checkpoints.save(step, parts, loss=loss, extra={"position": [epoch, batch]})

    A write is atomic: a killed run leaves no partial checkpoint. Only files of this run, or of the run that it resumed
    in the same folder, are removed.

    Args:
        folder: the folder; created if it does not exist.
        keep: number of recent checkpoints to keep, at least 1. The best one is kept in addition.
        best: whether to keep the checkpoint with the smallest loss as `best.pt`.
        config: the configuration (a dataclass or nested mappings). It is stored in each file and compared on resume.
        log: receives a one-line message about each problem that does not end the run; the default logs a warning.

    Raises:
        ConfigError: `keep` is less than 1.
        InstrumentError: the folder cannot be created or written to.
    """

    def __init__(
        self,
        folder: Path | str,
        keep: int = 3,
        best: bool = True,
        *,
        config: Config | Mapping[str, Any] | None = None,
        log: LogFunction = log_warning,
    ) -> None:
        if keep < 1:
            raise ConfigError(f"checkpoint.keep is {keep}: keep at least 1 checkpoint")
        self.folder = Path(folder)
        self._keep, self._best, self._config, self._log = keep, best, flatten(config), log
        self._manages = True  # whether this process chooses the best checkpoint and removes old ones
        self._own: set[Path] = set()
        self._smallest: float | None = None
        file.refuse_unwritable(self.folder)
        file.remove_stale(self.folder)

    def start(self, resume: str | Path | None, parts: Parts, device: torch.device | str = "cpu") -> Resumed | None:
        """Load the checkpoint `resume`; if it is None, check that the folder has no checkpoints of another run.

        Raises:
            InstrumentError: as for `load`; or `resume` is None and the folder contains checkpoints.
        """
        if resume is not None:
            return self.load(resume, parts, device)
        if self.latest() is not None:
            raise InstrumentError(
                f"{self.folder} contains checkpoints of an earlier run: "
                "use --resume latest to continue it, or another folder"
            )
        return None

    def save(
        self,
        step: int,
        parts: Parts,
        *,
        loss: float | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a checkpoint and remove the oldest ones beyond `keep`.

        Waits for the GPU, because other streams may still write the weights.

        Args:
            step: number of steps done.
            parts: the parts to save, by name.
            loss: the loss that `best` compares; smaller is better, NaN is never best.
            extra: plain values, which `load` returns in `Resumed.extra`.

        Returns:
            The path of the new file.

        Raises:
            InstrumentError: the file cannot be written, or a value is not a tensor or a plain value. Older checkpoints
                stay unchanged.
        """
        path = self._write(step, parts, loss=loss, extra=dict(extra or {}))
        if self._manages and self._best and loss is not None:
            self._update_best(path, loss)
        self._remove_old()
        return path

    def emergency(
        self, step: int, parts: Parts, reason: str | BaseException, *, extra: Mapping[str, Any] | None = None
    ) -> Path | None:
        """Write a checkpoint of a run that fails, without removing others.

        Never raises, not even on Ctrl-C, so that the exception that ended the run stays visible. Pass parts that need
        no other rank: collecting state from ranks that are gone can wait forever.

        Args:
            step: number of steps done.
            parts: the parts to save, by name.
            reason: why the run ends; stored as one line.
            extra: plain values, which `load` returns in `Resumed.extra`.

        Returns:
            The path of the new file; None if it could not be written, after a message that says why.
        """
        try:
            alone = isinstance(reason, BaseException)
            return self._write(step, parts, alone=alone, extra=dict(extra or {}), reason=_first_line(reason))
        except BaseException as error:
            self._log(f"no emergency checkpoint at step {step}: {_first_line(error)}")
            return None

    def close(self) -> None:
        """End what runs in the background: nothing here."""

    def latest(self) -> Path | None:
        """Return the newest checkpoint, including emergency checkpoints, or None."""
        return file.latest(self.folder)

    def load(
        self, where: str | Path, parts: Parts, device: torch.device | str = "cpu", *, random: bool = True
    ) -> Resumed:
        """Load "latest", "best", a file, or the last checkpoint of another folder into `parts`.

        If the last checkpoint of a folder is damaged, the one before it is loaded, and a message says so.
        After a load from this folder, its older checkpoints count as this run's and `keep` applies to them.
        See `instrument.checkpoint.resume.load` for the arguments and the errors.
        """

        def load_one(path: Path) -> Resumed:
            return self._read(path, parts, torch.device(device), random)

        resumed = file.first_undamaged(self._newest_first(where), load_one, self._log)
        if resumed.path.parent.resolve() == self.folder.resolve():
            self._own.update(self._history())
        return resumed

    def _write(self, step: int, parts: Parts, *, alone: bool = False, **entries: Any) -> Path:
        """Write a checkpoint with these entries. `alone`: no other process writes with this one."""
        wait_for_device()
        return self._write_states(step, {name: part.state_dict() for name, part in parts.items()}, entries)

    def _write_states(self, step: int, states: dict[str, Any], entries: Mapping[str, Any]) -> Path:
        path = file.next_name(self.folder, step, emergency="reason" in entries)
        states.setdefault("random", random_state())
        file.write(path, {"step": step, "parts": states, "config": self._config, **entries})
        self._own.add(path)
        return path

    def _newest_first(self, where: str | Path) -> list[Path]:
        """Return the checkpoints that "latest", "best" or a path stands for."""
        named = {"best": self.folder / BEST, "latest": self.folder}
        return file.newest_first(named.get(str(where), Path(where)))

    def _read(self, path: Path, parts: Parts, device: torch.device, random: bool) -> Resumed:
        return load(path, parts, device, config=self._config, random=random)

    def _history(self) -> list[Path]:
        """Return the checkpoints in the folder, oldest first."""
        return file.history(self.folder)

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def _update_best(self, path: Path, loss: float) -> None:
        best = self.folder / BEST
        if self._smallest is None:
            try:
                self._smallest = file.read_loss(best) if best.exists() else None
            except InstrumentError as error:
                self._log(f"{error}; replacing it")
        if loss < (float("inf") if self._smallest is None else self._smallest):
            file.link(path, best)
            self._smallest = loss

    def _remove_old(self) -> None:
        own = [path for path in self._history() if path in self._own] if self._manages else []
        for old in own[: -self._keep]:
            try:
                self._delete(old)
            except OSError as error:
                self._log(f"cannot remove the old checkpoint {old}: {error.strerror}")


def default_folder() -> Path:
    """Return the folder of a run that names none, by time and process: "runs/2026-11-22_18.30.05-4711".

    A second run of the process in the same second has the suffix "-2".
    """
    folder = Path("runs") / f"{time.strftime('%Y-%m-%d_%H.%M.%S')}-{os.getpid()}"
    names = (folder, *(folder.with_name(f"{folder.name}-{number}") for number in range(2, 1000)))
    return next((name for name in names if not name.exists()), folder)


def remove_empty(folder: Path, *, around: bool = True) -> None:
    """Remove the folder of a run that wrote nothing into it and, if `around`, the empty folder around it."""
    with suppress(OSError):  # another run uses it, or it is gone
        folder.rmdir()
        if around:
            folder.parent.rmdir()


def wait_for_device() -> None:
    """Wait for the work of all streams of the current GPU, if the process uses one."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with phase(SYNCHRONIZE):
            torch.cuda.synchronize()


def _first_line(reason: str | BaseException) -> str:
    if isinstance(reason, BaseException):
        return f"{type(reason).__name__}: {reason}".strip().partition("\n")[0]
    return reason.strip().partition("\n")[0]
