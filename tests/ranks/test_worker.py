"""What a worker does with a report: it returns the result, or one line."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.captures import sample
from tests.ranks.reports import ranks_of
from traceview.ranks.analyze_reports import fleet
from traceview.ranks.processes import in_executor
from traceview.ranks.worker import Task, read
from traceview.report.fleet import to_json


def outcome(path: object) -> object:
    return read(Task(str(path), None, None, None, 1 << 40))


def test_executor_gives_the_same_result_and_a_line_for_a_call_that_fails() -> None:
    paths = ranks_of("slowhost")
    with ThreadPoolExecutor(2) as threads:
        assert to_json(fleet(*paths, executor=threads)) == to_json(fleet(*paths, workers=1))
        assert dict(in_executor(int, ["1", "x"], threads)) == {0: 1, 1: "the worker that read it failed (ValueError)"}


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
