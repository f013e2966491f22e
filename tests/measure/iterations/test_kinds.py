"""Tests of the kinds of iterations: made lengths, and lengths of real captures joined."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.captures import analyzed, sample
from traceview.intervals import Times
from traceview.measure.iterations.kinds import iteration_kinds
from traceview.measure.iterations.times import IterationLaunches, IterationTimes
from traceview.model.analysis import IterationKind, Iterations, kinds_words

MS = 1_000_000


def kinds(
    lengths: Times, contents: list[int] | NDArray[np.int64] | None = None, first_loop: int | None = None
) -> tuple[IterationKind, ...]:
    names = np.zeros(len(lengths), np.int64) if contents is None else np.asarray(contents, np.int64)
    start, end = np.cumsum(np.append(0, lengths))[:-1], np.cumsum(lengths)
    return iteration_kinds(IterationTimes(start, end, None, 0), IterationLaunches(end, names + 10, names), first_loop)


def lengths_of(name: str) -> Times:
    iterations = analyzed(sample(f"{name}.sqlite")).iterations
    assert isinstance(iterations, Iterations)
    return np.diff([*(row.start_ns for row in iterations.per_iteration), iterations.per_iteration[-1].end_ns])


def made(count: int, ms: float, spread: float = 0.05) -> Times:
    """Return made lengths around `ms`."""
    return (ms * MS * (1 + np.random.default_rng(count).uniform(-spread, spread, count))).astype(np.int64)


def test_tokens_of_two_lengths_are_two_kinds() -> None:
    lengths = np.concatenate([made(16, 7.5), made(8, 44)])
    short, long = kinds(lengths)
    assert (short.count, short.first, short.differs) == (16, 0, "the first 16, the same kernels")
    assert (long.count, long.first, long.longest) == (8, 16, 16 + int(np.argmax(lengths[16:])))
    assert kinds_words((short, long)).startswith("16 of 7.") and short.share + long.share == 1


def test_two_real_runs_joined_are_two_kinds() -> None:
    serial, dual = lengths_of("serial"), lengths_of("dual")
    assert [kind.count for kind in kinds(np.concatenate([serial, dual]))] == [len(serial), len(dual)]
    assert kinds(serial) == kinds(dual) == ()


def test_stalled_step_is_its_own_kind() -> None:
    lengths = lengths_of("dual").copy()
    lengths[7] += 3300 * MS
    steps, stall = kinds(lengths)
    assert (steps.count, stall.count, stall.first, stall.longest) == (19, 1, 7, 7)
    assert stall.differs == "a single one, the same kernels"


def test_contents_show_kinds_whose_lengths_are_near() -> None:
    lengths = made(40, 10, 0.02)
    lengths[::10] = lengths[::10] * 13 // 10
    contents = np.where(np.arange(40) % 10 == 0, 2, 1)
    assert kinds(lengths) == ()
    logged, plain = kinds(lengths, contents)
    assert (logged.count, logged.differs, plain.count) == (4, "every 10th, 12 kernels", 36)


def test_different_contents_of_equal_length_are_one_kind() -> None:
    assert kinds(made(40, 10), np.arange(40) % 2) == ()


def test_loops_with_different_contents_are_kinds_even_if_as_long() -> None:
    """Steps of an equilibration and of a production run, with an output each 100th (`md` of round 14)."""
    lengths, contents = made(600, 10, 0.02), np.repeat([1, 2], 300)
    lengths[300::100] *= 2
    contents[300::100] = 3
    first, second = kinds(lengths, contents, 300)
    assert (first.count, first.differs) == (300, "the first 300, 11 kernels")
    assert (second.count, second.differs) == (300, "the last 300, 12 kernels")
    assert len(kinds(lengths, np.ones(600, np.int64), 300)) == 0


def test_last_iteration_without_a_typical_pause_is_of_no_kind() -> None:
    """Sorts of 80 ms, after which the host sorts for 0.3 s and 2 s by turns, or ends (`radix` of round 14)."""
    start = np.cumsum([0, *[400 * MS, 2080 * MS] * 4])
    done = start + 80 * MS
    times = IterationTimes(start, np.append(start[1:], done[-1]), done, 0)
    same = np.ones(9, np.int64)
    short, long = iteration_kinds(times, IterationLaunches(done, same, same))
    assert kinds_words((short, long)) == "4 of 400 ms and 4 of 2.08 s" and times.last_border == done[-1]
    words = kinds_words((short, long), has_last=True)
    assert words == "4 of 400 ms, 4 of 2.08 s and the last"
    assert short.share + long.share == pytest.approx(1 - 80 / (4 * 2480 + 80))


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 5000)), min_size=2, max_size=60), st.integers(1, 3))
def test_kinds_take_no_more_than_the_counted_time(values: list[tuple[int, int]], contents: int) -> None:
    work, pause = np.array(values).T
    start = np.cumsum(np.append(0, work + pause))[:-1]
    done = start + work
    times = IterationTimes(start, np.append(start[1:], done[-1]), done, 0)
    times = times._replace(end=np.append(start[1:], times.last_border))
    names = np.arange(len(start)) % contents
    found = iteration_kinds(times, IterationLaunches(done, names + 1, names))
    assert sum(kind.count * kind.mean_ns for kind in found) <= times.steady.length
    assert sum(kind.count for kind in found) in (0, len(start) - 1, len(start))


@given(st.lists(st.integers(100, 1_000_000), min_size=1, max_size=60), st.integers(1, 4))
def test_kinds_contain_each_iteration_once(values: list[int], contents: int) -> None:
    found = kinds(np.array(values, np.int64), np.arange(len(values)) % contents)
    if found:
        assert 2 <= len(found) <= 4
        assert sum(kind.count for kind in found) == len(values)
        assert abs(sum(kind.share for kind in found) - 1) < 1e-9
        assert all(values[kind.longest] >= kind.time_ns.median for kind in found)


@given(st.integers(3, 200), st.integers(1, 1_000_000))
def test_noise_has_no_kinds(count: int, seed: int) -> None:
    lengths = (10 * MS * np.random.default_rng(seed).uniform(0.85, 1.15, count)).astype(np.int64)
    assert kinds(lengths) == ()
