"""What a sink is: a place that figures go to."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Protocol

from instrument.errors import ConfigError

Figures = Mapping[str, float | int | None]


class Sink(Protocol):
    """A place that figures go to: a file, a server, the terminal."""

    def write(self, step: int, figures: Figures) -> None:
        """Take one record: name -> figure, None where it was not measured.

        Args:
            step: the optimizer step that the record ends with, counted from 0.
            figures: such as `instrument.monitor.metrics.figures` returns.
        """

    def close(self) -> None:
        """Write what is still held, and let go of everything."""


def optional(module: str, key: str, package: str) -> ModuleType:
    """Import a library that only this sink needs.

    Args:
        module: what is imported.
        key: the setting that asked for it, "monitor.tensorboard".
        package: what has to be installed for it.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as failure:
        raise ConfigError(f"{key}: needs the package {package} (pip install {package}): {failure}") from None
