"""The protocol of a sink: a destination for metrics."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Protocol

from instrument.errors import ConfigError
from instrument.monitor.metrics import Figures


class Sink(Protocol):
    """A destination for metrics: a file, a server, the terminal."""

    def write(self, step: int, figures: Figures) -> None:
        """Write one record: name -> value, None if not measured.

        Args:
            step: last optimizer step of the record, counted from 0.
            figures: the result of `instrument.monitor.metrics.figures`.
        """

    def close(self) -> None:
        """Write buffered records and release all resources."""


def import_optional(module: str, key: str, package: str) -> ModuleType:
    """Import a library that only one sink needs.

    Args:
        module: name of the module.
        key: the setting that needs it, such as "monitor.tensorboard".
        package: the package to install.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as failure:
        raise ConfigError(f"{key} needs the package {package} ({failure}); run: pip install {package}") from None
