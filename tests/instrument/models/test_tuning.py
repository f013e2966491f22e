"""Blocks that compile alone."""

from __future__ import annotations

import pytest
import torch

from instrument.config.schema import Model
from instrument.errors import ConfigError
from instrument.models import compile_model


def test_blocks_need_a_module_list() -> None:
    with pytest.raises(ConfigError, match=r"no nn\.ModuleList of blocks; use --compile full"):
        compile_model(torch.nn.Linear(2, 2), Model(compile="blocks"))
