"""What the decoder fills: one column of integers and its nulls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.int64]
Item = TypeVar("Item", bound=np.generic)


class NotPlainError(Exception):
    """SQLite must read this table."""


@dataclass(slots=True)
class Column:
    """A column under construction; `null` marks its nulls, and is None while there are none."""

    values: Numbers
    null: NDArray[np.bool_] | None = None

    def null_flags(self) -> NDArray[np.bool_]:
        """Return the writable marks of nulls, made on first use."""
        if self.null is None:
            self.null = np.zeros(len(self.values), np.bool_)
        return self.null

    def joined(self, parts: list[slice]) -> Column:
        """Return these parts, which ascend, as one column."""
        return Column(_joined(self.values, parts), None if self.null is None else _joined(self.null, parts))


def _joined(values: NDArray[Item], parts: list[slice]) -> NDArray[Item]:
    return values[parts[0]] if len(parts) == 1 else np.concatenate([values[part] for part in parts])
