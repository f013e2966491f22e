"""Classes of `frozen` behave as those of `dataclass(frozen=True, slots=True)`."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any

import pytest

from traceview.frozen import frozen

Decorator = Callable[[type], type]
DECORATORS: tuple[Decorator, ...] = (frozen, dataclass(frozen=True, slots=True))


@frozen
class Point:
    """Pickled by its name in the module."""

    x: int
    y: int = 2


def make_classes(decorate: Decorator) -> tuple[type, type]:
    @decorate
    class Base:
        """A class with a required field, a default and a factory."""

        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list, metadata={"unit": "ns"})

        @property
        def twice(self) -> int:
            return 2 * self.a

    @decorate
    class Child(Base):  # type: ignore[misc, valid-type]
        """A class with one more field."""

        d: int = 4

        def __post_init__(self) -> None:
            if self.d < 0:
                raise TypeError("negative")

    return Base, Child


CALLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((1,), {}),
    ((1, "x"), {"c": [3]}),
    ((), {"a": 1, "d": 5}),
    ((1, "x", [2], 3), {}),
    ((), {}),
    ((1,), {"a": 1}),
    ((1, 2, 3, 4, 5), {}),
    ((1,), {"unknown": 1}),
    ((1,), {"d": -1}),
)


@pytest.mark.parametrize(("values", "named"), CALLS)
def test_arguments_make_equal_values(values: tuple[Any, ...], named: dict[str, Any]) -> None:
    results = []
    for decorate in DECORATORS:
        _, child = make_classes(decorate)
        try:
            made = child(*values, **named)
            results.append((asdict(made), repr(made), made.twice, made == child(*values, **named)))
        except TypeError:
            results.append(None)
    assert results[0] == results[1]


def test_fields_are_equal() -> None:
    described = [
        [(each.name, each.default, each.metadata) for each in fields(kind)]
        for decorate in DECORATORS
        for kind in make_classes(decorate)
    ]
    assert described[:2] == described[2:]
    assert described[1]


def test_values_do_not_change() -> None:
    point = Point(1)
    with pytest.raises(FrozenInstanceError):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x
    with pytest.raises(FrozenInstanceError):
        point.z = 3  # type: ignore[attr-defined]
    assert not hasattr(point, "__dict__")


def test_equal_values_have_equal_hashes() -> None:
    assert Point(1) == Point(1, 2)
    assert hash(Point(1)) == hash(Point(x=1, y=2))
    assert Point(1) != Point(2)
    assert Point(1) != (1, 2)


def test_copies_are_equal() -> None:
    point = Point(1, 5)
    copies = (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point)), replace(point))
    assert all(each == point for each in copies)
    assert replace(point, y=7) == Point(1, 7)
    assert dataclasses.is_dataclass(Point)
