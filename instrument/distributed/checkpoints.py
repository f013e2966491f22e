"""Checkpoints of several ranks: rank 0 writes for all, or each writes its shards. All ranks make the same calls."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from instrument.checkpoint import file
from instrument.checkpoint.folder import Checkpoints, default_folder, wait_for_device
from instrument.checkpoint.resume import Parts, Resumed, Stateful, compare_settings
from instrument.checkpoint.states import fit_optimizer_state, random_state, restore_random_state
from instrument.config.schema import Config
from instrument.distributed.world import World, any_rank, gather_values
from instrument.distributed.wrap import unwrap
from instrument.errors import InstrumentError, LogFunction
from instrument.trainer.learner import Learner

COMPLETE = ".metadata"  # torch writes it last, so a folder without it is incomplete
RUN = "run.json"
TENSORS = ("model", "optimizer")  # the parts that are sharded; each rank keeps the others for itself


def checkpoint_parts(learner: Learner, world: World, *, shared: bool = True) -> Parts:
    """Return the parts of a checkpoint, with the parameter names of a model without a wrapper.

    Args:
        learner: the model and its optimizer.
        world: the ranks. `SharedCheckpoints` calls state_dict() on each, because that of generators is collective.
        shared: whether rank 0 writes for all, and not each rank its shards.
    """
    parts: dict[str, Stateful] = {"model": unwrap(learner.model), "optimizer": learner.optimizer}
    parts |= {"schedule": learner.schedule, "scaler": learner.scaler}
    if shared and world.size > 1:
        parts["random"] = RankRandomState(world, learner.device)
    return parts


class RankRandomState:
    """The random number generators of all ranks: those of rank 0, and under "others" those of the other ranks.

    A single process restores the state of rank 0. A rank without a state in the checkpoint keeps its own.

    Args:
        world: the ranks, all of which must call `state_dict`.
        device: device of this rank.
    """

    def __init__(self, world: World, device: torch.device) -> None:
        self._world, self._device = world, device

    def state_dict(self) -> Mapping[str, Any]:
        """Gather the states of all ranks."""
        first, *others = gather_values(random_state(), self._world)
        return {**first, "others": others}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Restore the state of this rank."""
        states = [state_dict, *state_dict.get("others", ())]
        if self._world.rank < len(states):
            restore_random_state(states[self._world.rank], self._device)


