"""Exact stacks of Python functions, against a loop over nanoseconds; hand-made calls."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from traceview.model.stacks import SCOPES, no_scopes
from traceview.normalise.stacks import function_stacks

Call = tuple[int, int, str, int]


def scopes_of(calls: list[Call]) -> pl.DataFrame:
    rows = [(start, end, name, thread, 1, "function", False, None, None, None) for start, end, name, thread in calls]
    names = pl.Enum(sorted({call[2] for call in calls}))
    return pl.DataFrame(rows, schema={**SCOPES, "name": names}, orient="row")


def nested_calls(rng: np.random.Generator, start: int, end: int, thread: int, level: int = 0) -> list[Call]:
    calls = []
    at = start
    while level < 4 and at < end:
        begin = at + int(rng.integers(0, 8))
        until = min(begin + int(rng.integers(0, 30)), end)
        if begin >= until:
            break
        calls.append((begin, until, f"train.py:{int(rng.integers(1, 4))} run", thread))
        calls += nested_calls(rng, begin, until, thread, level + 1)
        at = until
    return calls


def stack_at(calls: list[Call], moment: int, thread: int) -> list[str]:
    """Return the open functions, the innermost first."""
    return [name for start, end, name, own in reversed(calls) if own == thread and start <= moment < end]


@pytest.mark.parametrize("seed", range(6))
def test_stacks_of_calls(seed: int) -> None:
    rng = np.random.default_rng(seed)
    calls = [call for thread in (0, 1) for call in nested_calls(rng, 0, 90, thread)]
    made = function_stacks(scopes_of(calls))
    assert made is not None
    frames, stacks, samples = made
    seen = {}
    for start, end, thread, _, _, node in samples.rows():
        names = []
        while node >= 0:
            function, file, line, library = frames.row(stacks["frame"][node])
            names.append(f"{file}:{line} {function}")
            assert not library
            node = stacks["parent"][node]
        for moment in range(start, end):
            assert (thread, moment) not in seen
            seen[thread, moment] = names
    for thread in (0, 1):
        for moment in range(90):
            assert seen.get((thread, moment), []) == stack_at(calls, moment, thread)
    assert stacks.n_unique() == len(stacks)


def test_no_functions() -> None:
    assert function_stacks(no_scopes()) is None
