"""NVTX ranges for every module of a model, forward and backward, by hooks alone.

A forward range is open while the module's forward runs. A backward range opens on the thread that runs
backward, when the first gradient reaches one of the module's outputs, and closes when the gradients of its
inputs are complete. Where no input tells (a first layer, an embedding), it closes when another module's
opens or backward ends. Backward ranges nest as the forward ones did, whatever order autograd takes.

The graph is not changed: hooks sit on tensors that exist anyway, so in-place operations, views and modules
without gradients work as before.
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

from instrument import ranges
from instrument.ranges import annotate
from instrument.trees import tensors

CATEGORY = "module"
NO_TASK = -1  # how torch's autograd engine numbers a backward where none runs; here: a forward


def annotate_module(
    module: nn.Module, *, depth: int | None = None, backward: bool = True, prefix: str = ""
) -> ModuleAnnotation:
    """Mark the forward and the backward of a module and of those inside it.

        annotation = annotate_module(model, depth=2)
        ...
        annotation.remove()

    A module is shown by its path, "blocks.0.attention", its backward as "blocks.0.attention backward", and
    `module` itself by its class. What a checkpoint computes again is shown again, inside its backward.
    Inside code that torch.compile has compiled there are no module calls, so nothing is marked. A Ctrl-C
    during a forward leaves the ranges open that it interrupts; every other exception closes them.

    Args:
        module: what to mark; a module that is found twice in it has its first path.
        depth: how many levels below `module`; 0 is `module` alone, None all.
        backward: mark the backward too.
        prefix: put before every path; without its last dot it is also the name of `module` itself.
    """
    annotation = ModuleAnnotation()
    if getattr(ranges, "nvtx", None) is None:  # nobody can listen
        return annotation
    for path, part in module.named_modules():
        if depth is None or not path or path.count(".") < depth:
            own = prefix.rstrip(".") or type(module).__name__
            annotation.add(part, prefix + path if path else own, backward=backward)
    return annotation


class ModuleAnnotation:
    """What `annotate_module` put on a model, until `remove` takes it off."""

    def __init__(self) -> None:
        self.live = True
        self._handles: list[RemovableHandle] = []

    def add(self, module: nn.Module, name: str, *, backward: bool) -> None:
        """Mark one more module, as `name`."""
        hooks = _Hooks(self, name, backward)
        self._handles += [
            module.register_forward_pre_hook(hooks.enter, prepend=True, with_kwargs=True),
            module.register_forward_hook(hooks.leave, with_kwargs=True, always_call=True),
        ]

    def remove(self) -> None:
        """Take every hook off; a forward that still waits for its backward is no longer marked there."""
        self.live = False
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _Hooks:
    """One module's hooks, which keep nothing of a call: deep copies of the module share them."""

    def __init__(self, annotation: ModuleAnnotation, name: str, backward: bool) -> None:
        self.annotation = annotation
        self.forward = annotate(name, category=CATEGORY)
        self.backward = annotate(f"{name} backward", category=CATEGORY) if backward else None

    def __deepcopy__(self, _copied: object) -> _Hooks:
        return self

    def enter(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.compiler.is_compiling():
            return
        call = _Call(self, _thread.innermost())
        if self.backward is not None:
            call.close_with(_in_graph((*args, *kwargs.values())))
        _thread.push(call, self.forward, task=NO_TASK)

    def leave(self, _module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        call = _thread.leave(self)
        if call is not None and self.backward is not None:
            call.open_with(_in_graph((output,)))


class _Call:
    """One call of a module: it ties the hooks on its tensors to each other and to the call around it."""

    __slots__ = ("_inputs", "awaited", "hooks", "inputs", "parent", "tracked")

    def __init__(self, hooks: _Hooks, parent: _Call | None) -> None:
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
            if tensor.grad_fn not in self._inputs:  # else an input handed on: nothing of it is this module's
                tensor.register_hook(self._output_reached)  # type: ignore[no-untyped-call, unused-ignore]
                self.tracked = True
        self._inputs.clear()  # a node's hook that leads back to the node would keep the graph for ever

    def lineage(self) -> Iterator[_Call]:
        """Yield this call and those around it that have a backward to mark, from the inside out."""
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
    task: int  # the backward it belongs to, or NO_TASK


class _Thread(threading.local):
    """The ranges open on this thread, outermost first: NVTX closes the innermost, whichever one means."""

    def __init__(self) -> None:
        self.open: list[_Open] = []
        self.ending = NO_TASK  # the last backward that was asked to close what it leaves open

    def innermost(self) -> _Call | None:
        """Return the call whose range is innermost, once what a failed backward left open is closed."""
        while self.open and self.open[-1].task != NO_TASK and _task() == NO_TASK:
            self._pop()
        return self.open[-1].call if self.open else None

    def push(self, call: _Call, marked: annotate, task: int) -> None:
        marked.__enter__()
        self.open.append(_Open(call, marked, task))

    def leave(self, hooks: _Hooks) -> _Call | None:
        """Close the innermost forward if it is of these hooks; None where a hook before them raised."""
        at = len(self.open) - 1
        while at >= 0 and self.open[at].task != NO_TASK:
            at -= 1
        if at < 0 or self.open[at].call.hooks is not hooks:
            return None
        call = self.open[at].call
        self._pop_to(at)
        return call

    def open_backward(self, call: _Call) -> None:
        """Open the backward of a call inside those of the calls around it, opened too where they are not."""
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
        """Close the backward of a call, and those inside it, if it is open."""
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
        """Have the running backward close what it leaves open on this thread; its number."""
        task = _task()
        if task != self.ending:
            self.ending = task
            torch.autograd.Variable._execution_engine.queue_callback(partial(self._end, task, threading.get_ident()))
        return task

    def _end(self, task: int, thread: int) -> None:
        # The engine ends on the thread of its last node: what is open on another, only that one can close.
        while thread == threading.get_ident() and self.open and self.open[-1].task == task:
            self._pop()

    def _pop_to(self, at: int) -> None:
        while len(self.open) > at:
            self._pop()

    def _pop(self) -> None:
        self.open.pop().range.__exit__()


_thread = _Thread()


def _task() -> int:
    """Return the number of the backward that runs on this thread, NO_TASK where none does."""
    return torch._C._current_graph_task_id()


def _in_graph(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among and inside `values` that autograd made: gradients pass through them."""
    for value in values:
        for tensor in (value,) if isinstance(value, Tensor) else tensors(value):
            if tensor.grad_fn is not None:
                yield tensor
