"""What belongs to a question and to a capture; a change of either is never answered with what was before."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.cache.conftest import settle
from traceview.cache import Look, Store, folder, question

OPTIONS = (None, None, None, None, None, None, 10)


def look(report: Path, store: Store, options: tuple[str | int | None, ...] = OPTIONS) -> Look:
    found = Look.at(report, options, store)
    assert found is not None
    return found


def keep(report: Path, store: Store) -> None:
    one = look(report, store)
    one.begin()
    one.keep({"page": "the page"})


def known(report: Path, store: Store, options: tuple[str | int | None, ...] = OPTIONS) -> bool:
    found = look(report, store, options).answers(["page"])
    assert found in (None, {"page": "the page"})
    return found is not None


def test_the_same_is_known_and_more_is_not(report: Path, store: Store) -> None:
    assert not known(report, store)
    keep(report, store)
    assert known(report, store)
    assert look(report, store).answers(["page", "json"]) is None
    assert look(report, store).answers([]) == {}


@pytest.mark.parametrize("at", range(len(OPTIONS)))
def test_every_option_counts(report: Path, store: Store, at: int) -> None:
    keep(report, store)
    assert not known(report, store, (*OPTIONS[:at], 11 if at >= 5 else "x", *OPTIONS[at + 1 :]))


def test_one_changed_byte_is_another_capture(report: Path, store: Store) -> None:
    keep(report, store)
    data = bytearray(report.read_bytes())
    data[len(data) // 2] ^= 1
    report.write_bytes(data)
    assert not known(settle(report), store)


def test_the_same_bytes_elsewhere_are_known_but_under_another_name_are_not(
    report: Path, store: Store, tmp_path: Path
) -> None:
    keep(report, store)
    (tmp_path / "else").mkdir()
    assert known(settle(Path(shutil.copyfile(report, tmp_path / "else" / report.name))), store)
    # A name is in every report.
    assert not known(settle(Path(shutil.copyfile(report, tmp_path / "other.sqlite"))), store)


@pytest.mark.parametrize("how", ["written", "replaced", "gone"])
def test_a_report_that_changes_meanwhile_is_not_kept(report: Path, store: Store, how: str) -> None:
    one = look(report, store)
    one.begin()
    data = report.read_bytes()
    if how == "written":
        report.write_bytes(data)
    else:
        report.rename(report.with_name("old"))
        if how == "replaced":
            shutil.copy2(report.with_name("old"), report)
    one.keep({"page": "the page"})
    assert store.entries() == []


def test_a_report_written_a_moment_ago_is_not_kept(report: Path, store: Store) -> None:
    # Its times may be the same after one more change within a tick of the file system's clock.
    later = time.time() + 60
    os.utime(report, (later, later))
    keep(report, store)
    assert store.entries() == []


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_report_that_is_being_written_is_not_looked_up(report: Path, store: Store, suffix: str) -> None:
    keep(report, store)
    Path(f"{report}{suffix}").write_bytes(b"x")
    assert Look.at(report, OPTIONS, store) is None


def test_another_program_is_another_question(report: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(report, store)
    own = question.source()
    monkeypatch.setattr(question, "source", lambda: "edited")
    assert own != "edited" and not known(report, store)


def test_a_program_that_is_edited_meanwhile_keeps_nothing(
    report: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = look(report, store)
    one.begin()
    monkeypatch.setattr(question, "source", lambda: "edited")
    one.keep({"page": "the page"})
    assert store.entries() == []


def test_every_byte_of_the_source_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(question.PACKAGE, tmp_path / "traceview", ignore=shutil.ignore_patterns("__pycache__"))
    before = question.source()
    monkeypatch.setattr(question, "PACKAGE", tmp_path / "traceview")
    assert question.source() == before
    script = tmp_path / "traceview" / "report" / "assets" / "analysis" / "main.js"
    script.write_bytes(script.read_bytes() + b" ")
    assert question.source() != before


def test_a_folder_of_tables_counts_with_every_file(tmp_path: Path, store: Store) -> None:
    tables = tmp_path / "tables"
    tables.mkdir()
    for name in ("StringIds", "NVTX_EVENTS"):
        (tables / f"{name}.parquet").write_bytes(name.encode())
    keep(settle(tables), store)
    assert known(tables, store)
    (tables / "NVTX_EVENTS.parquet").write_bytes(b"NVTX_EVENTs")
    assert not known(settle(tables), store)
    (tables / "NVTX_EVENTS.parquet").write_bytes(b"NVTX_EVENTS")
    assert known(settle(tables), store)
    (tables / "NVTX_EVENTS.parquet").rename(tables / "NVTX_EVENTZ.parquet")
    assert not known(settle(tables), store)


def test_which_nsys_would_export_it_counts(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    # Made by hand: two programs that say which version they are.
    report = tmp_path / "report.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report 2024")
    for version in ("2024.2.3", "2025.1.1"):
        program = tmp_path / version / "nsys"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho NVIDIA Nsight Systems version {version}\n")
        program.chmod(0o755)
    settle(report)
    monkeypatch.setenv("PATH", f"{tmp_path / '2024.2.3'}:/usr/bin:/bin")
    keep(report, store)
    assert known(report, store)
    monkeypatch.setenv("PATH", f"{tmp_path / '2025.1.1'}:/usr/bin:/bin")
    assert not known(report, store)


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({"TRACEVIEW_CACHE": "/somewhere"}, "/somewhere"),
        ({"TRACEVIEW_CACHE": "off"}, None),
        ({"TRACEVIEW_CACHE": "", "XDG_CACHE_HOME": "/caches"}, "/caches/traceview"),
        ({"TRACEVIEW_CACHE": "", "XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/traceview"),
    ],
)
def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], wanted: str | None) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert folder() == (None if wanted is None else Path(wanted))
