"""An iterator that a thread runs ahead of its consumer: same values, same order, same exceptions."""

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

_PATIENCE_SECONDS = 10.0


class Background(Iterator[Out], Generic[In, Out]):
    """`map(function, source)`, computed by a thread `depth` results ahead.

    The thread starts with the first `next()`, and also holds the next item of `source` ready while `depth`
    results wait. An exception comes out after the good results before it, with its traceback; `next()` then
    goes on with `source`, as it would without the thread. Nothing is taken from `source` beyond an exception
    until then.

    The thread ends with the source, with `close()`, or when the iterator is dropped. A source that never
    returns is left behind after ten seconds, with a warning: the thread does not keep the process alive.

    Args:
        source: what is run ahead; used by the thread alone.
        function: applied to each item, by the thread.
        depth: how many results may wait, at least 1.
    """

    def __init__(self, source: Iterator[In], function: Callable[[In], Out], *, depth: int) -> None:
        self._source: Iterator[In] | None = source
        self._function = function
        self._depth = depth
        self._channel: _Channel[Out] | None = None
        self._stop: Callable[[], object] = _nothing

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
            del outcome  # it holds the traceback, which holds this frame

    def close(self) -> None:
        """End the thread and drop what waits; `next()` raises StopIteration from then on."""
        self._stop()
        self._channel, self._source = None, None

    def _start(self) -> _Channel[Out]:
        if self._source is None:
            raise StopIteration
        channel: _Channel[Out] = _Channel(self._depth)
        thread = threading.Thread(
            target=_run, args=(channel, self._source, self._function), name="instrument-prefetch", daemon=True
        )
        # Runs on close, when the iterator is dropped, and at the end of the process; never twice.
        self._stop = weakref.finalize(self, _end, channel, thread)
        thread.start()
        return channel


@dataclass(frozen=True, slots=True)
class _Value(Generic[Out]):
    value: Out


@dataclass(frozen=True, slots=True)
class _Ended:
    error: BaseException | None


class _Channel(Generic[Out]):
    """What the thread and the iterator share; the thread must not hold the iterator, or it would never drop."""

    def __init__(self, depth: int) -> None:
        self.outcomes: queue.SimpleQueue[_Value[Out] | _Ended] = queue.SimpleQueue()
        self.room = threading.Semaphore(depth)
        self.stopped = False


def _run(channel: _Channel[Out], source: Iterator[In], function: Callable[[In], Out]) -> None:
    try:
        while not channel.stopped:
            try:
                item = next(source)
            except StopIteration:
                channel.outcomes.put(_Ended(None))
                return
            channel.room.acquire()
            channel.outcomes.put(_Value(function(item)))
            del item  # or it would live on while the next one loads
    except BaseException as error:
        channel.outcomes.put(_Ended(error))


def _end(channel: _Channel[Out], thread: threading.Thread) -> None:
    channel.stopped = True
    channel.room.release()
    if thread is threading.current_thread():
        return  # the garbage collector can drop the iterator from the thread itself
    thread.join(_PATIENCE_SECONDS)
    if thread.is_alive():
        warnings.warn("the loader still has not returned: its prefetch thread is left behind", RuntimeWarning, 2)


def _nothing() -> None:
    return None
