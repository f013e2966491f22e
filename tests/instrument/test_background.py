from __future__ import annotations

import gc
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instrument import background
from instrument.background import Background


class BadBatchError(Exception):
    pass


class Source(Iterator[int]):
    """Yields its items, and raises those that are exceptions."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items, self.taken = iter(items), 0

    def __next__(self) -> int:
        item = next(self.items)
        self.taken += 1
        if isinstance(item, BadBatchError):
            raise item
        return item


def outcomes(iterator: Iterator[Any]) -> list[Any]:
    """Return everything that an iterator yields or raises."""
    found: list[Any] = []
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except BadBatchError as error:
            found.append(error)


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "instrument-prefetch"]


def double(number: int) -> int:
    return 2 * number


items = st.lists(st.one_of(st.integers(), st.builds(BadBatchError)), max_size=20)
depths = st.integers(1, 5)


@given(items, depths)
def test_equals_plain_iteration(items: list[Any], depth: int) -> None:
    ahead = Background(Source(items), double, depth=depth)
    assert outcomes(ahead) == outcomes(map(double, Source(items)))
    assert threads() == []
    assert outcomes(ahead) == []


@given(st.integers(0, 9), depths, st.booleans())
def test_runs_ahead_by_depth(taken: int, depth: int, close: bool) -> None:
    source = Source(range(100))
    ahead = Background(source, double, depth=depth)
    for _ in range(taken):
        next(ahead)
    if close:
        ahead.close()
        assert outcomes(ahead) == []
    assert source.taken <= (taken and taken + depth + 1)
    ahead.close()


def test_runs_ahead() -> None:
    third = threading.Event()

    def numbers() -> Iterator[int]:
        yield 0
        yield 1
        third.set()
        yield 2

    ahead = Background(numbers(), double, depth=1)
    assert next(ahead) == 0
    assert third.wait(10), "the item after the one that waits is held ready"
    assert list(ahead) == [2, 4]


def test_thread_starts_at_first_next() -> None:
    source = Source(range(3))
    ahead = Background(source, double, depth=2)
    assert threads() == []
    assert source.taken == 0
    ahead.close()
    assert list(ahead) == []


def fails(_number: int) -> int:
    raise BadBatchError("deep inside")


def test_exception_keeps_traceback() -> None:
    with pytest.raises(BadBatchError, match="deep inside") as caught:
        next(Background(iter([1]), fails, depth=1))
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "fails"
    assert "test_exception_keeps_traceback" in names


def test_source_pauses_after_exception() -> None:
    source = Source([1, BadBatchError(), 2, 3])
    ahead = Background(source, double, depth=3)
    assert next(ahead) == 2
    with pytest.raises(BadBatchError):
        next(ahead)
    assert source.taken == 2
    assert list(ahead) == [4, 6]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_any_exception_is_raised(error: type[BaseException]) -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise error

    ahead = Background(numbers(), double, depth=2)
    assert next(ahead) == 2
    with pytest.raises(error):
        next(ahead)


def test_thread_ends_when_collected() -> None:
    cycle: list[Any] = []
    cycle.append((Background(iter(range(9)), double, depth=1), cycle))
    next(cycle[0][0])
    assert len(threads()) == 1
    del cycle
    gc.collect()
    assert threads() == []


def test_break_does_not_wait_for_a_slow_source() -> None:
    release = threading.Event()

    def numbers() -> Iterator[int]:
        yield 1
        release.wait()
        yield 2

    begun = time.monotonic()
    for _number in Background(numbers(), double, depth=1):
        break
    gc.collect()
    assert time.monotonic() - begun < 5
    (thread,) = threads()
    release.set()
    thread.join()


def test_hanging_source_is_abandoned_with_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_JOIN_TIMEOUT_SECONDS", 0.01)
    release = threading.Event()

    def numbers() -> Iterator[int]:
        yield 1
        release.wait()

    ahead = Background(numbers(), double, depth=1)
    next(ahead)
    with pytest.warns(RuntimeWarning, match="abandoning its prefetch thread"):
        ahead.close()
    (thread,) = threads()
    assert thread.daemon
    release.set()
    thread.join()
