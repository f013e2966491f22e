"""Checkpoints that each rank writes its shards of, in the background, with torch.distributed.checkpoint."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from instrument.checkpoint.folder import Checkpoints
from instrument.checkpoint.resume import Parts, Resumed, compare_settings
from instrument.checkpoint.states import random_state, restore_random_state
from instrument.config.schema import Config
from instrument.distributed.agreement import any_rank
from instrument.distributed.world import World
from instrument.errors import ConfigError, InstrumentError
from instrument.logging import LogFunction

COMPLETE = ".metadata"  # torch writes it last, so a folder without it is incomplete
RUN = "run.json"
TENSORS = ("model", "optimizer")  # the parts that are sharded; each rank keeps the others for itself


class ShardedCheckpoints(Checkpoints):
    """`Checkpoints` in which every rank writes its own shards, in a folder for each checkpoint: `step-00000300/`.

    The weights are copied to the host, and written while the run continues. A run with another number of ranks can
    load them. The best checkpoint is not kept, and after an error on one rank none is written, because all must write.
    Every rank must make the same calls. Load only checkpoints that you trust: torch unpickles their metadata.

    Args:
        folder: folder that all ranks can access.
        keep: number of most recent checkpoints to keep.
        config: the configuration, stored in each checkpoint and compared on resume.
        log: receives one line for each problem.
        world: the ranks.
    """

    def __init__(self, folder: Path, keep: int, *, config: Config, log: LogFunction, world: World) -> None:
        super().__init__(folder, keep, best=False, config=config, log=log)
        self._world = world
        self._writing: Future[Any] | None = None
        # The thread that writes has its own group: its collectives would mix with those of the training.
        self._group = dist.new_group(backend="gloo") if world.size > 1 else None
        any_rank(False, world)  # wait until every rank has checked the folder

    def save(
        self,
        step: int,
        parts: Parts,
        *,
        loss: float | None = None,
        extra: Mapping[str, Any] | None = None,
        provisional: bool = False,
    ) -> Path:
        """Copy the state to the host and write it in the background, or, for a single process, at once."""
        path = self._write_run(step, parts, loss=loss, extra=extra)
        if self._group is None:
            with _single_process():
                state_dict_saver.save(_tensors(parts), checkpoint_id=path)
            return path
        writing: Any = state_dict_saver.async_save(_tensors(parts), checkpoint_id=path, process_group=self._group)
        self._writing = writing
        return path

    def confirm(self, step: int) -> None:
        """Do nothing: every checkpoint counts as soon as it is written."""

    def emergency(
        self, step: int, parts: Parts, reason: str | BaseException, *, extra: Mapping[str, Any] | None = None
    ) -> Path | None:
        """Write a checkpoint if all ranks stop together; after an exception on one rank there is none."""
        if isinstance(reason, BaseException):
            self._log(f"no emergency checkpoint at step {step}: with sharded checkpoints all ranks must write together")
            return None
        path = self.save(step, parts, extra=dict(extra or {}) | {"reason": reason})
        self.close()
        return path

    def close(self) -> None:
        """Wait until the last checkpoint is written, and remove old ones."""
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        except Exception as error:
            self._log(f"a checkpoint in {self.folder} was not written: {type(error).__name__}: {error}")
        if self._world.first:
            for old in self._complete()[: -self._keep]:
                shutil.rmtree(old, ignore_errors=True)

    def latest(self) -> Path | None:
        """Return the newest complete checkpoint, or None."""
        return next(iter(reversed(self._complete())), None)

    def load(
        self, where: str | Path, parts: Parts, device: torch.device | str = "cpu", *, random: bool = True
    ) -> Resumed:
        """Load "latest", a checkpoint, or the last one of another folder, into the shards of this rank.

        Raises:
            InstrumentError: the checkpoint does not exist, or it is of another model.
        """
        path = self._chosen(where)
        run = json.loads((path / RUN).read_text())
        changed = compare_settings(path, run["config"], self._config)
        state = _tensors(parts)
        with _single_process() if self._group is None else nullcontext():
            state_dict_loader.load(state, checkpoint_id=path)
        set_state_dict(
            *_model_and_optimizer(parts), model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        rank = min(self._world.rank, run["ranks"] - 1)
        own = torch.load(path / f"rank-{rank}.pt", weights_only=True)
        for name, part in parts.items():
            if name not in TENSORS:
                part.load_state_dict(own[name])
        if random and self._world.rank < run["ranks"]:  # another rank's numbers would repeat
            restore_random_state(own["random"], device)
        return Resumed(path, run["step"], run["loss"], run["extra"], run["extra"].get("reason"), changed)

    def _write_run(self, step: int, parts: Parts, *, loss: float | None, extra: Mapping[str, Any] | None) -> Path:
        """Write what is not sharded, after the checkpoint before is complete; return the folder."""
        self.close()
        path = self.folder / f"step-{step:08}"
        run = {
            "step": step,
            "ranks": self._world.size,
            "loss": loss,
            "extra": dict(extra or {}),
            "config": self._config,
        }
        states = {name: part.state_dict() for name, part in parts.items() if name not in TENSORS}
        try:
            path.mkdir(exist_ok=True)
            (path / COMPLETE).unlink(missing_ok=True)
            (path / RUN).write_text(json.dumps(run | {"config": self._config}))
            torch.save(states | {"random": random_state()}, path / f"rank-{self._world.rank}.pt")
        except OSError as error:
            raise InstrumentError(f"{path} cannot be written: {error.strerror}") from error
        return path

    def _complete(self) -> list[Path]:
        return sorted(path.parent for path in self.folder.glob(f"step-*/{COMPLETE}"))

    def _chosen(self, where: str | Path) -> Path:
        if where == "best":
            raise ConfigError("--resume best: sharded checkpoints have no best one; use --resume latest")
        if where != "latest" and (Path(where) / RUN).exists():
            return Path(where)
        folder = self.folder if where == "latest" else Path(where)
        complete = sorted(path.parent for path in folder.glob(f"step-*/{COMPLETE}"))
        if not complete:
            raise InstrumentError(f"{folder} contains no sharded checkpoint; start without --resume")
        return complete[-1]


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
    """Return the shards of this rank of the weights and the state of the optimizer, by names that all ranks share."""
    return dict(zip(TENSORS, get_state_dict(*_model_and_optimizer(parts)), strict=True))
