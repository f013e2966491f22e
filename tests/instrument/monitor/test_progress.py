from __future__ import annotations

import importlib
import io
import sys
import types

import pytest

from instrument.config.schema import Config, Monitor, Training
from instrument.monitor.progress import Bar, PlainLine, figures_text, open_sink

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


def without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    def import_module(name: str) -> types.ModuleType:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", import_module)


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = shown_on(monkeypatch)
    assert open_sink(config(progress=False), None) is None
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert open_sink(config(), None) is None
    assert terminal.getvalue() == ""


def test_bar_shows_steps_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = shown_on(monkeypatch)
    pytest.importorskip("tqdm")
    bar = open_sink(config(), None)
    assert isinstance(bar, Bar)
    bar.write(9, RECORD)
    bar.write(19, RECORD)
    bar.write(19, {"perf/epoch/step_ms": 9.9})
    bar.close()
    last = terminal.getvalue().rstrip("\n").split("\r")[-1]
    assert "20/40" in last
    assert SHOWN in last


def test_bar_of_a_resumed_run_starts_at_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = shown_on(monkeypatch)
    pytest.importorskip("tqdm")
    bar = open_sink(config(), 30)
    assert bar is not None
    assert "30/40" in terminal.getvalue()
    bar.close()


def test_bar_of_a_run_in_epochs_has_no_total(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = shown_on(monkeypatch)
    pytest.importorskip("tqdm")
    bar = open_sink(config(epochs=2), None)
    assert bar is not None
    bar.write(9, RECORD)
    bar.close()
    assert "10step" in terminal.getvalue()
    assert "/40" not in terminal.getvalue()


def test_plain_line_without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = shown_on(monkeypatch)
    without_tqdm(monkeypatch)
    line = open_sink(config(), None)
    assert isinstance(line, PlainLine)
    line.write(9, RECORD)
    line.write(19, {"loss": 2.0})
    line.write(19, {"perf/epoch/step_ms": 9.9})
    line.close()
    first, second = f"step 10/40  {SHOWN}", "step 20/40  loss 2"
    assert terminal.getvalue() == f"\r{first}\r{second:<{len(first)}}\n"


def test_closing_without_a_line_prints_nothing() -> None:
    terminal = Terminal()
    PlainLine(None, terminal).close()
    assert terminal.getvalue() == ""


def test_plain_line_without_a_total() -> None:
    terminal = Terminal()
    PlainLine(None, terminal).write(0, {"loss": 1.0})
    assert terminal.getvalue() == "\rstep 1  loss 1"


def test_unmeasured_figures_are_not_shown() -> None:
    assert figures_text({"loss": None, "perf/step_ms": 2.0}) == "2.0 ms/step"
    assert figures_text({"perf/epoch/step_ms": 2.0}) == ""
