"""What is kept of a run, and how a run goes on from it: the last K checkpoints, the best one, an emergency one.

    checkpoints = Checkpoints(folder, keep=3, config=config)
    resumed = checkpoints.load("latest", parts, device)       # or, in a new folder, nothing
    ...
    checkpoints.save(step, parts, loss=loss, extra={"position": [epoch, batch], "losses": late})

A part is anything with state_dict() and load_state_dict(): model, optimizer, scheduler, scaler. Hand over the
module inside a torch.compile, DDP or FSDP wrapper, whose names its state would carry otherwise, and state
that is whole on this rank; one rank writes. The part called "random" is made here unless one is given.

Files are named by their place in the run's history, so a copied folder keeps its order: `0007-step-300.pt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from instrument.checkpoint import file
from instrument.checkpoint.random_state import random_state
from instrument.checkpoint.resume import Parts, Resumed, Stateful, flatten, load
from instrument.errors import ConfigError, InstrumentError
from instrument.logging import Say, say_by_logging
from instrument.ranges import SYNCHRONIZE, phase

if TYPE_CHECKING:
    from instrument.config.schema import Config

__all__ = ["BEST", "Checkpoints", "Parts", "Resumed", "Stateful", "load"]


BEST = "best.pt"


class Checkpoints:
    """The checkpoints of one run in one folder.

    Only files that this run wrote, or that it went on from, are ever removed.

    Args:
        folder: made when it does not exist.
        keep: how many of the last checkpoints stay, at least 1; the best one is kept beside them.
        best: whether the checkpoint with the smallest loss is kept as `best.pt`.
        config: kept in each file, and compared when a run goes on; the trainer's, or nested mappings.
        say: told in one line what went wrong without ending the run.

    Raises:
        ConfigError: `keep` is less than 1.
        InstrumentError: the folder cannot be made or written to.
    """

    def __init__(
        self,
        folder: Path | str,
        keep: int = 3,
        best: bool = True,
        *,
        config: Config | Mapping[str, Any] | None = None,
        say: Say = say_by_logging,
    ) -> None:
        if keep < 1:
            raise ConfigError(f"checkpoint.keep is {keep}: at least 1 checkpoint has to be kept")
        self.folder = Path(folder)
        self._keep, self._best, self._config, self._say = keep, best, flatten(config), say
        self._own: set[Path] = set()
        self._unproven: dict[int, tuple[Path, float | None]] = {}
        self._smallest: float | None = None
        file.refuse_unwritable(self.folder)
        file.remove_stale(self.folder)

    def start(self, resume: str | Path | None, parts: Parts, device: torch.device | str = "cpu") -> Resumed | None:
        """Go on from `resume`, or, where that is None, make sure that no earlier run's work is mixed with this one's.

        Raises:
            InstrumentError: as `load`, or the folder already holds checkpoints.
        """
        if resume is not None:
            return self.load(resume, parts, device)
        if self.latest() is not None:
            raise InstrumentError(
                f"{self.folder} holds checkpoints of an earlier run: "
                "go on with it by --resume latest, or choose another folder"
            )
        return None

    def save(
        self,
        step: int,
        parts: Parts,
        *,
        loss: float | None = None,
        extra: Mapping[str, Any] | None = None,
        provisional: bool = False,
    ) -> Path:
        """Write a checkpoint, whole or not at all, and remove the oldest beyond `keep`.

        Waits for the GPU: other streams may still be writing the weights. A provisional checkpoint does not become
        the best one, and the newest checkpoint that is not provisional stays beyond `keep`, until `confirm`.

        Args:
            step: steps done so far.
            parts: name to part.
            loss: what `best` compares, smaller is better; NaN never is.
            extra: plain values, returned by `load`.
            provisional: whether it is not known yet that the state is good.

        Returns:
            The new file.

        Raises:
            InstrumentError: it cannot be written, or holds what could not be read back. Older ones stay as they are.
        """
        path = self._write(step, parts, loss=loss, extra=extra)
        self._unproven[step] = path, loss
        if provisional:
            self._remove_old()
        else:
            self.confirm(step)
        return path

    def confirm(self, step: int) -> None:
        """Take the checkpoint of `step` as good: it may be the best one, and older ones may go."""
        if step not in self._unproven:  # another rank wrote it
            return
        path, loss = self._unproven.pop(step)
        if self._best and loss is not None:
            self._keep_best(path, loss)
        self._remove_old()

    def emergency(
        self, step: int, parts: Parts, reason: str | BaseException, *, extra: Mapping[str, Any] | None = None
    ) -> Path | None:
        """Write what can still be saved of a run that ends; nothing is removed.

        Never raises, not even on Ctrl-C, so that the exception which ends the run is the one that is seen.
        Where state is gathered over several ranks, that can wait for ranks that are gone: give parts that
        need no other rank.

        Returns:
            The new file, or None after saying why there is none.
        """
        try:
            return self._write(step, parts, extra=extra, reason=_one_line(reason))
        except BaseException as error:
            self._say(f"no emergency checkpoint could be written at step {step}: {_one_line(error)}")
            return None

    def latest(self) -> Path | None:
        """Return the checkpoint written last, emergency ones among them; None where there is none."""
        return file.latest(self.folder)

    def load(
        self, where: str | Path, parts: Parts, device: torch.device | str = "cpu", *, random: bool = True
    ) -> Resumed:
        """Let `parts` go on from "latest", "best", a file or another run's folder, and keep its history from here.

        See the function `load` for the arguments and errors.
        """
        path = self.folder / BEST if where == "best" else self.folder if where == "latest" else Path(where)
        resumed = load(path, parts, device, config=self._config, random=random)
        if resumed.path.parent.resolve() == self.folder.resolve():
            self._own.update(file.history(self.folder))
        return resumed

    def _write(self, step: int, parts: Parts, **about: Any) -> Path:
        path = file.next_name(self.folder, step, emergency="reason" in about)
        _wait_for_device()
        states: dict[str, Any] = {name: part.state_dict() for name, part in parts.items()}
        states.setdefault("random", random_state())
        about["extra"] = dict(about.get("extra") or {})
        file.write(path, {"step": step, "parts": states, "config": self._config, **about})
        self._own.add(path)
        return path

    def _keep_best(self, path: Path, loss: float) -> None:
        best = self.folder / BEST
        if self._smallest is None and best.exists():
            try:
                self._smallest = file.read_loss(best)
            except InstrumentError as error:
                self._say(f"{error}; it is replaced")
        if loss < (float("inf") if self._smallest is None else self._smallest):
            file.link(path, best)
            self._smallest = loss

    def _remove_old(self) -> None:
        own = [path for path in file.history(self.folder) if path in self._own]
        unproven = {path for path, _loss in self._unproven.values()}
        newest_good = next((path for path in reversed(own) if path not in unproven), None)
        for old in own[: -self._keep]:
            if old == newest_good:
                continue
            try:
                old.unlink(missing_ok=True)
            except OSError as error:
                self._say(f"old checkpoint {old} cannot be removed: {error.strerror}")


def _wait_for_device() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with phase(SYNCHRONIZE):
            torch.cuda.synchronize()


def _one_line(reason: str | BaseException) -> str:
    if isinstance(reason, BaseException):
        return f"{type(reason).__name__}: {reason}".strip().partition("\n")[0]
    return reason.strip().partition("\n")[0]
