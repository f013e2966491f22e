from __future__ import annotations

import builtins
import importlib
import logging
import types
from pathlib import Path
from typing import Any

import pytest

from instrument import monitor
from instrument.config.schema import Config, Monitor
from instrument.errors import ConfigError
from instrument.monitor import Figures, Sink, Sinks, open_sinks
from instrument.monitor.services import import_optional


class Recorder:
    """A sink that keeps its records, and fails where the test wants it."""

    def __init__(self, breaks_at: int | None = None, breaks_closing: bool = False) -> None:
        self.records: list[tuple[int, Figures]] = []
        self.closed = 0
        self._breaks_at, self._breaks_closing = breaks_at, breaks_closing

    def write(self, step: int, figures: Figures) -> None:
        if step == self._breaks_at:
            raise OSError("no space\nleft")
        self.records.append((step, figures))

    def close(self) -> None:
        self.closed += 1
        if self._breaks_closing:
            raise RuntimeError


def without(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Make a library and the module that imports it unavailable."""
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> types.ModuleType:
        if name == module:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)


def test_no_sink_is_opened_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_sinks(Config(monitor=Monitor(progress=False))) as sinks:
        sinks.write(0, {"loss": 1.0})
    assert list(tmp_path.iterdir()) == []


def test_every_sink_gets_every_record_and_is_closed_once() -> None:
    first, second = Recorder(), Recorder()
    with Sinks([first, second]) as sinks:
        sinks.write(0, {"loss": 2.0})
        sinks.write(1, {"loss": None})
    sinks.close()
    assert first.records == second.records == [(0, {"loss": 2.0}), (1, {"loss": None})]
    assert (first.closed, second.closed) == (1, 1)


def test_broken_sink_warns_once_and_others_continue(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, well = Recorder(breaks_at=1, breaks_closing=True), Recorder()
    with caplog.at_level(logging.WARNING), Sinks([broken, well]) as sinks:
        for step in range(4):
            sinks.write(step, {})
    assert [step for step, _figures in broken.records] == [0]
    assert [step for step, _figures in well.records] == [0, 1, 2, 3]
    assert (broken.closed, well.closed) == (1, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "Recorder failed at step 1 and is closed: no space left",
        "Recorder: error on close: RuntimeError",
    ]


def test_failed_sink_closes_the_sinks_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Recorder()

    def opens(*_about: Any) -> Sink | None:
        return first

    def refuses(*_about: Any) -> Sink | None:
        raise ConfigError("monitor.other: no")

    monkeypatch.setattr(monitor, "SINKS", {"every": opens, "progress": refuses})
    with pytest.raises(ConfigError, match=r"^monitor\.other: no$"):
        open_sinks(Config())
    assert first.closed == 1


@pytest.mark.parametrize(
    ("asked", "module"),
    [(Monitor(tensorboard=Path("events")), "tensorboard"), (Monitor(wandb="project"), "wandb")],
)
def test_missing_library_is_one_line(
    asked: Monitor, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    without(monkeypatch, module)
    with pytest.raises(ConfigError) as refused:
        open_sinks(Config(monitor=asked))
    assert str(refused.value) == (
        f"monitor.{module} needs the package {module} (No module named {module!r}); run: pip install {module}"
    )
    assert list(tmp_path.iterdir()) == []


def test_installed_library_is_imported() -> None:
    assert import_optional("builtins", "monitor.any", "any") is builtins


def test_all_sinks_get_the_same_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    names = ("every", "progress", "jsonl", "log_every")
    monkeypatch.setattr(monitor, "SINKS", {name: lambda *given: made.append(given) or Recorder() for name in names})
    config = Config()
    open_sinks(config, resumed_at=7).close()
    assert made == [(wanted, config, 7, 200) for wanted in (10, True, 100)]
