"""What a worker does with a report: it keeps the result in a file, or gives one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.captures import sample
from tests.ranks.reports import ranks_of, result_of
from traceview.errors import RequestError
from traceview.model.fleet import COLLECTIVE_COLUMNS
from traceview.ranks.worker import NOT_SEEN, Job, Report, forget_run, loaded, read_and_keep, work


def test_kept_result_is_read_back(tmp_path: Path) -> None:
    path = ranks_of("slowhost")[1]
    report = Report(str(path), Job(), 7, tmp_path)
    header, worker = read_and_keep(report)
    assert not isinstance(header, str) and worker is None and [file.name for file in tmp_path.iterdir()] == ["7"]
    [(first, again)] = loaded([(3, report)])
    result = result_of(path)
    assert first == 3 and again.program == result.program == header.program
    for name in COLLECTIVE_COLUMNS:
        assert np.array_equal(again.ranks[0].collectives.column(name), result.ranks[0].collectives.column(name))


def test_lost_result_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a cluster, if the worker that kept it is gone; a report that is gone too is one line."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = ranks_of("slowhost")[1]
    report = Report(str(path), Job(), 0, run="a")
    assert not isinstance(read_and_keep(report)[0], str)
    [folder] = tmp_path.iterdir()
    (folder / "0").unlink()
    assert report.result().program == result_of(path).program and (folder / "0").exists()
    with pytest.raises(RequestError, match=r"gone\.sqlite: no such file"):
        replace(report, path="/nowhere/gone.sqlite", run="b").result()
    forget_run("a")
    forget_run("b")
    forget_run("never begun")
    assert not list(tmp_path.iterdir())


def test_worker_without_access_to_the_report(tmp_path: Path) -> None:
    path = str(tmp_path / "rank0.sqlite")
    assert read_and_keep(Report(path, Job(), 0, run="a", exists=True)) == (NOT_SEEN, None)
    # A missing file gives the same error as on one machine.
    nowhere, _ = read_and_keep(Report(path, Job(), 0, run="a"))
    assert nowhere == work(path, Job()) and str(nowhere).startswith("no such file; ")
    forget_run("a")


def test_full_folder_gives_one_line(tmp_path: Path) -> None:
    outcome, _ = read_and_keep(Report(str(ranks_of("slowhost")[0]), Job(), 0, tmp_path / "missing"))
    assert str(outcome).startswith("its result cannot be kept in the temporary folder, see TMPDIR (")


def test_unreadable_report_gives_its_error() -> None:
    text = work(str(sample("README.md")), Job())
    assert text == "not an SQLite file; export it again: nsys export --type sqlite REPORT.nsys-rep"
    reason = work("/nowhere/none.sqlite", Job())
    assert reason == "no such file; make it with: nsys export --type sqlite REPORT.nsys-rep"


class Panic(BaseException):
    """A BaseException, like the panic of polars."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Panic("secret"), "internal error (Panic)"),
        (RecursionError("secret"), "internal error (RecursionError)"),
        (MemoryError(), "not enough memory to read it"),
    ],
)
def test_any_exception_gives_an_error(monkeypatch: pytest.MonkeyPatch, error: BaseException, words: str) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("traceview.ranks.measure_report.measure_report", fail)
    assert work("x.sqlite", Job()) == words
