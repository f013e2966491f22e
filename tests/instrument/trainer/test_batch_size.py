"""The search for the largest batch, against a linear search, and where it is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrument.config.loading import load
from instrument.config.schema import Config, Data, Model, Training
from instrument.config.sections import AUTO_BATCH
from instrument.errors import ConfigError
from instrument.trainer.batch_size import largest_fitting
from instrument.trainer.training_run import train


@given(limit=st.integers(0, 5000), most=st.integers(1, 4000))
def test_result_fits_and_is_near_the_largest(limit: int, most: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    found, largest = largest_fitting(fits, most), min(limit, most)
    assert largest * 7 / 8 - 1 <= found <= largest
    assert len(tried) <= 20
    assert max(tried) <= max(2 * limit, 1)


def test_auto_is_a_batch_size_for_a_gpu() -> None:
    assert load(None, {"batch": "auto"}).data.batch == AUTO_BATCH
    config = Config(training=Training(device="cpu", steps=1), data=Data(batch=AUTO_BATCH))
    with pytest.raises(ConfigError, match="--batch auto needs a GPU, whose memory it fills; use --batch N"):
        train(config, print)
    with pytest.raises(
        ConfigError, match=r"^--batch: invalid value 0; expected a whole number of at least 1, or auto$"
    ):
        load(None, {"batch": "0"})
    with pytest.raises(ConfigError, match=r"^--batch: invalid value '-1'; "):
        load(None, {"batch": "-1"})


@pytest.mark.gpu
def test_batch_fills_the_memory_of_a_gpu() -> None:
    lines: list[str] = []
    config = Config(training=Training(device="cuda", steps=2), data=Data(batch=AUTO_BATCH, samples=1 << 16))
    train(replace(config, model=Model(layers=2)), lines.append)
    assert any("the largest that fits into 90% of the GPU's memory" in line for line in lines)
