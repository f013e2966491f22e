"""Blocks that compile alone, and float8, which is refused where it cannot run."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from instrument.config.schema import Model  # noqa: E402
from instrument.errors import ConfigError  # noqa: E402
from instrument.models import compile_model, convert_to_float8  # noqa: E402


def test_blocks_need_a_module_list() -> None:
    with pytest.raises(ConfigError, match=r"no nn\.ModuleList of blocks; use --compile full"):
        compile_model(torch.nn.Linear(2, 2), Model(compile="blocks"))


def test_float8_names_the_package_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(ConfigError, match="needs torchao: pip install torchao"):
        convert_to_float8(torch.nn.Linear(16, 16), torch.device("cpu"))


def test_float8_needs_a_gpu() -> None:
    pytest.importorskip("torchao.float8")
    with pytest.raises(ConfigError, match="needs an H100, L40 or newer GPU, and the device is cpu"):
        convert_to_float8(torch.nn.Linear(16, 16), torch.device("cpu"))
