"""The state of a data loader after one batch, taken while the loader runs ahead."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from instrument.errors import InstrumentError


class LoaderState:
    """A copy of what `loader.state_dict()` returned, or the reason why there is none.

    A loader whose state cannot be taken still serves its batches: the error is raised by `value`, to whoever
    asks for the state.
    """

    __slots__ = ("_error", "_loader", "_value")

    def __init__(self, loader: Any) -> None:
        self._loader, self._value = type(loader).__name__, None
        self._error: Exception | None = None
        try:
            self._value = copy.deepcopy(loader.state_dict())  # a loader may return its own objects
        except Exception as error:
            self._error = error

    def value(self) -> Any:
        """Return the state, a copy for each call; raise InstrumentError where it could not be taken."""
        if self._error is not None:
            raise InstrumentError(
                f"the state of {self._loader} after the last batch is unknown: its state_dict() raised "
                f"{type(self._error).__name__}: {self._error}; resume by `position`, or iterate over the loader itself"
            ) from self._error
        return copy.deepcopy(self._value)


def state_of(loader: Any) -> LoaderState | None:
    """Return the state of `loader` now, None where the loader keeps no state."""
    return LoaderState(loader) if hasattr(loader, "state_dict") else None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a loader stood after a batch: its position and its state, None where it has none."""

    position: Any
    state: LoaderState | None

    @classmethod
    def current(cls, loader: Any) -> Place:
        """Return where `loader` stands; it must not run meanwhile."""
        return cls(getattr(loader, "position", None), state_of(loader))
