"""Blocks that compile alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from instrument.config.schema import Model  # noqa: E402
from instrument.errors import ConfigError  # noqa: E402
from instrument.models import compile_model  # noqa: E402


def test_blocks_need_a_module_list() -> None:
    with pytest.raises(ConfigError, match=r"no nn\.ModuleList of blocks; use --compile full"):
        compile_model(torch.nn.Linear(2, 2), Model(compile="blocks"))
