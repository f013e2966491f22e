"""An iterator that runs ahead on a thread, with the same values, order and exceptions."""

from __future__ import annotations

import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

In = TypeVar("In")
Out = TypeVar("Out")

_JOIN_TIMEOUT_SECONDS = 10.0
_COLLECTED_TIMEOUT_SECONDS = 0.1  # `break` collects the iterator, so this delays the loop that goes on


class Background(Iterator[Out], Generic[In, Out]):
    """Like `map(function, source)`, but a thread computes up to `depth` results ahead.

        for batch in Background(iter(loader), preprocess, depth=2):
            train(batch)

    The thread starts at the first `next()`. While `depth` results wait, it also holds the next item of `source`. An
    exception is raised in order, after the results before it, with its traceback. The next `next()` then continues
    with `source`, as without a thread. Until then nothing more is taken from `source`.

    The thread ends with the source, with `close()`, or when the iterator is garbage collected, as after `break`. While
    `source` does not return, `close()` waits up to 10 s and then abandons the thread with a RuntimeWarning; garbage
    collection waits 0.1 s, and the thread ends when `source` returns. It does not keep the process alive.

    Args:
        source: the iterator to run ahead. Only the thread uses it.
        function: applied to each item on the thread.
        depth: how many results can wait, at least 1.
        readers: gets the thread when it starts.
    """

    def __init__(
        self,
        source: Iterator[In],
        function: Callable[[In], Out],
        *,
        depth: int,
        readers: weakref.WeakSet[BackgroundThread[Any, Any]] | None = None,
    ) -> None:
        self._source: Iterator[In] | None = source
        self._function, self._depth = function, depth
        self._readers = weakref.WeakSet() if readers is None else readers
        self._reader: BackgroundThread[In, Out] | None = None

    def __next__(self) -> Out:
        if self._reader is None:
            self._reader = self._start()
        outcome = self._reader.outcomes.get()
        if isinstance(outcome, _Value):
            self._reader.room.release()
            return outcome.value
        self._end()
        if outcome.error is None:
            self.close()
            raise StopIteration
        try:
            raise outcome.error
        finally:
            del outcome  # breaks a reference cycle: its traceback refers to this frame

    def close(self) -> None:
        """End the thread and drop waiting results. `next()` then raises StopIteration."""
        self._end()
        self._source = None

    def _end(self) -> None:
        if self._reader is not None:
            self._collected.detach()
            self._reader.end()
            self._reader = None

    def _start(self) -> BackgroundThread[In, Out]:
        if self._source is None:
            raise StopIteration
        reader = BackgroundThread(self._source, self._function, self._depth)
        # At garbage collection, or at the end of the process.
        self._collected = weakref.finalize(self, reader.end, _COLLECTED_TIMEOUT_SECONDS, warns=False)
        self._readers.add(reader)
        reader.start()
        return reader


@dataclass(frozen=True, slots=True)
class _Value(Generic[Out]):
    value: Out


@dataclass(frozen=True, slots=True)
class _Ended:
    error: BaseException | None


class BackgroundThread(threading.Thread, Generic[In, Out]):
    """The thread of a `Background`. It does not refer to it, so that the iterator can be collected."""

    def __init__(self, source: Iterator[In], function: Callable[[In], Out], depth: int) -> None:
        super().__init__(name="instrument-prefetch", daemon=True)
        self._source, self._function = source, function
        self.outcomes: queue.SimpleQueue[_Value[Out] | _Ended] = queue.SimpleQueue()
        self.room = threading.Semaphore(depth)
        self.stopped = False

    def run(self) -> None:
        """Put results into `outcomes` until the source ends or raises, or until `end`."""
        try:
            while not self.stopped:
                try:
                    item = next(self._source)
                except StopIteration:
                    self.outcomes.put(_Ended(None))
                    return
                self.room.acquire()
                if not self.stopped:
                    self.outcomes.put(_Value(self._function(item)))
                del item  # free it while the next one loads
        except BaseException as error:
            self.outcomes.put(_Ended(error))
        finally:
            del self._source, self._function

    def end(self, timeout: float | None = None, *, warns: bool = True) -> None:
        """End the thread, and wait for that up to `timeout` seconds; None for 10 s."""
        self.stopped = True
        self.room.release()
        if self is threading.current_thread():
            return  # the garbage collector can run on this thread
        self.join(_JOIN_TIMEOUT_SECONDS if timeout is None else timeout)
        if warns and self.is_alive():
            warnings.warn("the data loader does not return: abandoning its prefetch thread", RuntimeWarning, 2)
