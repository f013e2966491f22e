"""An iterator that runs ahead on a thread, with the same values, order and exceptions."""

from __future__ import annotations

import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

_JOIN_TIMEOUT_SECONDS = 10.0


class Background(Iterator[Out], Generic[In, Out]):
    """Like `map(function, source)`, but a thread computes up to `depth` results ahead.

        for batch in Background(iter(loader), preprocess, depth=2):
            train(batch)

    The thread starts at the first `next()`. While `depth` results wait, it also holds the next item of `source`. An
    exception is raised in order, after the results before it, with its traceback. The next `next()` then continues
    with `source`, as without a thread. Until then nothing more is taken from `source`.

    The thread ends with the source, with `close()`, or when the iterator is garbage collected. If `source` does not
    return within 10 s, the thread is abandoned with a RuntimeWarning. It does not keep the process alive.

    Args:
        source: the iterator to run ahead. Only the thread uses it.
        function: applied to each item on the thread.
        depth: how many results can wait, at least 1.
    """

    def __init__(self, source: Iterator[In], function: Callable[[In], Out], *, depth: int) -> None:
        self._source: Iterator[In] | None = source
        self._function = function
        self._depth = depth
        self._channel: _Channel[Out] | None = None
        self._stop: Callable[[], object] = _do_nothing

    def __next__(self) -> Out:
        if self._channel is None:
            self._channel = self._start()
        outcome = self._channel.outcomes.get()
        if isinstance(outcome, _Value):
            self._channel.room.release()
            return outcome.value
        self._stop()
        self._channel = None
        if outcome.error is None:
            self.close()
            raise StopIteration
        try:
            raise outcome.error
        finally:
            del outcome  # breaks a reference cycle: its traceback refers to this frame

    def close(self) -> None:
        """End the thread and drop waiting results. `next()` then raises StopIteration."""
        self._stop()
        self._channel, self._source = None, None

    def _start(self) -> _Channel[Out]:
        if self._source is None:
            raise StopIteration
        channel: _Channel[Out] = _Channel(self._depth)
        thread = threading.Thread(
            target=_run_ahead, args=(channel, self._source, self._function), name="instrument-prefetch", daemon=True
        )
        # Runs once: on close, on garbage collection, or at the end of the process.
        self._stop = weakref.finalize(self, _end_thread, channel, thread)
        thread.start()
        return channel


@dataclass(frozen=True, slots=True)
class _Value(Generic[Out]):
    value: Out


@dataclass(frozen=True, slots=True)
class _Ended:
    error: BaseException | None


class _Channel(Generic[Out]):
    """Shared by thread and iterator. The thread does not refer to the iterator, so that it can be collected."""

    def __init__(self, depth: int) -> None:
        self.outcomes: queue.SimpleQueue[_Value[Out] | _Ended] = queue.SimpleQueue()
        self.room = threading.Semaphore(depth)
        self.stopped = False


def _run_ahead(channel: _Channel[Out], source: Iterator[In], function: Callable[[In], Out]) -> None:
    try:
        while not channel.stopped:
            try:
                item = next(source)
            except StopIteration:
                channel.outcomes.put(_Ended(None))
                return
            channel.room.acquire()
            channel.outcomes.put(_Value(function(item)))
            del item  # free it while the next one loads
    except BaseException as error:
        channel.outcomes.put(_Ended(error))


def _end_thread(channel: _Channel[Out], thread: threading.Thread) -> None:
    channel.stopped = True
    channel.room.release()
    if thread is threading.current_thread():
        return  # the garbage collector can run on this thread
    thread.join(_JOIN_TIMEOUT_SECONDS)
    if thread.is_alive():
        warnings.warn("the data loader does not return: abandoning its prefetch thread", RuntimeWarning, 2)


def _do_nothing() -> None:
    return None
