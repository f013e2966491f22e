from __future__ import annotations

import io
import sys

import pytest

from instrument.config.schema import Config, Monitor, Training
from instrument.monitor import open_sinks
from instrument.monitor.progress import Bar, LogLines, figures_text, open_progress

RECORD = {"loss": 2.34567, "perf/step_ms": 9.81, "perf/samples_per_s": 3261.7}
SHOWN = "loss 2.346  9.8 ms/step  3262 samples/s"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown_on(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Make stderr a terminal. A fixture cannot do this, because pytest replaces stderr after the fixtures."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    return screen


def config(steps: int = 40, *, epochs: int | None = None, progress: bool = True) -> Config:
    return Config(training=Training(steps=steps, epochs=epochs), monitor=Monitor(progress=progress))


def test_nothing_is_shown_if_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = shown_on(monkeypatch)
    open_sinks(config(progress=False)).write(99, RECORD)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert open_progress(True, Config(monitor=Monitor(log_every=0)), None, 40) is None
    assert terminal.getvalue() == ""


def test_bar_shows_steps_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = shown_on(monkeypatch)
    pytest.importorskip("tqdm")
    bar = open_progress(True, config(), None, 40)
    assert isinstance(bar, Bar)
    bar.write(9, RECORD)
    bar.write(19, RECORD)
    bar.write(19, {"validation/loss": 9.9})
    bar.close()
    last = terminal.getvalue().rstrip("\n").split("\r")[-1]
    assert "20/40" in last
    assert SHOWN in last


@pytest.mark.parametrize(("epochs", "resumed_at", "total", "shown"), [(None, 30, 40, "30/40"), (2, None, 50, "10/50")])
def test_bar_of_a_resumed_run_and_of_epochs(
    epochs: int | None, resumed_at: int | None, total: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = shown_on(monkeypatch)
    pytest.importorskip("tqdm")
    bar = open_progress(True, config(epochs=epochs), resumed_at, total)
    assert bar is not None
    if resumed_at is None:
        bar.write(9, RECORD)
    bar.close()
    assert shown in terminal.getvalue()


def test_lines_without_a_terminal_have_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    printed, seconds = io.StringIO(), iter([0.0, 60.0, 120.0])
    monkeypatch.setattr(sys, "stderr", printed)
    lines = open_progress(True, config(epochs=2), None, 400)
    assert isinstance(lines, LogLines)
    lines._clock = lambda: next(seconds)
    for step in (9, 49, 99, 149, 199):
        lines.write(step, RECORD)
    lines.write(199, {"validation/loss": 9.9})
    # 90 steps take 60 s, so 300 take 200 s; 190 take 120 s, so 200 take 126 s.
    assert printed.getvalue().splitlines() == [
        f"instrument: step 100/400  {SHOWN}  0:03:20 left",
        f"instrument: step 200/400  {SHOWN}  0:02:06 left",
    ]


def test_terminal_without_tqdm_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = shown_on(monkeypatch)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    lines = open_progress(True, config(), None, 40)
    assert isinstance(lines, LogLines)
    lines.write(99, RECORD)
    assert terminal.getvalue() == f"instrument: step 100/40  {SHOWN}\n"


def test_unmeasured_figures_are_not_shown() -> None:
    assert figures_text({"loss": None, "perf/step_ms": 2.0}) == "2.0 ms/step"
    assert figures_text({"validation/loss": 2.0}) == ""
