from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from instrument.config.schema import Checkpoint, Config, Monitor, to_dict
from instrument.errors import ConfigError
from instrument.monitor.wandb import open_sink


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
        return SimpleNamespace(id=given["id"] or f"run{len(self.begun)}", log=self.log, finish=self.finish)

    def log(self, figures: dict[str, float], step: int) -> None:
        self.logged.append((step, figures))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    stand_in = Library()
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    return stand_in


def config(folder: Path | None = None) -> Config:
    return Config(monitor=Monitor(wandb="tries"), checkpoint=Checkpoint(folder=folder))


def test_run_is_started_logged_and_finished(library: Library) -> None:
    sink = open_sink(config(), None)
    assert sink is not None
    sink.write(9, {"loss": 2.5, "perf/power_w": None})
    sink.close()
    assert library.begun == [{"project": "tries", "config": to_dict(config()), "id": None, "resume": None}]
    assert library.logged == [(9, {"loss": 2.5})]
    assert library.finished == 1


def test_resumed_run_keeps_its_id(library: Library, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    open_sink(config(folder), None)
    open_sink(config(folder), 50)
    assert [(given["id"], given["resume"]) for given in library.begun] == [(None, None), ("run1", "allow")]
    open_sink(config(folder), None)
    open_sink(config(folder), 10)
    assert library.begun[3]["id"] == "run3"


def test_resumed_run_without_an_id_starts_a_new_run(library: Library, tmp_path: Path) -> None:
    open_sink(config(tmp_path), 50)
    open_sink(config(), 50)
    assert [given["id"] for given in library.begun] == [None, None]


def test_failed_start_is_one_line_with_a_remedy(library: Library) -> None:
    library.refuses = "api_key not configured\n(no-tty)."
    with pytest.raises(ConfigError) as refused:
        open_sink(config(), None)
    assert str(refused.value) == (
        "monitor.wandb: api_key not configured (no-tty).; WANDB_MODE=offline logs to this machine instead"
    )


def test_no_sink_without_a_project(library: Library) -> None:
    assert open_sink(Config(), None) is None
    assert library.begun == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of wandb's own dependencies
def test_real_library_works_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "DIR": str(tmp_path), "SILENT": "true", "CONSOLE": "off"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    sink = open_sink(config(tmp_path / "kept"), None)
    assert sink is not None
    sink.write(9, {"loss": 2.5, "perf/power_w": None})
    sink.close()
    (stored,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert (tmp_path / "kept" / "wandb-run").read_text().strip() in stored.name
    deadline = time.monotonic() + 300  # its own process writes the file, and may still be at it
    while b"loss" not in stored.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert b"tries" in stored.read_bytes()
    assert b"loss" in stored.read_bytes()
