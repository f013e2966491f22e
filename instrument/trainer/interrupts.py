"""Stop a run after its current step on SIGINT or SIGTERM; a second signal stops it immediately.

with Interrupts() as stopping:
    for batch in batches:
        train(batch)
        if stopping.requested:
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
# torchrun forwards Ctrl-C to processes that already received it from the terminal.
TORCHRUN_REPEAT_WINDOW_S = 5.0


def write_to_stderr(text: str) -> None:
    """Write one line directly to file descriptor 2: in a signal handler Python's buffers may be inconsistent."""
    with contextlib.suppress(OSError):  # standard error may be closed; the run stops anyway
        os.write(2, f"{text}\n".encode())


class Interrupts:
    """Context manager that handles SIGINT and SIGTERM and restores the previous handlers at its end.

    The first signal sets `requested`; the second raises KeyboardInterrupt in the main thread. A signal that the
    process ignored from its start stays ignored. Outside the main thread this does nothing, because Python handles
    signals only there. Forked processes ignore SIGINT, since this process ends them, and SIGTERM ends them as usual.

    Args:
        repeat_window_s: seconds in which a second signal counts as a repetition of the first; None means 5 under
            torchrun, which sends Ctrl-C twice, and 0 elsewhere.
        log: receives one line inside the signal handler when the first signal arrives.

    Attributes:
        received: the last signal received; None if there was none.
    """

    def __init__(self, repeat_window_s: float | None = None, log: Callable[[str], None] = write_to_stderr) -> None:
        if repeat_window_s is None:
            repeat_window_s = TORCHRUN_REPEAT_WINDOW_S if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
        self._repeat_window_s, self._log = repeat_window_s, log
        self.received: signal.Signals | None = None
        self._first_at = 0.0
        self._process = os.getpid()
        self._before: Mapping[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal requested the run to stop."""
        return self.received is not None

    @property
    def exit_code(self) -> int:
        """Exit code of the process: 130 after SIGINT, 143 after SIGTERM, 0 without a signal."""
        return 0 if self.received is None else 128 + int(self.received)

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
            # None: the handler was not installed from Python and cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if os.getpid() != self._process:
            _handle_in_forked_process(received)
            return
        if self.received is None:
            self.received, self._first_at = received, time.monotonic()
            self._log(f"{received.name}: stopping after this step; send it again to stop immediately")
        elif time.monotonic() - self._first_at >= self._repeat_window_s:
            self.received = received
            raise KeyboardInterrupt(f"second {received.name}")


def _handle_in_forked_process(received: signal.Signals) -> None:
    if received is signal.SIGTERM:
        signal.signal(received, signal.SIG_DFL)
        os.kill(os.getpid(), received)
