"""Puts ranges around the calls of torch that make up a training step.

The functions of torch are replaced, so that objects of the program stay as they are: no hook is saved with a model.
torch.compile traces the original functions, and so makes the same graphs.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from instrument import modules
from instrument.modules import ModuleAnnotation, ModuleHooks
from instrument.ranges import annotate
from instrument.run.steps import ByIdentity, CallRange, CollectiveRange, ProgramSteps

COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single"),
    *("barrier", "batch_isend_irecv", "broadcast", "broadcast_object_list", "gather", "irecv", "isend", "recv"),
    *("reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send"),
)
Opening = Callable[..., CallRange | None]

_is_traced = torch.compiler.is_dynamo_compiling


def patch_torch(steps: ProgramSteps, depth: int) -> None:
    """Name the phases of a program that has just imported torch.

    Args:
        steps: the iterations and phases.
        depth: the levels of modules below `forward` that get ranges; 0 for none.
    """
    _patch(DataLoader, "__iter__", steps.open_loader)
    _patch(_BaseDataLoaderIter, "__next__", steps.load)
    _patch(torch.autograd, "backward", steps.backward)
    _patch(torch.amp.GradScaler, "step", lambda _scaler, *args, **kwargs: steps.step(*args, **kwargs))
    patch_save(steps, torch, "save")
    _patch_copies(steps)
    _patch_modules(steps, depth)
    _patch_optimizers(steps)
    if torch.distributed.is_available():
        for name in COLLECTIVES:
            opening = functools.partial(steps.collective, CollectiveRange(steps, name))
            _patch(torch.distributed, name, opening)
            setattr(torch.distributed.distributed_c10d, name, getattr(torch.distributed, name))


def patch_save(steps: ProgramSteps, module: ModuleType, name: str) -> None:
    """Name the calls of a function that saves a state."""
    _patch(module, name, steps.checkpoint)


def patch_dynamo(dynamo: ModuleType) -> None:
    """Let torch.compile pass over the functions of ranges, and see what they call as if it were called directly."""
    nvtx = getattr(sys.modules.get("nvtx"), "__file__", __file__)
    own = (modules.__file__, *(str(Path(file).parent) for file in (__file__, nvtx)))
    skipped = [annotate.__init__.__code__, annotate.__enter__.__code__, annotate.__exit__.__code__]
    skipped += (each.__code__ for each in gc.get_objects() if type(each) is FunctionType)
    for code in skipped[:3] + [code for code in skipped if code.co_filename.startswith(own)]:
        dynamo.eval_frame.skip_code(code)


def _patch(owner: Any, name: str, opening: Opening) -> None:
    """Replace a function by one that enters the context that `opening` returns for its arguments, if there is one."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _is_traced() or (context := opening(*args, **kwargs)) is None:
            return function(*args, **kwargs)
        with context:
            return function(*args, **kwargs)

    setattr(owner, name, call)


def _patch_copies(steps: ProgramSteps) -> None:
    """Name the copies of batches, not those of parameters, single numbers and tensors of other classes."""

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> CallRange | None:
        target = args[0] if args else kwargs.get("device")
        if type(tensor) is not Tensor or target is None or isinstance(target, torch.dtype):
            return None
        return steps.copy() if tensor.is_cpu and tensor.dim() else None

    def cuda(tensor: Tensor, *_args: Any, **_kwargs: Any) -> CallRange | None:
        return steps.copy() if type(tensor) is Tensor and tensor.is_cpu and tensor.dim() else None

    lazy: Any = UninitializedParameter  # its methods are those of lazy buffers too
    for name, opening in (("to", to), ("cuda", cuda)):
        _patch(Tensor, name, opening)
        lazy._allowed_methods.append(getattr(Tensor, name))


def _patch_modules(steps: ProgramSteps, depth: int) -> None:
    """Name the outermost calls of modules `forward`, and those of their parts to a depth by path."""
    original = nn.Module.__call__
    annotation = ModuleAnnotation()
    parts: ByIdentity[ModuleHooks | None] = ByIdentity()

    def add_parts(root: nn.Module) -> None:
        parts.put(root, None)
        for path, part in _inside_wrappers(root).named_modules():
            if path and path.count(".") < depth and id(part) not in parts:
                parts.put(part, ModuleHooks(annotation, path, backward=True))

    @functools.wraps(original)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _is_traced():
            return original(self, *args, **kwargs)
        if (context := steps.forward(self)) is not None:
            if depth and id(self) not in parts:
                add_parts(self)
            with context:
                return original(self, *args, **kwargs)
        hooks = parts[id(self)][1] if id(self) in parts else None
        if hooks is None:
            return original(self, *args, **kwargs)
        output = None
        hooks.enter(self, args, kwargs)
        try:
            output = original(self, *args, **kwargs)
        finally:
            hooks.leave(self, args, kwargs, output)
        return output

    nn.Module.__call__ = call  # type: ignore[method-assign]


def _inside_wrappers(module: nn.Module) -> nn.Module:
    """Return the program's model inside DistributedDataParallel, torch.compile and the like."""
    children = list(module.named_children())
    while len(children) == 1 and children[0][0] in ("module", "_orig_mod"):
        module = children[0][1]
        children = list(module.named_children())
    return module


def _patch_optimizers(steps: ProgramSteps) -> None:
    """Name the steps of optimizers by torch's own hooks, and know how many optimizers there are."""
    opened: Optimizer | None = None  # the optimizer whose range is open; also after an exception in its step
    context: CallRange | None = None

    def close(optimizer: Optimizer, *_call: Any) -> None:
        nonlocal opened
        if not _is_traced() and optimizer is opened and context is not None:
            opened = None
            context.__exit__()

    def open_(optimizer: Optimizer, *_call: Any) -> None:
        nonlocal opened, context
        if _is_traced():
            return
        close(optimizer)
        made = steps.step(optimizer)
        if made is not None:
            opened, context = optimizer, made
            made.__enter__()

    _patch(Optimizer, "__init__", lambda optimizer, *_args, **_kwargs: steps.optimizers.put(optimizer, None))
    register_optimizer_step_pre_hook(open_)
    register_optimizer_step_post_hook(close)
