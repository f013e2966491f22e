"""Data sets in the user's files. Files are memory-mapped, so they can be larger than memory.

transformer   array.npy of shape (rows, features), cut into windows of `sequence` rows
dit, flow     array.npy of shape (images, channels, side, side)
mlm           any text file; its bytes are the tokens, cut into windows of `sequence` bytes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from instrument.config.training import Data, Model
from instrument.data.order import generator_for
from instrument.errors import ConfigError
from instrument.models import batches
from instrument.models.batches import Sample

BYTE_VALUES = 256


class MappedFile:
    """A file as a read-only array. Pickling sends the path, so a DataLoader worker maps the file itself.

    Args:
        path: a .npy file, or any other file, which becomes an array of its bytes.

    Raises:
        ConfigError: the file cannot be read, is empty, or does not contain numbers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.array: np.ndarray[Any, Any] = _open_array(path)

    def __reduce__(self) -> tuple[type[MappedFile], tuple[Path]]:
        return MappedFile, (self.path,)


class FileSamples(Dataset[Sample]):
    """Base class: sample `index` depends on the file, the seed and `index` only."""

    def __init__(self, file: MappedFile, model: Model, data: Data, seed: int) -> None:
        self.file, self.model, self.sequence, self.seed = file, model, data.sequence, seed
        self._check()

    def _check(self) -> None:
        """Raise ConfigError if the file does not fit the model."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.file.array) // self.sequence

    def _window(self, index: int) -> np.ndarray[Any, Any]:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return self.file.array[index * self.sequence : (index + 1) * self.sequence]

    def _check_length(self, unit: str) -> None:
        if not len(self):
            raise ConfigError(
                f"data {self.file.path}: {len(self.file.array)} {unit} are less than one sequence of {self.sequence}: "
                "use a longer file or a shorter sequence"
            )


class ArrayWindows(FileSamples):
    """Windows of an array's rows. `batches.from_inputs` derives the targets from the rows."""

    def __getitem__(self, index: int) -> Sample:
        return batches.from_inputs(_floats(self._window(index)), self.model)

    def _check(self) -> None:
        array, features = self.file.array, self.model.features
        if array.ndim != 2 or array.shape[1] != features:
            _refuse(self.file, f"(rows, {features})", "give its second size as features")
        self._check_length("rows")


class Images(FileSamples):
    """Images of an array. Noise, time and label are drawn at random from the seed."""

    def __len__(self) -> int:
        return len(self.file.array)

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        return batches.from_image(_floats(self.file.array[index]), self.model, generator_for(self.seed, index))

    def _check(self) -> None:
        size = (self.model.channels, self.model.side, self.model.side)
        if self.file.array.shape[1:] != size:
            _refuse(self.file, f"(images, {size[0]}, {size[1]}, {size[2]})", "give its sizes as channels and side")


class TextWindows(FileSamples):
    """Windows of a file's bytes. The token of a byte is its value + 1, because token 0 is the mask."""

    def __getitem__(self, index: int) -> Sample:
        tokens = torch.from_numpy(self._window(index).astype(np.int64) + 1)
        return batches.from_tokens(tokens, self.model, generator_for(self.seed, index))

    def _check(self) -> None:
        if self.file.path.suffix == ".npy":
            raise ConfigError(f"data {self.file.path}: model mlm needs a text file, and this is an array")
        if self.model.vocabulary <= BYTE_VALUES:
            raise ConfigError(
                f"vocabulary {self.model.vocabulary} is too small for {BYTE_VALUES} byte values and the mask: "
                f"use {BYTE_VALUES + 1}"
            )
        self._check_length("bytes")


KINDS: Mapping[str, Callable[[MappedFile, Model, Data, int], FileSamples]] = {
    "transformer": ArrayWindows,
    "dit": Images,
    "flow": Images,
    "mlm": TextWindows,
}


def open_samples(path: Path, model: Model, data: Data, seed: int) -> FileSamples:
    """Open the file at `path` as a data set for `model`.

    Raises:
        ConfigError: the file cannot be read, or the model needs another kind of file or other sizes.
    """
    return KINDS[model.name](MappedFile(path), model, data, seed)


def _open_array(path: Path) -> np.ndarray[Any, Any]:
    try:
        if path.suffix == ".npy":
            array: np.ndarray[Any, Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            array = np.memmap(path, np.uint8, "r")
    except OSError as error:
        raise ConfigError(f"data {path}: {error.strerror or error}: give a readable file") from error
    except (ValueError, EOFError) as error:
        raise ConfigError(f"data {path}: {error}: give an array of numbers (.npy) or a text file") from error
    if array.dtype.kind not in "fiub" or not array.size:
        raise ConfigError(f"data {path}: not trainable: {array.size} values of {array.dtype}; use numbers")
    return array


def _floats(values: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _refuse(file: MappedFile, expected: str, remedy: str) -> None:
    is_text = file.path.suffix != ".npy"
    actual = "a text file" if is_text else f"an array of shape {tuple(file.array.shape)}"
    raise ConfigError(
        f"data {file.path}: the model needs an array of shape {expected}, and this is {actual}: "
        f"{'give a .npy file, or use model mlm' if is_text else remedy}"
    )
