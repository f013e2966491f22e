from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from instrument.trees import dense_parts, leaves, map_leaves, map_tensors, moves_itself, nbytes, tensors

Pair = namedtuple("Pair", "first second")


@dataclass
class Record:
    value: Any
    extra: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    value: Any
    doubled: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "doubled", self.value)


class Box(list):
    label = "none"


class Moving(dict):
    """A mapping that moves itself, like the batches of some libraries."""

    def pin_memory(self) -> Moving:
        return self

    def to(self, device: object, **_how: object) -> Moving:
        return self


numbers = st.integers(0, 9).map(lambda number: torch.full((number,), float(number)))
anything = st.one_of(numbers, st.integers(), st.text(max_size=3), st.none())


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(inner, max_size=3)
    named = st.dictionaries(st.text(max_size=3), inner, max_size=3)
    return st.one_of(
        few,
        few.map(tuple),
        few.map(Box),
        named,
        named.map(OrderedDict),
        st.builds(Pair, inner, inner),
        st.builds(Record, inner, inner),
        st.builds(Frozen, inner),
    )


trees = st.recursive(anything, nested, max_leaves=12)


def shape_of(tree: Any) -> Any:
    """Return types, places and values of a tree, computed without the code under test."""
    if isinstance(tree, torch.Tensor):
        return ("tensor", tree.tolist())
    if isinstance(tree, dict):
        return (type(tree), [(key, shape_of(value)) for key, value in tree.items()])
    if isinstance(tree, (list, tuple)):
        return (type(tree), [shape_of(value) for value in tree])
    if isinstance(tree, Record):
        return (Record, shape_of(tree.value), shape_of(tree.extra))
    if isinstance(tree, Frozen):
        return (Frozen, shape_of(tree.value), shape_of(tree.doubled))
    return (type(tree), tree)


@given(trees)
def test_map_tensors_keeps_structure(tree: Any) -> None:
    before = shape_of(tree)
    copied = map_tensors(tree, lambda tensor: tensor + 1)
    assert shape_of(tree) == before == shape_of(map_tensors(copied, lambda tensor: tensor - 1))
    assert not {id(tensor) for tensor in tensors(tree)} & {id(tensor) for tensor in tensors(copied)}
    seen: list[Any] = []
    map_leaves(tree, seen.append)
    assert [id(leaf) for leaf in seen] == [id(leaf) for leaf in leaves(tree)]


@given(trees)
def test_unchanged_tree_is_not_copied(tree: Any) -> None:
    assert map_tensors(tree, lambda tensor: tensor) is tree


@given(trees)
def test_nbytes(tree: Any) -> None:
    assert nbytes(tree) == 4 * sum(tensor.numel() for tensor in tensors(tree))


def test_mapping_types_are_kept() -> None:
    tree = defaultdict(list, {"x": torch.zeros(2)})
    doubled = map_tensors(tree, lambda tensor: tensor + 1)
    assert doubled["x"].tolist() == [1, 1]
    assert doubled["not there"] == []
    read_only = map_tensors(types.MappingProxyType({"x": torch.zeros(1)}), lambda tensor: tensor + 1)
    assert dict(read_only) == {"x": torch.ones(1)}


class Wrapped(MutableMapping[str, Any]):
    """A mapping whose plain copy shares its items."""

    def __init__(self, items: dict[str, Any]) -> None:
        self.items_by_name = items

    def __getitem__(self, name: str) -> Any:
        return self.items_by_name[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.items_by_name[name] = value

    def __delitem__(self, name: str) -> None:
        del self.items_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_by_name)

    def __len__(self) -> int:
        return len(self.items_by_name)


def test_original_mapping_stays_unchanged() -> None:
    kept, other = torch.ones(1), torch.zeros(1)
    mapping = Wrapped({"x": kept, "y": other})
    mapped = map_tensors(mapping, lambda tensor: tensor + 1 if tensor is kept else tensor)
    assert mapping["x"] is kept and mapping["y"] is other
    assert type(mapped) is Wrapped and mapped["x"].item() == 2 and mapped["y"] is other


@pytest.mark.filterwarnings("ignore:Sparse")
def test_parts_of_sparse_tensors() -> None:
    eye = torch.eye(2)
    for sparse in (eye.to_sparse(), eye.to_sparse_csr(), eye.to_sparse_csc(), eye.to_sparse_bsr((1, 1))):
        assert all(part.layout is torch.strided for part in dense_parts(sparse))
        assert nbytes(sparse) == sum(part.nbytes for part in dense_parts(sparse))
    assert dense_parts(eye) == (eye,)
    assert nbytes(torch.eye(3).to_sparse()) == 3 * 4 + 2 * 3 * 8


def test_subclass_attributes_are_kept() -> None:
    box = Box([torch.zeros(1)])
    box.label = "left"
    assert map_tensors(box, lambda tensor: tensor + 1).label == "left"


def test_torch_tuples() -> None:
    tree = {"size": torch.Size([2, 3]), "max": torch.max(torch.tensor([[1.0, 3.0]]), 1)}
    moved = map_tensors(tree, lambda tensor: tensor.clone())
    assert type(moved["size"]) is torch.Size
    assert moved["max"].values.tolist() == [3.0]
    assert moved["max"].indices.tolist() == [1]


def test_objects_that_move_themselves_are_leaves() -> None:
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    moving = Moving(x=torch.ones(1))
    assert list(leaves([packed, moving, 3])) == [packed, moving, 3]
    assert list(tensors([packed, moving])) == []
    assert moves_itself(packed)
    assert moves_itself(moving)
    assert not moves_itself(torch.ones(1))
    assert not moves_itself(Moving)
