"""Tests of kernel_storm: tiny operations launched by a Python loop over elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tests.made_trace import made_trace
from tests.rules.helpers import US, findings, in_training, with_names
from traceview.measure.storms import PERIODS, storms
from traceview.model.program import Program
from traceview.model.trace import Trace
from traceview.rules.launches import kernel_storm, launch_bound


def loop(names: list[str], length: int) -> Trace:
    """Operations of `length` ns, 10 µs apart, in the range build_mask."""
    period = length + 10 * US
    work = [(i * period, i * period + length, "compute", 0, i) for i in range(len(names))]
    calls = [(max(i * period - 10 * US, 0), i * period, "api", 0) for i in range(len(names))]
    return in_pytorch(with_names(made_trace(work, calls, [(0, len(names) * period, "build_mask", 0)]), names))


def in_pytorch(trace: Trace) -> Trace:
    return replace(trace, program=Program("pytorch", ("pytorch",)))


def test_loop_over_elements() -> None:
    (finding,) = findings(in_training(loop(["fill", "copy"] * 150, 2 * US)), kernel_storm, launch_bound)
    assert finding.id == "kernel_storm"
    assert "298 tiny operations launched in a loop in `build_mask`" in finding.title
    assert finding.cost_ns == 297 * 10 * US
    assert "149 copy and 149 fill" in finding.advice
    assert "mask[rows, columns]" in finding.code


def test_fills_of_gradients_are_dropped() -> None:
    trace = in_training(loop(["fill"] * 300, 2 * US))
    name = pl.Series("name", ["Optimizer.zero_grad"], pl.Enum(["Optimizer.zero_grad"]))
    (finding,) = findings(replace(trace, ranges=trace.ranges.with_columns(name)), kernel_storm)
    assert finding.code == "optimizer.zero_grad(set_to_none=True)"
    assert "mask" not in finding.advice


def test_time_steps_of_a_solver_are_launch_bound() -> None:
    """The same two kernels repeat because each time step needs the one before it."""
    trace = replace(loop(["advance", "exchange"] * 150, 2 * US), program=Program("cuda"))
    assert [finding.id for finding in findings(trace, kernel_storm, launch_bound)] == ["launch_bound"]


def test_varying_kernels_are_not_a_storm() -> None:
    names = [f"kernel_{(i * i) % 17}" for i in range(300)]
    assert [finding.id for finding in findings(loop(names, 2 * US), kernel_storm, launch_bound)] == ["launch_bound"]


def test_long_kernels_are_not_a_storm() -> None:
    assert findings(loop(["gemm"] * 300, 50 * US), kernel_storm) == ()


def test_short_loop_is_not_a_storm() -> None:
    assert findings(loop(["fill"] * 90, 2 * US), kernel_storm) == ()


def test_streams_are_searched_separately() -> None:
    work = [(i * 12 * US, i * 12 * US + 2 * US, "compute", i % 2, i) for i in range(300)]
    calls = [(max(i * 12 - 10, 0) * US, i * 12 * US, "api", 0) for i in range(300)]
    names = ["fill" if i % 2 else f"kernel_{(i * i) % 17}" for i in range(300)]
    # The names repeat after 34 launches, which is a period: the whole window has all operations.
    (finding,) = findings(in_pytorch(with_names(made_trace(work, calls), names)), kernel_storm, whole=True)
    assert "149 tiny operations" in finding.title
    assert finding.cost_ns == 148 * 10 * US


def storms_with_a_loop(names: str, tiny: list[bool], long: int) -> set[int]:
    """Return the operations in storms, result with a loop over all operations."""
    members: set[int] = set()
    for period in PERIODS:
        run: list[int] = []
        for at in range(len(names) + 1):
            if period <= at < len(names) and tiny[at] and names[at] == names[at - period]:
                run.append(at)
                continue
            members |= set(run) if len(run) >= long else set()
            run = []
    return members


REPEATED = st.tuples(st.text("ab", min_size=1, max_size=4), st.integers(1, 9)).map(lambda pair: pair[0] * pair[1])


@given(st.lists(REPEATED, max_size=6).map("".join), st.sets(st.integers(0, 60)), st.integers(4, 12))
def test_sampling_finds_every_storm(names: str, lengthy: set[int], long: int) -> None:
    tiny = [at not in lengthy for at in range(len(names))]
    result = storms(np.array([ord(letter) for letter in names], np.int64), np.array(tiny, np.bool_), long)
    members = {at for first, last in zip(*result, strict=True) for at in range(first, last)}
    assert members == storms_with_a_loop(names, tiny, long)
