"""The form in which results travel: what went in comes out, and nothing else is taken."""

from __future__ import annotations

import json
import zlib

import pytest

from tests.captures import sample
from tests.fleet.reports import ranks_of, result_of
from traceview.fleet.form import packed, unpacked
from traceview.fleet.job import Job
from traceview.fleet.worker import work
from traceview.model.fleet import ReportResult


def test_a_result_is_the_same_after_the_journey() -> None:
    result = result_of(ranks_of("slowhost")[1])
    data = packed(result)
    again = unpacked(data)
    assert isinstance(again, ReportResult)
    assert packed(again) == data
    steps, other = result.ranks[0].steps, again.ranks[0].steps
    assert steps is not None and other is not None and steps.figure("wall").tolist() == other.figure("wall").tolist()
    assert again.ranks[0].collectives.channels == result.ranks[0].collectives.channels
    # Small: thousands of them fit a process that merges.
    assert len(data) < 10_000


def test_what_a_worker_cannot_read_comes_back_as_words() -> None:
    text = unpacked(work(str(sample("README.md")), Job()))
    assert text == "not an SQLite file; export it again: nsys export --type sqlite REPORT.nsys-rep"
    reason = unpacked(work("/nowhere/none.sqlite", Job()))
    assert reason == "no such file; make it with: nsys export --type sqlite REPORT.nsys-rep"


class Panic(BaseException):
    """What polars raises when it panics is no Exception either."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Panic("secret"), "internal error (Panic)"),
        (RecursionError("secret"), "internal error (RecursionError)"),
        (MemoryError(), "not enough memory to read it"),
    ],
)
def test_whatever_goes_wrong_with_a_report_ends_with_it(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, words: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("traceview.fleet.read_one.read_report", fail)
    assert unpacked(work("x.sqlite", Job())) == words


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        zlib.compress(b"{}"),
        zlib.compress(b"[1]"),
        zlib.compress(json.dumps({"form": 99, "error": "x"}).encode()),
        zlib.compress(json.dumps({"form": 1, "report": {"nsys_version": 3}}).encode()),
        zlib.compress(json.dumps({"form": 1}).encode()),
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpacked(data)
