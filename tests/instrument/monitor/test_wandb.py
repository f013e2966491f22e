from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from instrument.config.schema import Config, Monitor, to_dict
from instrument.errors import ConfigError
from instrument.monitor import open_sinks


class RefusedError(Exception):
    """Stands in for wandb.errors.Error."""


class Library(SimpleNamespace):
    """Stands in for wandb: one run that keeps its calls."""

    def __init__(self, refuses: str = "") -> None:
        super().__init__(errors=SimpleNamespace(Error=RefusedError), refuses=refuses, logged=[], finished=0, begun=[])

    def init(self, **given: Any) -> SimpleNamespace:
        if self.refuses:
            raise RefusedError(self.refuses)
        self.begun.append(given)
        return SimpleNamespace(log=self.log, finish=self.finish)

    def log(self, figures: dict[str, float], step: int) -> None:
        self.logged.append((step, figures))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    stand_in = Library()
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    return stand_in


def config() -> Config:
    return Config(monitor=Monitor(wandb="tries"))


def test_run_is_started_logged_and_finished(library: Library) -> None:
    sink = open_sinks(config())
    sink.write(9, {"loss": 2.5, "perf/power_w": None})
    sink.close()
    assert library.begun == [{"project": "tries", "config": to_dict(config())}]
    assert library.logged == [(9, {"loss": 2.5})]
    assert library.finished == 1


def test_failed_start_is_one_line_with_a_remedy(library: Library) -> None:
    library.refuses = "api_key not configured\n(no-tty)."
    with pytest.raises(ConfigError) as refused:
        open_sinks(config())
    assert str(refused.value) == (
        "monitor.wandb: api_key not configured (no-tty).; WANDB_MODE=offline logs to this machine instead"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of wandb's own dependencies
def test_real_library_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true", "CONSOLE": "off"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    sink = open_sinks(config())
    sink.write(9, {"loss": 2.5, "perf/power_w": None})
    sink.close()
    (stored,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 300  # its own process writes the file, and may still be at it
    while b"loss" not in stored.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"tries" in stored.read_bytes()
    assert b"loss" in stored.read_bytes()
