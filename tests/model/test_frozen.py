"""Frozen dataclasses of traceview behave as the standard ones."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from traceview.model.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Lean:
    first: int
    second: str = "b"
    third: list[int] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("negative")


@dataclass(frozen=True, slots=True)
class Longer(Lean):
    fourth: int = 4

    def __repr__(self) -> str:
        return "Longer"


@dataclasses.dataclass(frozen=True, slots=True)
class Standard:
    first: int
    second: str = "b"
    third: list[int] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class Hashed:
    text: str


def test_fields_take_positions_names_and_defaults() -> None:
    value = Lean(1, third=[2])
    assert dataclasses.astuple(value) == (1, "b", [2])
    assert Lean(1).third == [] and Lean(1).third is not Lean(1).third
    assert Longer(1, "c").fourth == 4 and Longer(1, fourth=5).second == "b"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        Lean()  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="negative"):
        Lean(-1)


def test_objects_compare_print_and_copy_as_standard_ones() -> None:
    value, standard = Lean(1, "x"), Standard(1, "x")
    assert repr(value) == repr(standard).replace("Standard", "Lean")
    assert value == Lean(1, "x") != Lean(2, "x") and value != (1, "x", []) and value != Longer(1, "x")
    assert repr(Longer(1)) == "Longer"
    assert dataclasses.replace(value, second="y") == Lean(1, "y")
    assert len({Hashed("a"), Hashed("a"), Hashed("b")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(value)
    for other in (pickle.loads(pickle.dumps(value)), copy.copy(value), copy.deepcopy(value)):
        assert other == value and not hasattr(other, "__dict__")
    assert pickle.loads(pickle.dumps(Hashed("a"))) == Hashed("a")


def test_objects_are_frozen() -> None:
    for value in (Lean(1), Hashed("a")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.first = 2  # type: ignore[misc,union-attr]
        with pytest.raises(dataclasses.FrozenInstanceError):
            del value.first  # type: ignore[misc,union-attr]
