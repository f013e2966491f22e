"""The op, module and function of launches against a stack that is kept while scopes open and close."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from traceview.measure.places import locate_launches
from traceview.model.stacks import SCOPE_KINDS, SCOPES

FORWARD_OPS = ("aten::linear", "aten::mm")
OPS = (*FORWARD_OPS, "MyBackward0", "autograd::engine::evaluate_function: F", "torch::autograd::CppNode<F>")
MODULES = ("Net_0", "Linear_0", "Linear_1")


@dataclass(eq=False)
class Scope:
    kind: str
    name: str
    thread: int
    start: int
    backward: bool
    sequence: int | None
    forward_thread: int | None
    outer: list[Scope]
    end: int = 0

    def stack(self, kind: str) -> list[Scope]:
        return [scope for scope in (*self.outer, self) if scope.kind == kind]


@dataclass
class Program:
    """Scopes and launches of two threads, one event at each moment."""

    scopes: list[Scope] = field(default_factory=list)
    launches: list[tuple[int, int, list[Scope]]] = field(default_factory=list)

    def frame(self) -> pl.DataFrame:
        rows = [
            {
                **{name: getattr(scope, name) for name in SCOPES if name not in ("process", "range")},
                "process": 1,
                "range": None,
            }
            for scope in self.scopes
        ]
        names = pl.Enum(sorted({scope.name for scope in self.scopes}))
        return pl.DataFrame(rows, schema=dict(SCOPES) | {"name": names, "kind": pl.Enum(SCOPE_KINDS)})


@st.composite
def programs(draw: st.DrawFn) -> Program:
    program, stacks = Program(), ([], [])  # type: tuple[Program, tuple[list[Scope], list[Scope]]]
    event = st.sampled_from(("open", "open", "open", "close", "launch"))
    events = draw(st.lists(st.tuples(st.sampled_from((0, 0, 1)), event), min_size=25, max_size=50))
    for moment, (thread, event) in enumerate(events):
        stack = stacks[thread]
        if event == "launch":
            program.launches.append((thread, moment, list(stack)))
        elif event == "close" and stack:
            stack.pop().end = moment
        elif event == "open":
            kind = draw(st.sampled_from(("op", "op", "op", "module", "function")))
            name = draw(st.sampled_from({"op": OPS, "module": MODULES, "function": ("a.py:1 f", "b.py:2 g")}[kind]))
            backward = draw(st.booleans()) if kind == "module" else kind == "op" and name not in FORWARD_OPS
            sequence = draw(st.sampled_from((None, 0, 1, 1))) if kind == "op" else None
            number = draw(st.none() | st.integers(1, 2)) if kind == "op" and backward else None
            stack.append(Scope(kind, name, thread, moment, backward, sequence, number, list(stack)))
            program.scopes.append(stack[-1])
    for scope in (*stacks[0], *stacks[1]):
        scope.end = len(events)
    return program


def forward_op(program: Program, backward: Scope) -> Scope | None:
    """Return the forward op of a backward op, or of the one that autograd's engine calls in it."""
    own = creator(program, backward)
    if own is not None or not backward.name.startswith("autograd::engine"):
        return own
    called = [op for op in program.scopes if op.kind == "op" and op.backward and op.stack("op")[-2:-1] == [backward]]
    forward = [creator(program, op) for op in called if "CppNode<" not in op.name]
    return next((op for op in reversed(forward) if op is not None), None)


def creator(program: Program, backward: Scope) -> Scope | None:
    """Return the op that created a backward op, as docs/definitions.md says."""
    ops = [scope for scope in program.scopes if scope.sequence is not None]

    def last(thread: int, sequence: int | None) -> Scope | None:
        before = [op for op in ops if not op.backward and (op.thread, op.sequence) == (thread, sequence)]
        return max(before, key=lambda op: op.start, default=None)

    if backward.sequence is None:
        return None
    choices = {thread: op for thread in (0, 1) if (op := last(thread, backward.sequence)) is not None}
    if backward.forward_thread is None:
        return next(iter(choices.values())) if len(choices) == 1 else None
    same = [op for op in ops if op.backward and op.forward_thread == backward.forward_thread]
    count = Counter(thread for op in same for thread in (0, 1) if last(thread, op.sequence) is not None)
    usual = min(count, key=lambda thread: (-count[thread], thread), default=None)
    return None if usual is None else choices.get(usual)


def innermost(stack: list[Scope], kind: str) -> Scope | None:
    return next((scope for scope in reversed(stack) if scope.kind == kind), None)


def outermost(op: Scope) -> Scope:
    ops = op.stack("op")
    for outer, inner in zip(ops[-2::-1], ops[:0:-1], strict=True):
        is_wrapper = outer.name.startswith("autograd::engine")
        if is_wrapper or innermost(outer.outer, "module") is not innermost(inner.outer, "module"):
            return inner
    return ops[0]


def path(module: Scope | None) -> str | None:
    return None if module is None else ".".join(scope.name for scope in module.stack("module"))


def expected(program: Program, stack: list[Scope]) -> tuple[object, ...]:
    inner, own = innermost(stack, "op"), innermost(stack, "module")
    running = next((scope for scope in reversed(stack) if scope.kind == "op" and scope.backward), None)
    created = None if running is None else forward_op(program, running)
    if own is not None and running is not None and own.start >= running.start and not own.backward:
        created = None
    around = stack if created is None else [*created.outer, created]
    unrecorded = running is not None and "CppNode<" in running.name
    base = inner if created is None or unrecorded else created
    op, module, function = base and outermost(base), innermost(around, "module") or own, innermost(around, "function")
    return (
        path(module),
        op and op.name,
        inner and inner.name,
        function and function.name,
        running is not None or (own is not None and own.backward),
        module is not None or (op is not None and op.sequence is not None),
    )


@settings(max_examples=80, deadline=None)
@given(programs())
def test_launches_against_a_stack(program: Program) -> None:
    thread, moments = (np.array([launch[place] for launch in program.launches], np.int64) for place in (0, 1))
    places = locate_launches(program.frame(), thread, moments)

    def text(texts: pl.Series, code: int) -> str | None:
        return None if code < 0 else texts[code]

    for row, (_, _, stack) in enumerate(program.launches):
        actual = (
            text(places.paths, int(places.module[row])),
            *(text(places.names, int(codes[row])) for codes in (places.op, places.inner_op, places.line)),
            bool(places.is_backward[row]),
            bool(places.is_forward[row]),
        )
        assert actual == expected(program, stack)
