"""NVTX ranges for the modules of a model, forward and backward, with hooks only.

A forward range is open while the module's forward runs. A backward range opens on the thread that runs backward, when
the first gradient reaches an output of the module, and closes when the gradients of its inputs are complete. If no
input has a gradient (a first layer, an embedding), it closes when the range of another module opens or backward ends.
Backward ranges nest as the forward ranges did, whatever order autograd uses.

The autograd graph does not change: hooks are on existing tensors, so in-place operations, views and modules without
gradients work as before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from instrument.ranges import annotate
from instrument.trees import tensors

CATEGORY = "module"
NO_TASK = -1  # torch's id if no backward runs; here also the id of a forward range


def annotate_module(
    module: nn.Module, *, depth: int | None = None, backward: bool = True, prefix: str = ""
) -> ModuleAnnotation:
    """Add NVTX ranges to the forward and backward of a module and its submodules.

        annotation = annotate_module(model, depth=2)
        train(model)
        annotation.remove()

    The range of a submodule has its path as name, such as "blocks.0.attention", and "blocks.0.attention backward" for
    its backward. `module` itself has the name of its class. With activation checkpointing, the recomputation is also a
    range, inside the backward. Code compiled by torch.compile has no module calls and so no ranges. Ctrl-C during a
    forward leaves the interrupted ranges open; any other exception closes them.

    Args:
        module: the module. A submodule that occurs twice has its first path.
        depth: the number of levels below `module`: 0 for `module` only, None for all.
        backward: also annotate the backward.
        prefix: put in front of every path. Without its last dot it is the name of `module` itself.

    Returns:
        An object whose method `remove` removes the annotation.
    """
    annotation = ModuleAnnotation()
    for path, part in module.named_modules():
        if depth is None or not path or path.count(".") < depth:
            name = prefix + path if path else prefix.rstrip(".") or type(module).__name__
            annotation.add(part, name, backward=backward)
    return annotation


class ModuleAnnotation:
    """The hooks that `annotate_module` added to a model."""

    def __init__(self) -> None:
        self.live = True
        self._handles: list[RemovableHandle] = []

    def add(self, module: nn.Module, name: str, *, backward: bool | str) -> None:
        """Annotate one more module, with ranges named `name` and, if `backward`, "`name` backward" or `backward`."""
        hooks = ModuleHooks(self, name, backward)
        self._handles += [
            module.register_forward_pre_hook(hooks.enter, prepend=True, with_kwargs=True),
            module.register_forward_hook(hooks.leave, with_kwargs=True, always_call=True),
        ]

    def remove(self) -> None:
        """Remove all hooks. The backward of a forward that has already run is not annotated either."""
        self.live = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class ModuleHooks:
    """The hooks of one module. They keep no state of a call, so deep copies of the module share them."""

    def __init__(self, annotation: ModuleAnnotation, name: str, backward: bool | str) -> None:
        self.annotation = annotation
        self.forward = annotate(name, category=CATEGORY)
        after = f"{name} backward" if backward is True else backward
        self.backward = annotate(after, category=CATEGORY) if after else None

    def __deepcopy__(self, _copied: object) -> ModuleHooks:
        return self

    def enter(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Open the range of a forward that begins."""
        if torch.compiler.is_compiling():
            return
        call = _Call(self, _thread.innermost())
        if self.backward is not None:
            call.close_with(_tensors_in_graph((*args, *kwargs.values())))
        _thread.push(call, self.forward, task=NO_TASK)

    def leave(self, _module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        """Close the range of a forward that ended, with None as output after an exception."""
        if torch.compiler.is_compiling():
            return
        call = _thread.leave(self)
        if call is not None and self.backward is not None:
            call.open_with(_tensors_in_graph((output,)))


class _Call:
    """One call of a module. It connects the hooks on its tensors with each other and with the enclosing call."""

    __slots__ = ("_inputs", "awaited", "hooks", "inputs", "parent", "tracked")

    def __init__(self, hooks: ModuleHooks, parent: _Call | None) -> None:
        self.hooks, self.parent = hooks, parent
        self.tracked = False
        self.inputs = self.awaited = 0
        self._inputs: list[Node | None] = []

    def close_with(self, inputs: Iterable[Tensor]) -> None:
        for tensor in inputs:
            tensor.register_hook(self._input_complete)  # type: ignore[no-untyped-call, unused-ignore]
            self._inputs.append(tensor.grad_fn)
        self.inputs = len(self._inputs)

    def open_with(self, outputs: Iterable[Tensor]) -> None:
        for tensor in outputs:
            if tensor.grad_fn not in self._inputs:  # otherwise the module returned an input unchanged
                tensor.register_hook(self._output_reached)  # type: ignore[no-untyped-call, unused-ignore]
                self.tracked = True
        self._inputs.clear()  # a hook that refers to its own node would keep the graph alive

    def lineage(self) -> Iterator[_Call]:
        """Yield this call and its enclosing calls that have a backward range, from the inside out."""
        call: _Call | None = self
        while call is not None:
            if call.tracked and call.hooks.annotation.live:
                yield call
            call = call.parent

    def _output_reached(self, _gradient: Tensor | None) -> None:
        if self.hooks.annotation.live and not torch.compiler.is_compiling():
            _thread.open_backward(self)

    def _input_complete(self, _gradient: Tensor | None) -> None:
        self.awaited -= 1
        if self.awaited == 0 and not torch.compiler.is_compiling():
            _thread.close_backward(self)


class _Open(NamedTuple):
    call: _Call
    range: annotate
    task: int  # the id of its backward, or NO_TASK


class _Thread(threading.local):
    """The open ranges of this thread, outermost first. NVTX always closes the innermost range."""

    def __init__(self) -> None:
        self.open: list[_Open] = []
        self.ending = NO_TASK  # the last backward that has an end callback on this thread

    def innermost(self) -> _Call | None:
        """Close ranges that a failed backward left open; return the call of the innermost range, or None."""
        while self.open and self.open[-1].task != NO_TASK and _backward_id() == NO_TASK:
            self._pop()
        return self.open[-1].call if self.open else None

    def push(self, call: _Call, range_: annotate, task: int) -> None:
        range_.__enter__()
        self.open.append(_Open(call, range_, task))

    def leave(self, hooks: ModuleHooks) -> _Call | None:
        """Close the innermost forward range and return its call; None if an earlier hook raised an exception."""
        at = len(self.open) - 1
        while at >= 0 and self.open[at].task != NO_TASK:
            at -= 1
        if at < 0 or self.open[at].call.hooks is not hooks:
            return None
        call = self.open[at].call
        self._pop_to(at)
        return call

    def open_backward(self, call: _Call) -> None:
        """Open the backward range of a call, and those of its enclosing calls that are not open."""
        if self._backward_at(call) is not None:
            return
        lineage = list(call.lineage())
        while self.open and self.open[-1].task != NO_TASK and self.open[-1].call not in lineage:
            self._pop()
        task = self._close_at_end()
        for each in reversed(lineage):
            if each.hooks.backward is not None and self._backward_at(each) is None:
                each.awaited = each.inputs
                self.push(each, each.hooks.backward, task)

    def close_backward(self, call: _Call) -> None:
        """Close the backward range of a call and those inside it, if it is open."""
        at = self._backward_at(call)
        if at is not None:
            self._pop_to(at)

    def _backward_at(self, call: _Call) -> int | None:
        for at in range(len(self.open) - 1, -1, -1):
            if self.open[at].task == NO_TASK:
                return None
            if self.open[at].call is call:
                return at
        return None

    def _close_at_end(self) -> int:
        """Close the remaining ranges of this thread when the running backward ends; return the id of the backward."""
        task = _backward_id()
        if task != self.ending:
            self.ending = task
            torch.autograd.Variable._execution_engine.queue_callback(partial(self._end, task, threading.get_ident()))
        return task

    def _end(self, task: int, thread: int) -> None:
        # The callback runs on the thread of the last node. Ranges of another thread can only be closed there.
        while thread == threading.get_ident() and self.open and self.open[-1].task == task:
            self._pop()

    def _pop_to(self, at: int) -> None:
        while len(self.open) > at:
            self._pop()

    def _pop(self) -> None:
        self.open.pop().range.__exit__()


_thread = _Thread()


def _backward_id() -> int:
    """Return the id of the backward that runs on this thread, or NO_TASK."""
    return torch._C._current_graph_task_id()


def _tensors_in_graph(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors in `values` that have a grad_fn."""
    for value in values:
        for tensor in (value,) if isinstance(value, Tensor) else tensors(value):
            if tensor.grad_fn is not None:
                yield tensor
