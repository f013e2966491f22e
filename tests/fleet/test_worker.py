"""What a worker does with a report: it keeps the result in a file, or gives one line."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from tests.captures import sample
from tests.fleet.reports import ranks_of, result_of
from traceview.fleet.worker import Job, StoredResult, loaded, read_and_keep, work
from traceview.model.collectives import COLLECTIVE_COLUMNS


def test_stored_result_moves_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = result_of(ranks_of("slowhost")[1])
    stored = StoredResult(pickle.dumps(result))
    moved = pickle.loads(pickle.dumps(stored))
    [file] = set(tmp_path.iterdir()) - {Path(stored._path)}
    del stored
    assert list(tmp_path.iterdir()) == [file]
    [(first, again)] = loaded([(3, moved)])
    assert first == 3 and again.program == result.program
    for name in COLLECTIVE_COLUMNS:
        assert np.array_equal(again.ranks[0].collectives.column(name), result.ranks[0].collectives.column(name))
    del moved
    assert not list(tmp_path.iterdir())


def test_full_folder_gives_one_line(tmp_path: Path) -> None:
    outcome = read_and_keep(str(ranks_of("slowhost")[0]), Job(), tmp_path / "missing" / "0")
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

    monkeypatch.setattr("traceview.fleet.measure_report.measure_report", fail)
    assert work("x.sqlite", Job()) == words
