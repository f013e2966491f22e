"""A run that is asked to stop ends after the step it is in; asked twice, it ends at once.

with Interrupts() as stopping:
    for batch in batches:
        train(batch)
        if stopping.asked:
            break
sys.exit(stopping.exit_code)
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
# torchrun passes Ctrl-C on to processes that the terminal has already told.
TORCHRUN_REPEATS_FOR_S = 5.0


def say_on_stderr(text: str) -> None:
    """Write one line past Python's buffers, which a signal handler may have found half-written."""
    with contextlib.suppress(OSError):  # nobody reads it: the run stops all the same
        os.write(2, f"{text}\n".encode())


class Interrupts:
    """Take SIGINT and SIGTERM while the block runs; the handlers that were there come back after it.

    The first signal sets `asked`, the second raises KeyboardInterrupt at once, wherever the main thread
    is. A signal that the process was started to ignore stays ignored. Python lets the main thread alone take
    signals: in another one this does nothing. A process forked from this one is not stopped halfway by Ctrl-C
    (this one ends it), and SIGTERM ends it as ever.

    Args:
        repeats_for_s: how long a second signal counts as an echo of the first, in seconds; None is 5 under torchrun,
            which sends Ctrl-C twice, and 0 elsewhere.
        say: told in one line, inside the signal handler, that the signal was understood.
    """

    def __init__(self, repeats_for_s: float | None = None, say: Callable[[str], None] = say_on_stderr) -> None:
        if repeats_for_s is None:
            repeats_for_s = TORCHRUN_REPEATS_FOR_S if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
        self._repeats_for_s, self._say = repeats_for_s, say
        self._received: signal.Signals | None = None
        self._first_at = 0.0
        self._process = os.getpid()
        self._before: Mapping[signal.Signals, Any] = {}

    @property
    def asked(self) -> bool:
        """Whether the run was asked to stop."""
        return self._received is not None

    @property
    def received(self) -> signal.Signals | None:
        """The signal that asked, None where none did."""
        return self._received

    @property
    def exit_code(self) -> int:
        """What a shell expects of the process: 130 after SIGINT, 143 after SIGTERM, 0 where nobody asked."""
        return 0 if self._received is None else 128 + int(self._received)

    def __enter__(self) -> Interrupts:
        self._process = os.getpid()
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in SIGNALS}
            self._before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
            for number in self._before:
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_raised: object) -> None:
        for number, handler in self._before.items():
            # None: a handler that Python did not install, and cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if os.getpid() != self._process:
            _in_a_forked_process(received)
            return
        if self._received is None:
            self._received, self._first_at = received, time.monotonic()
            self._say(f"{received.name}: stopping after this step; once more stops at once")
        elif time.monotonic() - self._first_at >= self._repeats_for_s:
            self._received = received
            raise KeyboardInterrupt(f"{received.name} after the run was already asked to stop")


def _in_a_forked_process(received: signal.Signals) -> None:
    if received is signal.SIGTERM:
        signal.signal(received, signal.SIG_DFL)
        os.kill(os.getpid(), received)
