"""Sizes of the package's model that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from instrument.config.schema import Config
from instrument.errors import ConfigError
from tests.instrument.models.tiny import tiny


@pytest.mark.parametrize("sizes", [{"width": 10, "heads": 4}, {"layers": 0}])
def test_impossible_sizes_are_refused_by_the_configuration(sizes: Any) -> None:
    with pytest.raises(ConfigError):
        Config(model=tiny(**sizes))