class ShardedCheckpoints(Checkpoints):
    """`Checkpoints` in which every rank writes its own shards, in a folder for each checkpoint: `step-00000300/`.

    The weights are copied to the host, and written while the run continues. A run with another number of ranks can
    load them. There is no best checkpoint. After an error on one rank there is none either, because all ranks must
    write. Every rank must make the same calls. Load only checkpoints that you trust: torch unpickles their metadata.

    Args:
        folder: folder that all ranks can access.
        world: the ranks.
        **about: the other arguments of `Checkpoints`.
    """

    def __init__(self, folder: Path, *, world: World, **about: Any) -> None:
        super().__init__(folder, **{**about, "best": False})
        self._world, self._manages = world, world.first
        self._writing: Future[Any] | None = None
        self._prunes = False  # whether the last checkpoint replaces old ones; one of a run that fails does not
        # The thread that writes has its own group: its collectives would mix with those of the training.
        self._group = dist.new_group(backend="gloo") if world.size > 1 else None
        any_rank(False, world)  # wait until every rank has checked the folder

    def close(self) -> None:
        """Wait until the last checkpoint is written, and remove old ones."""
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except Exception as error:
            self._log(f"a checkpoint in {self.folder} was not written: {type(error).__name__}: {error}")
        if self._prunes:
            self._remove_old()

    def latest(self) -> Path | None:
        """Return the newest complete checkpoint, or None."""
        return next(iter(reversed(_complete(self.folder))), None)

    def _write(self, step: int, parts: Parts, *, alone: bool = False, **entries: Any) -> Path:
        """Copy the state to the host and write it in the background, or at once: for one process, and before an end."""
        if alone:
            raise InstrumentError("with sharded checkpoints all ranks must write together")
        self.close()
        self._prunes = "reason" not in entries
        path = self._write_run(step, parts, entries)
        self._own.add(path)
        if self._group is None:
            with _single_process():
                state_dict_saver.save(_tensors(parts), checkpoint_id=path)
            return path
        writing: Any = state_dict_saver.async_save(_tensors(parts), checkpoint_id=path, process_group=self._group)
        self._writing = writing
        if "reason" in entries:
            self.close()
        return path

    def _write_run(self, step: int, parts: Parts, entries: Mapping[str, Any]) -> Path:
        """Write what is not sharded, and return the folder."""
        path = self.folder / f"step-{step:08}"
        run = {"step": step, "ranks": self._world.size, "config": self._config, **entries}
        states = {name: part.state_dict() for name, part in parts.items() if name not in TENSORS}
        try:
            path.mkdir(exist_ok=True)
            (path / COMPLETE).unlink(missing_ok=True)
            if self._world.first:  # another rank may end the run for another reason
                (path / RUN).write_text(json.dumps(run))
            torch.save(states | {"random": random_state()}, path / f"rank-{self._world.rank}.pt")
        except OSError as error:
            raise InstrumentError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def _read(self, path: Path, parts: Parts, device: torch.device, random: bool) -> Resumed:
        """Load a checkpoint into the shards of this rank."""
        problem: Exception | None = None
        try:
            run = json.loads((path / RUN).read_text())
            rank = min(self._world.rank, run["ranks"] - 1)
            own = torch.load(path / f"rank-{rank}.pt", map_location="cpu", weights_only=True)
        except (OSError, ValueError, LookupError, TypeError, RuntimeError, EOFError, UnpicklingError) as error:
            problem = error
        if any_rank(problem is not None, self._world):
            raise _damaged(path, problem)
        changed = compare_settings(path, run["config"], self._config)
        state = _tensors(parts)
        try:
            with _single_process() if self._group is None else nullcontext():
                state_dict_loader.load(state, checkpoint_id=path)
        except CheckpointException as error:  # on all ranks alike
            raise _damaged(path, next(iter(error.failures.values()))[0]) from None
        model, optimizer = _model_and_optimizer(parts)
        fitted = fit_optimizer_state(optimizer, state["optimizer"])
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=fitted)
        for name, part in parts.items():
            if name not in TENSORS:
                part.load_state_dict(own[name])
        if random and self._world.rank < run["ranks"]:  # another rank's numbers would repeat
            restore_random_state(own["random"], device)
        return Resumed(path, run["step"], run.get("loss"), run["extra"], run.get("reason"), changed)

    def _newest_first(self, where: str | Path) -> list[Path]:
        if where == "best":
            raise InstrumentError("of sharded checkpoints no best one is kept; use --resume latest or a path")
        if where != "latest" and (Path(where) / RUN).exists():
            return [Path(where)]
        folder = self.folder if where == "latest" else Path(where)
        complete = _complete(folder)
        if not complete:
            raise InstrumentError(f"{folder} contains no sharded checkpoint; start without --resume")
        return complete[::-1]

    def _history(self) -> list[Path]:
        return _complete(self.folder)

    def _delete(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)


