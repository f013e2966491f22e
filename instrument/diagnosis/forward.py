"""What one forward shows: submodules that loop in Python, stages "model without X", and the line that fills memory.

A part is one submodule, "apply_prompt", or those whose paths differ only in numbers: "blocks.*.attention".
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from instrument.config.settings import did_you_mean
from instrument.diagnosis.stages import Stage, StageContext, TrainStage
from instrument.errors import ConfigError, InstrumentError
from instrument.memory import format_bytes
from instrument.trainer.learner import Learner
from instrument.trees import map_tensors, tensors

WITHOUT = "without "  # the name of a stage is this and the part
MIN_REPEATS = 32  # one operator, or one submodule, this often in a forward of a module is a loop
MAX_LOOPS = 3  # parts with loops that are measured; the one with most repetitions first


@dataclass(frozen=True, slots=True)
class Loop:
    """A part whose forward repeats one operator or one submodule.

    Attributes:
        part: its path; "" for the model itself.
        repeated: the operator, such as "index_put_", or the submodule.
        count: repetitions in one forward of one submodule.
    """

    part: str
    repeated: str
    count: int

    @property
    def text(self) -> str:
        """The loop as text."""
        return f"one forward runs {self.repeated} {self.count} times in turn"


def part_stages(context: StageContext, without: Iterable[str], *, search: bool) -> tuple[Stage, ...]:
    """Return a stage for each part in `without`, and for each part with a loop if `search` is set.

    Raises:
        ConfigError: the model has no such part.
    """
    learner = context.learner(context.config.training.precision)
    paths = dict.fromkeys(part_of(path) for path, _module in learner.model.named_modules() if path)
    for part in without:
        if part not in paths:
            hint = did_you_mean(part, tuple(paths))
            raise ConfigError(f"--without {part}: no such module{hint}; the model has {', '.join([*paths][:5])}, ...")
    loops = {loop.part: loop for loop in find_loops(learner, context.on_device()[0])} if search else {}
    parts = dict.fromkeys([*without, *(part for part in loops if part)])
    return tuple(_stage(part, loops.get(part)) for part in parts)


def part_of(path: str) -> str:
    """Return the part of a module's path: "blocks.3.mlp" -> "blocks.*.mlp"."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", path)


def find_loops(learner: Learner, batch: Any) -> list[Loop]:
    """Run one forward and return the parts that loop, those with most repetitions first, at most MAX_LOOPS."""
    counting = _OperatorCounter()
    with ExitStack() as stack:
        for path, module in learner.model.named_modules():
            stack.enter_context(module.register_forward_pre_hook(partial(counting.enter, path)))
            stack.enter_context(module.register_forward_hook(partial(counting.leave, path)))
        stack.enter_context(counting)
        learner.forward(batch)
    loops = (loop for loop in counting.most.values() if loop.count >= MIN_REPEATS)
    return sorted(loops, key=lambda loop: -loop.count)[:MAX_LOOPS]


class _OperatorCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators and submodules that each call of a module calls itself.

    Attributes:
        most: for each part, what one of its calls repeats most.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most: dict[str, Loop] = {}
        self._open: list[Counter[str]] = [Counter()]

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Count an operator and run it."""
        self._open[-1][function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))

    def enter(self, path: str, *_call: Any) -> None:
        """Count a call of a module, and start to count for it."""
        self._open[-1][path.rpartition(".")[2]] += 1
        self._open.append(Counter())

    def leave(self, path: str, *_call: Any) -> None:
        """Keep what this call of the module repeated most."""
        part = part_of(path)
        for repeated, count in self._open.pop().most_common(1):
            if part not in self.most or count > self.most[part].count:
                self.most[part] = Loop(part, repeated, count)


class WithoutStage(TrainStage):
    """A training step in which a part of the model costs nothing.

    Its forward returns the outputs of an earlier call, and its backward returns zeros, so that the rest of the model
    computes as before. Its weights are not updated.
    """

    def __init__(self, context: StageContext, part: str) -> None:
        super().__init__(context, context.config.training.precision)
        self._part = part
        model = self._learner.model
        modules = [module for path, module in model.named_modules() if part_of(path) == part]
        for module, output in _outputs(modules, partial(self._learner.forward, self._batches[0])):
            module.forward = partial(_without, output)

    def iterate(self) -> None:
        """Run one step."""
        try:
            super().iterate()
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            raise InstrumentError(f"without {self._part} nothing is left to train") from error


def _stage(part: str, loop: Loop | None) -> Stage:
    return Stage(
        f"{WITHOUT}{part}", lambda _config: part, lambda context: WithoutStage(context, part), loop.text if loop else ""
    )


def _outputs(modules: Iterable[nn.Module], run: Callable[[], object]) -> list[tuple[nn.Module, Any]]:
    """Return the modules that `run` calls, each with a copy of its last output."""
    outputs: dict[nn.Module, Any] = {}

    def keep(module: nn.Module, _inputs: Any, output: Any) -> None:
        outputs[module] = map_tensors(output, lambda tensor: tensor.detach().clone())

    with ExitStack() as stack, torch.no_grad():
        for module in modules:
            stack.enter_context(module.register_forward_hook(keep))
        run()
    return list(outputs.items())


def _without(output: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a copy of `output`, connected to the inputs in the autograd graph."""
    inputs = [tensor for tensor in tensors([args, kwargs]) if tensor.requires_grad]
    copies = iter(_Constant.apply(list(tensors(output)), *inputs))  # type: ignore[no-untyped-call]
    return map_tensors(output, lambda _tensor: next(copies))


class _Constant(torch.autograd.Function):
    """Returns constants; the gradients of all inputs are zero."""

    @staticmethod
    def forward(ctx: Any, constants: list[Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.inputs = [(tensor.shape, tensor.dtype, tensor.device) for tensor in inputs]
        copies = tuple(constant.clone() for constant in constants)
        ctx.mark_non_differentiable(*(copy for copy in copies if not copy.is_floating_point()))
        return copies

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in ctx.inputs)


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
