"""Checkpoints that one rank writes for all: every rank makes the same calls, and none is left waiting."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from instrument.checkpoint import resume
from instrument.checkpoint.folder import BEST, Checkpoints
from instrument.checkpoint.resume import Parts, Resumed
from instrument.config.schema import Config
from instrument.distributed.agreement import stop_together
from instrument.distributed.parts import RandomNumbers, WholeModel, WholeOptimizer
from instrument.distributed.world import World
from instrument.errors import InstrumentError
from instrument.logging import LogFunction


def shared_checkpoints(config: Config, world: World, say: LogFunction) -> Checkpoints:
    """Return the checkpoints that `config` asks for, in its folder, which all ranks can reach.

    Raises:
        InstrumentError: there is no folder, or it cannot be written to.
    """
    kept = config.checkpoint
    if kept.folder is None:
        raise InstrumentError("no folder for checkpoints is given: use --checkpoint-folder")
    if world.size == 1:
        return Checkpoints(kept.folder, kept.keep, kept.best, config=config, say=say)
    return SharedCheckpoints(kept.folder, kept.keep, kept.best, config=config, say=say, world=world)


def load(path: str | Path, parts: Parts, device: torch.device, config: Config) -> Resumed:
    """Let the parts of every rank go on from one file, which each rank reads; `resume.load` says more."""
    return resume.load(path, parts, device, config=config)


class SharedCheckpoints(Checkpoints):
    """`Checkpoints` of several ranks: states are gathered from all, and the first rank writes.

    Every rank has to call `start`, `save` and `load`, and `emergency` with a text; a rank may call `save` where
    another calls `emergency`: the first rank's choice is taken. An emergency that is an exception is one
    rank's own: it writes without the others what it has, which is nothing where weights are sharded.

    Args:
        folder: as the rest, as for `Checkpoints`; every rank has to reach it.
        keep: how many of the last stay.
        best: whether the best one stays.
        config: kept in each file.
        say: told what went wrong.
        world: the ranks.
    """

    def __init__(self, folder: Path | str, keep: int = 3, best: bool = True, *, world: World, **about: Any) -> None:
        super().__init__(folder, keep, best, **about)
        self._world = world
        stop_together(False, world)  # no rank may look for its probe, or for leftovers, while another begins to write

    def save(
        self,
        step: int,
        parts: Parts,
        *,
        loss: float | None = None,
        extra: Mapping[str, Any] | None = None,
        provisional: bool = False,
    ) -> Path:
        """Write one checkpoint for all ranks; see `Checkpoints.save`. Raises on all ranks, or on none."""

        def write(held: Parts) -> Path:
            return Checkpoints.save(self, step, held, loss=loss, extra=extra, provisional=provisional)

        path = self._together(parts, write)
        if path is None:
            raise InstrumentError(f"no checkpoint at step {step}: the first rank could not write one")
        return path

    def emergency(
        self, step: int, parts: Parts, reason: str | BaseException, *, extra: Mapping[str, Any] | None = None
    ) -> Path | None:
        """Write what can still be saved: together where all ranks agreed to stop, alone after an exception."""

        def write(held: Parts) -> Path | None:
            return Checkpoints.emergency(self, step, held, reason, extra=extra)

        try:
            if not isinstance(reason, BaseException):
                return self._together(parts, write)
            if any(isinstance(part, WholeModel | WholeOptimizer) for part in parts.values()):
                self._say(f"no emergency checkpoint at step {step}: no rank alone has all of a sharded model")
                return None
            return write({name: part for name, part in parts.items() if not isinstance(part, RandomNumbers)})
        except BaseException as error:
            self._say(f"no emergency checkpoint at step {step}: {type(error).__name__}: {error}")
            return None

    def load(
        self, where: str | Path, parts: Parts, device: torch.device | str = "cpu", *, random: bool = True
    ) -> Resumed:
        """Let the parts of every rank go on from the file that the first rank finds."""
        path = self.folder / BEST if where == "best" else self.latest() or self.folder if where == "latest" else where
        (found,) = _from_first([str(path)])
        return super().load(found, parts, device, random=random)

    def _together(self, parts: Parts, write: Callable[[Parts], Path | None]) -> Path | None:
        """Gather every part, let the first rank write, and tell the others what became of it."""
        _wait_for_device()
        held = {name: _Held(part.state_dict()) for name, part in parts.items()}
        written: Path | None = None
        if self._world.first:
            try:
                written = write(held)
            except BaseException as error:
                _from_first([None, str(error) or type(error).__name__])
                raise
        path, problem = _from_first([written and str(written), None])
        if problem is not None:
            raise InstrumentError(problem)
        return path and Path(path)


class _Held:
    """A state that was gathered already."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> Mapping[str, Any]:
        return self._state

    def load_state_dict(self, _state: Any, /) -> None:
        raise NotImplementedError


def _from_first(values: list[Any]) -> list[Any]:
    """Return the first rank's values on all ranks, by way of the hosts."""
    dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
    return values


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
