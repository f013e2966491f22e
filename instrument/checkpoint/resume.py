"""How a run goes on from a checkpoint: what has to agree, what may change, and each part given its state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from instrument.checkpoint import file, optimizer_state, required
from instrument.checkpoint.random_state import restore_random_state
from instrument.errors import InstrumentError

if TYPE_CHECKING:
    from instrument.config.schema import Config

LEARNING_RATE = "training.learning_rate"
# What decides the shape of the weights. The rest of a model's configuration is how it computes.
MUST_AGREE = frozenset(
    f"model.{name}"
    for name in (
        "name", "layers", "width", "heads", "vocabulary", "features", "prompt_tokens",
        "side", "channels", "patch", "classes",
    )
)  # fmt: skip
# Where a run is kept and shown, how it is watched: no two runs need to agree on it.
_FREE = ("checkpoint.", "monitor.", "capture.")


class Stateful(Protocol):
    """A part of a run that can be kept: its state is tensors and plain values alone."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: Any, /) -> object:
        """Take over a state."""


Parts = Mapping[str, Stateful]


@dataclass(frozen=True, slots=True)
class Resumed:
    """Where a run goes on.

    Attributes:
        path: the file.
        step: how many steps were done.
        loss: what `save` was given.
        extra: what `save` was given: data position, late losses.
        reason: of an emergency checkpoint, why it was written.
        changed: configuration fields that differ, "training.learning_rate is 0.1, was 0.3"; each is worth saying.
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
) -> Resumed:
    """Let `parts` go on, bit for bit, from a checkpoint written on this device or another.

    Nothing in the file is executed, and no part is changed before the file is known to be whole and to fit.
    Call it before a CUDA graph is captured: an optimizer's tensors are replaced. A learning rate that `config`
    has changed is taken over; everything else that differs is in `Resumed.changed`.

    Args:
        path: a file, or a folder, of which the last one is taken.
        parts: which parts to load; others in the file are left out.
        device: where the run goes on; each part places its own tensors.
        config: this run's, to be compared.
        random: whether random numbers go on too; not when a program looks at an old model in the middle of a run.

    Raises:
        InstrumentError: the file is missing, damaged, another program's, or made with a model of another shape,
            or a part does not fit.
    """
    path = _file(Path(path))
    contents = file.read(path)
    required.check(path, contents)
    saved, own = contents["config"], flatten(config)
    changed = _compare(path, saved, own)
    states = _states(path, contents, parts, _rate_change(saved, own))
    for name, part in parts.items():
        with _fitting(path, name):
            part.load_state_dict(states[name])
    if random and "random" not in parts and "random" in states:
        with _fitting(path, "random"):
            restore_random_state(states["random"], device)
    return Resumed(path, contents["step"], contents.get("loss"), contents["extra"], contents.get("reason"), changed)


def flatten(config: Config | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a configuration's fields by their dotted names, as plain values: {"model.width": 1024}."""
    return {} if config is None else dict(_fields(config, ""))


def _fields(value: object, name: str) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _fields(item, f"{name}.{key}" if name else str(key))
    else:
        yield name, value if type(value) in (type(None), bool, int, float, str) else str(value)


def _file(path: Path) -> Path:
    """Return the file that is meant: the last one where `path` is a folder."""
    if path.is_dir():
        latest = file.latest(path)
        if latest is None:
            raise InstrumentError(f"{path} holds no checkpoint to go on from; start without --resume")
        return latest
    if not path.exists():
        latest = file.latest(path.parent)
        remedy = f"the last one there is {latest.name}" if latest else "name a file, or a folder with checkpoints"
        raise InstrumentError(f"checkpoint {path} does not exist; {remedy}")
    return path


def _compare(path: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields that differ, one text each, or refuse those that decide the weights' shape."""
    differing = {
        name: f"{name} is {own[name]!r}, was {saved[name]!r}"
        for name in own
        if name in saved and own[name] != saved[name] and not name.startswith(_FREE)
    }
    shape = [text for name, text in differing.items() if name in MUST_AGREE]
    if shape:
        raise InstrumentError(
            f"{path} was made with another model: {', '.join(shape)}; give the checkpoint's values to go on with it"
        )
    return tuple(differing.values())


def _states(
    path: Path, contents: Mapping[str, Any], parts: Parts, factor: float | None
) -> dict[str, Mapping[str, Any]]:
    """Return the state for each part, fitted to this run."""
    states: dict[str, Mapping[str, Any]] = dict(contents["parts"])
    missing = [name for name in parts if name not in states]
    if missing:
        raise InstrumentError(
            f"{path} holds no {', '.join(missing)}, only {', '.join(states)}: it was made by a run of another kind"
        )
    for name, part in parts.items():
        with _fitting(path, name):
            if factor is not None and not isinstance(part, torch.nn.Module):
                states[name] = optimizer_state.change_rate(states[name], factor)
            if isinstance(part, torch.optim.Optimizer):
                states[name] = optimizer_state.fit(part, states[name])
    return states


def _rate_change(saved: Mapping[str, Any], own: Mapping[str, Any]) -> float | None:
    """Return what to multiply learning rates with, None where the configuration has not changed it."""
    old, new = saved.get(LEARNING_RATE), own.get(LEARNING_RATE)
    return new / old if old and new is not None and new != old else None


@contextmanager
def _fitting(path: Path, name: str) -> Iterator[None]:
    """Turn what a state that does not fit raises into one line."""
    try:
        yield
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # torch says first that something is wrong and only then what.
        what = lines[1] if len(lines) > 1 else lines[0] if lines else type(error).__name__
        what = f"{what} is missing" if isinstance(error, KeyError) else what
        raise InstrumentError(f"{path}: its {name} does not fit this run's: {what}") from error
