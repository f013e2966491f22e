"""Data sets in a user's own files: mapped into memory, so that a file may be larger than that.

transformer   array.npy of (rows, features) numbers, cut into windows of `sequence` rows
dit, flow     array.npy of (images, channels, side, side) numbers
mlm           any text file: its bytes are the tokens, cut into windows of `sequence`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from instrument.config.schema import Data, Model, ModelName
from instrument.data.order import generator_for
from instrument.errors import ConfigError
from instrument.models import batches
from instrument.models.batches import Sample

BYTES = 256


class Mapped:
    """A file as a read-only array; a loader's worker that is given one opens it again instead of copying it.

    Args:
        path: a .npy array, or any other file, which is an array of its bytes. Raises ConfigError where it
            cannot be read, is empty, or has no numbers.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.array: np.ndarray[Any, Any] = _opened(path)

    def __reduce__(self) -> tuple[type[Mapped], tuple[Path]]:
        return Mapped, (self.path,)


class FileSamples(Dataset[Sample]):
    """What the data sets here share; sample `index` depends on the file, the seed and `index` alone."""

    def __init__(self, file: Mapped, model: Model, data: Data, seed: int) -> None:
        self.file, self.model, self.sequence, self.seed = file, model, data.sequence, seed
        self._check()

    def _check(self) -> None:
        """Raise ConfigError where the file does not fit the model."""
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
    """Windows of an array's rows; the targets follow from the rows (`batches.from_inputs`)."""

    def __getitem__(self, index: int) -> Sample:
        return batches.from_inputs(_floats(self._window(index)), self.model)

    def _check(self) -> None:
        array, features = self.file.array, self.model.features
        if array.ndim != 2 or array.shape[1] != features:
            _refuse(self.file, f"(rows, {features})", "give its second size as features")
        self._check_length("rows")


class Images(FileSamples):
    """An array's images; noise, time and label are drawn for each by the seed."""

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
    """Windows of a file's bytes, counted from 1: token 0 is the mask."""

    def __getitem__(self, index: int) -> Sample:
        tokens = torch.from_numpy(self._window(index).astype(np.int64) + 1)
        return batches.from_tokens(tokens, self.model, generator_for(self.seed, index))

    def _check(self) -> None:
        if self.file.path.suffix == ".npy":
            raise ConfigError(f"data {self.file.path}: model mlm reads text, and this is an array: give a text file")
        if self.model.vocabulary <= BYTES:
            raise ConfigError(
                f"vocabulary {self.model.vocabulary}: {BYTES} kinds of bytes and the mask are tokens: use {BYTES + 1}"
            )
        self._check_length("bytes")


KINDS: Mapping[ModelName, Callable[[Mapped, Model, Data, int], FileSamples]] = {
    "transformer": ArrayWindows,
    "dit": Images,
    "flow": Images,
    "mlm": TextWindows,
}


def open_samples(path: Path, model: Model, data: Data, seed: int) -> FileSamples:
    """Return the samples for `model` in the file at `path`.

    Raises:
        ConfigError: the file cannot be read, or is not of the kind or size that the model takes.
    """
    return KINDS[model.name](Mapped(path), model, data, seed)


def _opened(path: Path) -> np.ndarray[Any, Any]:
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
        raise ConfigError(f"data {path}: {array.size} values of {array.dtype} are no numbers to train on")
    return array


def _floats(values: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _refuse(file: Mapped, wanted: str, remedy: str) -> None:
    is_text = file.path.suffix != ".npy"
    found = "a text file" if is_text else f"an array of {tuple(file.array.shape)}"
    raise ConfigError(
        f"data {file.path}: the model takes an array of {wanted}, and this is {found}: "
        f"{'give a .npy file, or use model mlm' if is_text else remedy}"
    )
