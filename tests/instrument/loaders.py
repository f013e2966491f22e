"""The loader of a configuration."""

from __future__ import annotations

from typing import Any

from instrument.config.schema import Config
from instrument.workload import open_workload


def build_loader(config: Config, **given: Any) -> Any:
    return open_workload(config).build_loader(**given)
