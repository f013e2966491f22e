"""Resume from a checkpoint: check that it fits this run, then load each part's state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.utils.data import DataLoader

from instrument.checkpoint import file
from instrument.checkpoint.states import fit_optimizer_state, restore_random_state
from instrument.config.settings import short_repr
from instrument.data import Position
from instrument.errors import InstrumentError, LogFunction, log_warning
from instrument.prefetch import open_resumed

if TYPE_CHECKING:
    from instrument.config.schema import Config

# Settings that decide the shape of the weights. The other model settings decide how the model computes.
SHAPE_SETTINGS = frozenset(f"model.{name}" for name in ("name", "layers", "width", "heads", "vocabulary", "features"))
ENTRIES = ("step", "parts", "config", "extra")  # "loss" and "reason" are optional
# Sections that are never compared: where a run is stored and how it is watched.
_FREE_SECTIONS = ("checkpoint.", "monitor.", "capture.")


class Stateful(Protocol):
    """A part of a run whose state consists of tensors and plain values."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any, /) -> object:
        """Set the state."""


Parts = Mapping[str, Stateful]


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run continues.

    Attributes:
        path: the checkpoint file.
        step: number of steps done.
        loss: the loss given to `Checkpoints.save`.
        extra: the values given to `Checkpoints.save`, such as the data position and late losses.
        reason: why an emergency checkpoint was written; None for other checkpoints.
        changed: one line per setting that differs, such as "training.learning_rate is 0.1, was 0.3".
    """

    path: Path
    step: int
    loss: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None
    changed: tuple[str, ...] = ()


def load(
    path: str | Path,
    parts: Parts,
    device: torch.device | str = "cpu",
    *,
    config: Config | Mapping[str, Any] | None = None,
    random: bool = True,
    log: LogFunction = log_warning,
) -> Resumed:
    """Load a checkpoint into `parts`, so that training continues bit for bit, on this device or another.

        resumed = load("runs/a", {"model": model, "optimizer": optimizer}, "cuda")

    No code in the file is executed. Nothing is loaded until the whole file is checked. Call this before a CUDA graph
    is captured, because it replaces the optimizer's tensors. `Resumed.changed` lists how `config` differs.

    Args:
        path: a checkpoint file, or a folder, whose last checkpoint is loaded; the one before it, if it is damaged.
        parts: the parts to load, by name. Other parts in the file are ignored.
        device: where the run continues. Each part places its own tensors.
        config: this run's configuration, compared with the saved one.
        random: also restore the random number generators. Pass False to look at a model in the middle of another run.
        log: receives a line for each damaged checkpoint.

    Raises:
        InstrumentError: the file is missing, damaged, or written by another program; the model has another shape; or
            a part does not fit.
    """

    def load_one(path: Path) -> Resumed:
        return _load_file(path, parts, device, flatten(config), random=random)

    return file.first_undamaged(file.newest_first(Path(path)), load_one, log)


def _load_file(
    path: Path, parts: Parts, device: torch.device | str, config: Mapping[str, Any], *, random: bool
) -> Resumed:
    contents = file.read(path)
    if absent := [name for name in ENTRIES if name not in contents]:
        raise InstrumentError(f"{path} contains no {absent[0]}: it is incomplete; resume from another checkpoint")
    changed = compare_settings(path, contents["config"], config)
    states = _fit_states(path, contents, parts)
    for name, part in parts.items():
        with _explain_misfit(path, name):
            part.load_state_dict(states[name])
        if isinstance(part, DataLoader):
            open_resumed(part)
    if random and "random" not in parts and "random" in states:
        with _explain_misfit(path, "random"):
            restore_random_state(states["random"], device)
    return Resumed(path, contents["step"], contents.get("loss"), contents["extra"], contents.get("reason"), changed)


def saved_position(path: Path, extra: Mapping[str, Any]) -> Position:
    """Return the data position in a checkpoint's `extra`.

    Raises:
        InstrumentError: the position is missing or not [epoch, batch].
    """
    saved = extra.get("position")
    if not (isinstance(saved, list | tuple) and len(saved) == 2 and min(saved) >= 0):
        problem = "no data position" if saved is None else f"the data position {short_repr(saved)}, not [epoch, batch]"
        raise InstrumentError(f"{path} contains {problem}: it is not a checkpoint of this trainer; use another one")
    return Position(*saved)


def flatten(config: Config | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings of a configuration by dotted name, as plain values: {"model.width": 1024}."""
    return {} if config is None else dict(_fields(config, ""))


def _fields(value: object, name: str) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _fields(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if type(value) in (type(None), bool, int, float, str) else str(value)


def compare_settings(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one line per setting that differs; raise InstrumentError if the weights have another shape."""
    differing = {
        name: f"{name} is {own[name]!r}, was {saved[name]!r}"
        for name in own
        if name in saved and own[name] != saved[name] and not name.startswith(_FREE_SECTIONS)
    }
    shape = [text for name, text in differing.items() if name in SHAPE_SETTINGS]
    if shape:
        raise InstrumentError(
            f"{path} was made with another model: {', '.join(shape)}; use the checkpoint's values to resume from it"
        )
    return tuple(differing.values())


def _fit_states(path: Path, contents: Mapping[str, Any], parts: Parts) -> dict[str, Mapping[str, Any]]:
    """Return the state of each part, adapted to this run's optimizer."""
    states: dict[str, Mapping[str, Any]] = dict(contents["parts"])
    missing = [name for name in parts if name not in states]
    if missing:
        raise InstrumentError(
            f"{path} contains no {', '.join(missing)}, only {', '.join(states)}: another kind of run wrote it"
        )
    for name, part in parts.items():
        with _explain_misfit(path, name):
            if isinstance(part, torch.optim.Optimizer):
                states[name] = fit_optimizer_state(part, states[name])
    return states


@contextmanager
def _explain_misfit(path: Path, name: str) -> Iterator[None]:
    """Turn the exception of a state that does not fit into a one-line InstrumentError."""
    try:
        yield
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The first line of a torch error is general, the second one names the problem.
        problem = lines[1] if len(lines) > 1 else lines[0] if lines else type(error).__name__
        problem = f"{problem} is missing" if isinstance(error, KeyError) else problem
        raise InstrumentError(f"{path}: its {name} does not fit this run's: {problem}") from error
