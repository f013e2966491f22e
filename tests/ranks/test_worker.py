"""What a worker does with a report: it returns the result, or one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import sample
from traceview.ranks.worker import NOT_SEEN, Task, read


def outcome(path: object, *, exists: bool = False) -> object:
    return read(Task(str(path), None, None, None, 1 << 40, exists))


def test_worker_without_access_to_the_report(tmp_path: Path) -> None:
    assert outcome(tmp_path / "rank0.sqlite", exists=True) == NOT_SEEN
    # A missing file gives the same error as on one machine.
    assert str(outcome(tmp_path / "rank0.sqlite")).startswith("no such file; ")


def test_unreadable_report_gives_its_error() -> None:
    text = outcome(sample("README.md"))
    assert text == "not an SQLite file; export it again: nsys export --type sqlite REPORT.nsys-rep"
    reason = outcome("/nowhere/none.sqlite")
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
    assert outcome("x.sqlite") == words
