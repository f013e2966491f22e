"""Nested batches: dicts, lists, tuples, named tuples and dataclasses with tensors as leaves.

Anything else is a leaf. An object with `pin_memory()` and `to()` is also a leaf, even if it is a tuple or a mapping,
such as `PackedSequence`, because only the object itself can rebuild itself.
"""

from __future__ import annotations

import copy
import dataclasses
import zlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar, cast

import torch

Tree = TypeVar("Tree")
Tensors = Callable[[torch.Tensor], Any]


def map_leaves(tree: Tree, function: Callable[[Any], Any]) -> Tree:
    """Return `tree` with `function` applied to each leaf, in the order of `leaves`.

        map_leaves({"x": 1, "y": [2, 3]}, lambda leaf: leaf + 1)  # {"x": 2, "y": [3, 4]}

    Containers keep their types and are not changed in place. A container is returned without a copy if `function`
    returns all its leaves unchanged.
    """
    if not _is_container(tree):
        return cast(Tree, function(tree))
    old = list(_children(tree))
    new = [map_leaves(child, function) for child in old]
    if all(before is after for before, after in zip(old, new, strict=True)):
        return tree
    return cast(Tree, _rebuild(tree, new))


def map_tensors(tree: Tree, function: Tensors) -> Tree:
    """Return `tree` with `function` applied to each tensor; other leaves stay unchanged.

    map_tensors(batch, lambda tensor: tensor.to("cuda"))
    """
    return map_leaves(tree, lambda leaf: function(leaf) if isinstance(leaf, torch.Tensor) else leaf)


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of `tree` in order."""
    if not _is_container(tree):
        yield tree
        return
    for child in _children(tree):
        yield from leaves(child)


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of `tree` in order, except those inside an object that moves itself."""
    return (leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor))


def fingerprint(tree: Any) -> int:
    """Return a checksum of the dense tensors of a tree in host memory."""
    checksum = 0
    for tensor in tensors(tree):
        if tensor.layout == torch.strided and tensor.numel():
            elements = tensor.detach().reshape(-1).contiguous().view(torch.uint8)
            checksum = zlib.crc32(elements.numpy().tobytes(), checksum)
    return checksum


def nbytes(tree: Any) -> int:
    """Return the bytes of the tensors in `tree`, and of objects that move themselves and have `nbytes`."""
    return sum(_leaf_nbytes(leaf) for leaf in leaves(tree))


def dense_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors that hold the numbers of a sparse tensor; a dense one is its only part."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def moves_itself(leaf: Any) -> bool:
    """Return whether `leaf` is not a tensor and has both `pin_memory()` and `to()`."""
    if isinstance(leaf, (torch.Tensor, type)):
        return False
    return callable(getattr(leaf, "pin_memory", None)) and callable(getattr(leaf, "to", None))


def _leaf_nbytes(leaf: Any) -> int:
    if not isinstance(leaf, torch.Tensor):
        size = getattr(leaf, "nbytes", 0) if moves_itself(leaf) else 0
        return size if isinstance(size, int) else 0
    return sum(part.numel() * part.element_size() for part in dense_parts(leaf))


def _is_container(tree: Any) -> bool:
    if isinstance(tree, (Mapping, list, tuple)):
        return not moves_itself(tree)
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type) and not moves_itself(tree)


def _children(tree: Any) -> Iterator[Any]:
    if isinstance(tree, Mapping):
        return iter(tree.values())
    if isinstance(tree, (list, tuple)):
        return iter(tree)
    return (getattr(tree, field.name) for field in dataclasses.fields(tree))


def _rebuild(tree: Any, children: list[Any]) -> Any:
    if isinstance(tree, Mapping):
        return _rebuild_mapping(tree, dict(zip(tree, children, strict=True)))
    if isinstance(tree, list):
        clone = copy.copy(tree)
        clone[:] = children
        return clone
    if isinstance(tree, tuple):
        return tree._make(children) if hasattr(tree, "_make") else type(tree)(children)
    # dataclasses.replace would run __init__ again, which can reject or change values.
    clone = copy.copy(tree)
    for field, child in zip(dataclasses.fields(tree), children, strict=True):
        object.__setattr__(clone, field.name, child)
    return clone


def _rebuild_mapping(tree: Mapping[Any, Any], items: dict[Any, Any]) -> Mapping[Any, Any]:
    if type(tree) is dict or not isinstance(tree, MutableMapping):
        return items
    # Keeps a defaultdict's factory and a subclass's attributes. A plain copy of another mapping shares its items.
    own_copy = isinstance(tree, dict) or hasattr(tree, "__copy__")
    clone = copy.copy(tree) if own_copy else copy.deepcopy(tree, {id(child): child for child in tree.values()})
    for key, child in items.items():
        clone[key] = child
    return clone
