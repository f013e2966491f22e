"""What one forward shows: submodules that loop in Python, and stages "model without X".

A part is one submodule, "apply_prompt", or those whose paths differ only in numbers: "blocks.*.attention".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from instrument.config.settings import did_you_mean
from instrument.diagnosis.stages import Stage, StageContext, TrainStage
from instrument.errors import ConfigError, InstrumentError
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
