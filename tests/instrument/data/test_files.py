from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from instrument.config.schema import Data, Model  # noqa: E402
from instrument.data import ArrayWindows, MappedFile  # noqa: E402
from instrument.errors import ConfigError  # noqa: E402

TRANSFORMER = Model(name="transformer", features=3, vocabulary=10)


def windows(path: Path) -> ArrayWindows:
    return ArrayWindows(TRANSFORMER, Data(path=path, sequence=4))


def saved(folder: Path, array: Any) -> Path:
    path = folder / "data.npy"
    np.save(path, array)
    return path


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2", "u1", "<i8"])
def test_array_rows_are_read_in_windows(tmp_path: Path, dtype: str) -> None:
    rows = np.arange(33).reshape(11, 3).astype(dtype)
    samples = windows(saved(tmp_path, rows))
    assert len(samples) == 2
    assert samples[1]["inputs"].dtype == torch.float32
    assert samples[1]["inputs"].tolist() == rows[4:8].tolist()
    assert samples[1]["targets"].shape == (4,)
    assert samples[1]["targets"].dtype == torch.int64


def test_index_beyond_the_end_ends_an_iteration(tmp_path: Path) -> None:
    samples = windows(saved(tmp_path, np.zeros((9, 3), np.float32)))
    for index in (2, -1):
        with pytest.raises(IndexError, match="of 2"):
            samples[index]


def test_only_the_path_is_pickled(tmp_path: Path) -> None:
    path = saved(tmp_path, np.ones((50_000, 3), np.float32))
    samples = windows(path)
    sent = pickle.dumps(samples)
    assert len(sent) < 5_000
    assert torch.equal(pickle.loads(sent)[3]["inputs"], samples[3]["inputs"])
    assert isinstance(MappedFile(path).array, np.memmap)


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as raised:
        windows(path)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_unreadable_file_is_one_line(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.npy")
    assert "Is a directory" in refusal(tmp_path)
    broken = tmp_path / "broken.npy"
    for content in (b"", b"\x93NUMPY", b"not an array at all"):
        broken.write_bytes(content)
        assert f"data {broken}: " in refusal(broken)


def test_truncated_array_is_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path, np.ones((100, 3), np.float32))
    path.write_bytes(path.read_bytes()[:-400])
    assert "give an array of numbers" in refusal(path)


@pytest.mark.parametrize("array", [np.array([["a"]]), np.array([[object()]], dtype=object), np.zeros((2, 3), complex)])
def test_array_without_numbers_is_one_line(tmp_path: Path, array: Any) -> None:
    refusal(saved(tmp_path, array))


def test_array_that_does_not_fit_the_model_is_one_line(tmp_path: Path) -> None:
    wide = saved(tmp_path, np.zeros((9, 5), np.float32))
    actual = "and this is an array of shape (9, 5): give its"
    assert f"needs an array of shape (rows, 3), {actual} second" in refusal(wide)
    text = tmp_path / "text.txt"
    text.write_text("some text")
    assert "give an array of numbers (.npy); other data needs a model of your own" in refusal(text)
    short = saved(tmp_path, np.zeros((3, 3), np.float32))
    assert "3 rows are less than one sequence of 4" in refusal(short)
