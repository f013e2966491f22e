"""Serialized results: a round trip, errors of a worker, and invalid data."""

from __future__ import annotations

import json
import zlib

import pytest

from tests.captures import sample
from tests.fleet.reports import ranks_of, result_of
from traceview.fleet.serialization import deserialize, serialize
from traceview.fleet.worker import Job, work
from traceview.model.fleet import ReportResult


def test_round_trip() -> None:
    result = result_of(ranks_of("slowhost")[1])
    data = serialize(result)
    again = deserialize(data)
    assert isinstance(again, ReportResult)
    assert serialize(again) == data
    steps, other = result.ranks[0].steps, again.ranks[0].steps
    assert steps is not None and other is not None and steps.figure("wall").tolist() == other.figure("wall").tolist()
    assert again.ranks[0].collectives.channels == result.ranks[0].collectives.channels
    # Small, so that thousands fit into the merging process.
    assert len(data) < 14_000


def test_unreadable_report_gives_its_error() -> None:
    text = deserialize(work(str(sample("README.md")), Job()))
    assert text == "not an SQLite file; export it again: nsys export --type sqlite REPORT.nsys-rep"
    reason = deserialize(work("/nowhere/none.sqlite", Job()))
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
    assert deserialize(work("x.sqlite", Job())) == words


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
def test_invalid_data_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        deserialize(data)