def _complete(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, by step."""
    return sorted(path.parent for path in folder.glob(f"step-*/{COMPLETE}"))


def _damaged(path: Path, problem: BaseException | None) -> file.DamagedError:
    text = "" if problem is None else f" ({type(problem).__name__}: {problem})".partition("\n")[0]
    return file.DamagedError(f"{path} is damaged{text}; resume from another checkpoint")


def _model_and_optimizer(parts: Parts) -> tuple[nn.Module, torch.optim.Optimizer]:
    model, optimizer = (parts[name] for name in TENSORS)
    assert isinstance(model, nn.Module)
    assert isinstance(optimizer, torch.optim.Optimizer)
    return model, optimizer


@contextmanager
def _single_process() -> Iterator[None]:
    """Silence torch's warning about a missing process group."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _tensors(parts: Parts) -> dict[str, Any]:
    """Return the shards of this rank of the weights and the state of the optimizer, by names that all ranks share.

    Learning rates are numbers: torch has no place in a checkpoint of numbers for a rate that is a tensor on a GPU.
    """
    both: tuple[Any, Any] = get_state_dict(*_model_and_optimizer(parts))
    weights, states = both
    groups = [
        {name: float(value) if isinstance(value, torch.Tensor) else value for name, value in group.items()}
        for group in states["param_groups"]
    ]
    return {"model": weights, "optimizer": {**states, "param_groups": groups}}


def shared_checkpoints(config: Config, world: World, log: LogFunction) -> Checkpoints:
    """Return the checkpoint writer of a run. All ranks must be able to access its folder.

    Raises:
        InstrumentError: no folder is configured, or it cannot be written to.
    """
    settings = config.checkpoint
    if settings.folder is None:
        raise InstrumentError("no folder for checkpoints; use --checkpoint-folder")
    about: dict[str, Any] = {"keep": settings.keep, "best": settings.best, "config": config, "log": log}
    if config.writes_shards:
        return ShardedCheckpoints(settings.folder, world=world, **about)
    if world.size == 1:
        return Checkpoints(settings.folder, **about)
    return SharedCheckpoints(settings.folder, world=world, **about)


def open_checkpoints(config: Config, world: World, log: LogFunction) -> Checkpoints | None:
    """Return the checkpoint writer of a run, in `default_folder` if the configuration names none.

    Returns None if that one cannot be written to; then a run that stops is lost.

    Raises:
        InstrumentError: the folder of the configuration cannot be written to.
    """
    if config.checkpoint.folder is not None:
        return shared_checkpoints(config, world, log)
    folder = Path(_broadcast_from_first([str(default_folder())])[0]) if world.size > 1 else default_folder()
    try:
        file.refuse_unwritable(folder)
        problem = None
    except InstrumentError as error:
        problem = str(error)
    if any_rank(problem is not None, world):
        log(f"{problem or folder}; a run that stops is lost; use --checkpoint-folder")
        return None
    return shared_checkpoints(replace(config, checkpoint=replace(config.checkpoint, folder=folder)), world, log)


class SharedCheckpoints(Checkpoints):
    """`Checkpoints` for several ranks: the states of all ranks are gathered, and rank 0 writes.

    Every rank must call `start`, `save` and `load`, and `emergency` with a text. If one rank calls `save` where
    another calls `emergency`, the call of rank 0 counts. `emergency` with an exception runs on one rank alone and
    writes the state of that rank.

    Args:
        folder: folder that all ranks can access.
        world: the ranks.
        **about: the other arguments of `Checkpoints`.
    """

    def __init__(self, folder: Path | str, *, world: World, **about: Any) -> None:
        super().__init__(folder, **about)
        self._world, self._manages = world, world.first
        any_rank(False, world)  # wait until every rank has checked the folder, before one starts to write

    def _write(self, step: int, parts: Parts, *, alone: bool = False, **entries: Any) -> Path:
        """Gather every part and write on rank 0: return the path, or raise the error, on all ranks."""
        if alone:
            own = {name: part for name, part in parts.items() if not isinstance(part, RankRandomState)}
            return super()._write(step, own, **entries)
        wait_for_device()
        gathered = {name: part.state_dict() for name, part in parts.items()}
        written = ""
        if self._world.first:
            try:
                written = str(self._write_states(step, gathered, entries))
            except BaseException as error:
                _broadcast_from_first([None, str(error) or type(error).__name__])
                raise
        path, problem = _broadcast_from_first([written, None])
        if problem is not None:
            raise InstrumentError(problem)
        return Path(path)

    def _newest_first(self, where: str | Path) -> list[Path]:
        """Return what rank 0 finds; where it finds nothing, every rank says so."""
        paths: list[Any] = [str(path) for path in self._history()[::-1]] if where == "latest" else []
        paths = _broadcast_from_first([paths])[0]
        return [Path(path) for path in paths] or super()._newest_first(where)


def _broadcast_from_first(values: list[Any]) -> list[Any]:
    """Return the values of rank 0 on all ranks, exchanged between the hosts."""
    dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
    return values
