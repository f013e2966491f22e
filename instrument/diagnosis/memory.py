"""Find the intermediate that fills memory: a large tensor that one line of the model makes from small ones."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from instrument.diagnosis.stages import StageContext
from instrument.memory import format_bytes
from instrument.trees import tensors

MIN_GROWTH = 4.0  # result / largest operand, of what counts as made from small tensors
COPIES = ("clone", "repeat", "_to_copy")  # operations that copy an expanded tensor; the others are pointwise
TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, slots=True)
class Intermediate:
    """A tensor that a line of code makes by broadcasting.

    Attributes:
        nbytes: its size.
        operand_bytes: memory of the largest tensor that it is made from.
        shape: its shape.
        function: the function around the line.
        place: name of the source file and number of the line, "mlm.py:61".
    """

    nbytes: int
    operand_bytes: int
    shape: tuple[int, ...]
    function: str
    place: str


def largest_intermediate(context: StageContext) -> Intermediate | None:
    """Return the largest tensor of a forward pass, if a line makes it from much smaller ones by broadcasting.

    Returns None if another kind of operation makes the largest tensor, and for a compiled model, whose kernels fuse
    what its lines make.
    """
    if context.config.model.compile is not None:
        return None
    learner = context.learner(context.config.training.precision)
    batch = context.on_device()[0]
    with torch.no_grad(), _Results() as results:
        learner.forward(batch)
    largest: Intermediate | None = results.broadcast
    return largest


def memory_note(largest: Intermediate | None) -> tuple[str, ...]:
    """Return a sentence about the intermediate with its remedy; none without one."""
    if largest is None:
        return ()
    remedy = "add into the result without it (scatter_add_, index_add_, einsum), or compile the model"
    size, operand = format_bytes(largest.nbytes), format_bytes(largest.operand_bytes)
    return (
        f"Memory: {largest.function} ({largest.place}) makes the largest tensor of the forward, "
        f"{size} {largest.shape}, from at most {operand}; {remedy}.",
    )


class _Results(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the largest tensor that is made by broadcasting, as long as no other operation makes a larger one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.broadcast: Intermediate | None = None
        self._largest = 0

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            operands = [tensor.untyped_storage() for tensor in tensors(args)]
            is_view = any(made.untyped_storage()._cdata == operand._cdata for operand in operands)
            if not is_view and made.nbytes > self._largest:
                self._largest = made.nbytes
                operand_bytes = max((operand.nbytes() for operand in operands), default=made.nbytes)
                broadcasts = _broadcasts(function) and made.nbytes >= MIN_GROWTH * operand_bytes
                self.broadcast = _intermediate(made, operand_bytes) if broadcasts else None
        return made


def _broadcasts(function: Any) -> bool:
    return torch.Tag.pointwise in function.tags or function.overloadpacket.__name__ in COPIES


def _intermediate(made: Tensor, operand_bytes: int) -> Intermediate | None:
    """Describe a tensor by the innermost line outside torch and this file."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (frame.f_code.co_filename.startswith(TORCH) or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    if frame is None:
        return None
    place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return Intermediate(made.nbytes, operand_bytes, tuple(made.shape), frame.f_code.co_name, place)
