from __future__ import annotations

from typing import Any

import pytest
import torch

from instrument.errors import ConfigError
from instrument.models import check
from tests.instrument.models.tiny import (
    DATA,
    build,
    tiny,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("chosen", "precision", "message"),
    [
        ({"attention": "efficient"}, None, "attention efficient has no kernel for cpu: use auto, flash"),
        ({"attention": "flash"}, "fp32", "attention flash has no fp32 kernel for CUDA"),
        ({"attention": "flash", "width": 1024}, "bf16", "attention flash has no kernel for heads 512 wide, 256 at m"),
        ({"attention": "efficient", "width": 24}, "bf16", "attention efficient has no kernel for heads 12 wide"),
    ],
)
def test_attention_without_a_kernel_is_one_line(chosen: Any, precision: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(tiny(**chosen), DATA, "cpu") if precision is None else check(tiny(**chosen), CUDA, precision)
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


def test_valid_attention_is_accepted() -> None:
    check(tiny(), CPU, "fp32")
    check(tiny(attention="flash"), CPU, "fp32")
    check(tiny(attention="flash"), CUDA, "bf16")
    check(tiny(attention="flash"), CUDA, None)
    check(tiny(attention="efficient", width=24), CUDA, "fp32")


@pytest.mark.parametrize("sizes", [{"width": 10, "heads": 4}, {"layers": 0}])
def test_impossible_sizes_are_refused_by_the_configuration(sizes: Any) -> None:
    with pytest.raises(ConfigError):
        tiny(**sizes)
