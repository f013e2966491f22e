"""The first signal ends a run after its step, the second at once. Real signals to real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from instrument.trainer.interrupts import Interrupts

ROOT = Path(__file__).parents[3]

RUN = """
import signal, sys, time
from instrument.trainer.interrupts import Interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background may have it ignored
try:
    with Interrupts() as stopping:
        print("started", flush=True)
        while not stopping.requested:
            time.sleep(0.01)
        print("asked", flush=True)
        if sys.argv[1] == "stubborn":
            time.sleep(60)
        print("saved", flush=True)
except KeyboardInterrupt:
    print("at once", flush=True)
sys.exit(stopping.exit_code)
"""


def run(how: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TORCHELASTIC_RUN_ID", None)
    command = [sys.executable, "-c", RUN, how]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_first_signal_ends_the_run_in_order(number: signal.Signals, code: int) -> None:
    with run("willing") as process:
        assert line(process) == "started"
        process.send_signal(number)
        rest, said = process.communicate(timeout=300)
    assert rest == "asked\nsaved\n"
    assert said == f"{number.name}: stopping after this step; send it again to stop immediately\n"
    assert process.returncode == code


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [(signal.SIGINT, signal.SIGINT, 130), (signal.SIGTERM, signal.SIGTERM, 143), (signal.SIGTERM, signal.SIGINT, 130)],
)
def test_second_signal_ends_the_run_at_once(first: signal.Signals, second: signal.Signals, code: int) -> None:
    with run("stubborn") as process:
        assert line(process) == "started"
        process.send_signal(first)
        assert line(process) == "asked"
        process.send_signal(second)
        rest, _ = process.communicate(timeout=300)
    assert rest == "at once\n"
    assert process.returncode == code


@pytest.fixture
def handlers() -> Iterator[None]:
    """Set known handlers, because the shell may have set others."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_handlers_are_restored_after_error() -> None:
    with pytest.raises(ZeroDivisionError), Interrupts():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.usefixtures("handlers")
def test_no_signal_no_stop() -> None:
    with Interrupts() as stopping:
        pass
    assert (stopping.requested, stopping.received, stopping.exit_code) == (False, None, 0)


@pytest.mark.usefixtures("handlers")
def test_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as stopping:
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
        assert not stopping.requested
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.usefixtures("handlers")
def test_repeated_signal_counts_once() -> None:
    said: list[str] = []
    with Interrupts(repeat_window_s=3600, log=said.append) as stopping:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert stopping.received is signal.SIGINT
    assert len(said) == 1


@pytest.mark.usefixtures("handlers")
def test_repeated_signals_count_once_only_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with Interrupts(log=lambda _text: None) as stopping:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert stopping.exit_code == 130
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    with pytest.raises(KeyboardInterrupt), Interrupts(log=lambda _text: None):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("handlers")
def test_handlers_are_not_set_outside_the_main_thread() -> None:
    seen: list[object] = []

    def work() -> None:
        with Interrupts() as stopping:
            seen.extend([stopping.requested, signal.getsignal(signal.SIGTERM)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, signal.SIG_DFL]


FORKED = """
import os, signal, sys, time
from instrument.trainer.interrupts import Interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)
with Interrupts():
    child = os.fork()
    if not child:
        os.kill(os.getpid(), signal.SIGINT)
        print("child goes on", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status) == signal.SIGTERM)
"""


def test_forked_worker_survives_ctrl_c_but_not_sigterm() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", FORKED], env=environment, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr, done.returncode) == ("child goes on\nTrue\n", "", 0)
