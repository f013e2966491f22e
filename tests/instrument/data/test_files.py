from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from instrument.config.schema import Data, Model  # noqa: E402
from instrument.data.files import MappedFile, open_samples  # noqa: E402
from instrument.errors import ConfigError  # noqa: E402
from instrument.models.batches import IGNORED, MASK  # noqa: E402

DATA = Data(sequence=4)
TRANSFORMER = Model(name="transformer", features=3, vocabulary=10)
MLM = Model(name="mlm", vocabulary=257)
DIT = Model(name="dit", channels=2, side=4)


def saved(folder: Path, array: Any) -> Path:
    path = folder / "data.npy"
    np.save(path, array)
    return path


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<f2", "u1", "<i8"])
def test_array_rows_are_read_in_windows(tmp_path: Path, dtype: str) -> None:
    rows = np.arange(33).reshape(11, 3).astype(dtype)
    samples = open_samples(saved(tmp_path, rows), TRANSFORMER, DATA, 0)
    assert len(samples) == 2
    assert samples[1]["inputs"].dtype == torch.float32
    assert samples[1]["inputs"].tolist() == rows[4:8].tolist()
    assert samples[1]["targets"].shape == (4,)
    assert samples[1]["targets"].dtype == torch.int64


def test_noise_is_reproducible(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(3, 2, 4, 4)).astype(np.float32)
    path = saved(tmp_path, images)
    samples = open_samples(path, DIT, DATA, 5)
    assert len(samples) == 3
    assert torch.equal(samples[2]["image"], torch.tensor(images[2]))
    for name in ("noise", "time", "label"):
        assert torch.equal(samples[2][name], open_samples(path, DIT, DATA, 5)[2][name])
    assert not torch.equal(samples[1]["noise"], samples[2]["noise"])
    assert not torch.equal(samples[1]["noise"], open_samples(path, DIT, DATA, 6)[1]["noise"])


def test_tokens_of_a_text_are_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(b"abcd\x00\xff..rest"[:11])
    samples = open_samples(path, MLM, DATA, 0)
    assert len(samples) == 2
    sample = samples[1]
    hidden = sample["labels"] != IGNORED
    assert torch.where(hidden, sample["labels"], sample["tokens"]).tolist() == [1, 256, ord(".") + 1, ord(".") + 1]
    assert (sample["tokens"][hidden] == MASK).all()
    assert hidden.any()


def test_index_beyond_the_end_ends_an_iteration(tmp_path: Path) -> None:
    samples = open_samples(saved(tmp_path, np.zeros((9, 3), np.float32)), TRANSFORMER, DATA, 0)
    images = open_samples(saved(tmp_path, np.zeros((2, 2, 4, 4), np.float32)), DIT, DATA, 0)
    for of in (samples, images):
        for index in (len(of), -1):
            with pytest.raises(IndexError, match="of 2"):
                of[index]


def test_only_the_path_is_pickled(tmp_path: Path) -> None:
    path = saved(tmp_path, np.ones((50_000, 3), np.float32))
    samples = open_samples(path, TRANSFORMER, DATA, 0)
    sent = pickle.dumps(samples)
    assert len(sent) < 5_000
    assert torch.equal(pickle.loads(sent)[3]["inputs"], samples[3]["inputs"])
    assert isinstance(MappedFile(path).array, np.memmap)


def refusal(path: Path, model: Model, data: Data = DATA) -> str:
    with pytest.raises(ConfigError) as raised:
        open_samples(path, model, data, 0)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_unreadable_file_is_one_line(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "none.npy", TRANSFORMER)
    assert "No such file" in refusal(tmp_path / "none.txt", MLM)
    assert "Is a directory" in refusal(tmp_path, MLM)
    broken = tmp_path / "broken.npy"
    for content in (b"", b"\x93NUMPY", b"not an array at all"):
        broken.write_bytes(content)
        assert f"data {broken}: " in refusal(broken, TRANSFORMER)
    empty = tmp_path / "empty.txt"
    empty.touch()
    assert "empty" in refusal(empty, MLM)


def test_truncated_array_is_one_line(tmp_path: Path) -> None:
    path = saved(tmp_path, np.ones((100, 3), np.float32))
    path.write_bytes(path.read_bytes()[:-400])
    assert "give an array of numbers" in refusal(path, TRANSFORMER)


@pytest.mark.parametrize("array", [np.array([["a"]]), np.array([[object()]], dtype=object), np.zeros((2, 3), complex)])
def test_array_without_numbers_is_one_line(tmp_path: Path, array: Any) -> None:
    refusal(saved(tmp_path, array), TRANSFORMER)


def test_array_that_does_not_fit_the_model_is_one_line(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some text")
    wide = saved(tmp_path, np.zeros((9, 5), np.float32))
    actual = "and this is an array of shape (9, 5): give its"
    assert f"needs an array of shape (rows, 3), {actual} second" in refusal(wide, TRANSFORMER)
    assert "needs an array of shape (images, 2, 4, 4), and this is an array of shape (9, 5)" in refusal(wide, DIT)
    assert "model mlm needs a text file" in refusal(wide, MLM)
    assert "this is a text file: give a .npy file, or use model mlm" in refusal(text, TRANSFORMER)
    assert "vocabulary 256 is too small for 256 byte values" in refusal(text, Model(name="mlm", vocabulary=256))
    assert "9 bytes are less than one sequence of 10" in refusal(text, MLM, Data(sequence=10))
    short = saved(tmp_path, np.zeros((3, 3), np.float32))
    assert "3 rows are less than one sequence of 4" in refusal(short, TRANSFORMER)
