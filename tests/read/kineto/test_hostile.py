"""Invalid traces give one-line errors; unusual events are left out and noted."""

from __future__ import annotations

import gzip
import json
from decimal import ROUND_HALF_UP, Decimal
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.read.test_formats import says
from traceview.errors import ReportError
from traceview.pipeline import analyze, open_trace
from traceview.read.kineto.pieces import SEPARATOR, NotJsonError, Pieces, nanoseconds
from traceview.read.raw import NOT_A_TIME

ARGS = {"External id": 1, "device": 0, "context": 1, "stream": 7, "correlation": 5}
KERNEL = {"ph": "X", "cat": "kernel", "name": "void f<int>(float)", "pid": 0, "tid": 7, "ts": 20.5, "dur": 1.25}
KERNEL["args"] = ARGS
CALL = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 10, "dur": 5}
CALL["args"] = {"correlation": 5}


def trace(path: Path, *events: Any, **around: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **around}, indent=1), encoding="utf-8")
    return path


def test_list_of_events(tmp_path: Path) -> None:
    """Tools that merge or cut traces write the list alone; its closing bracket is optional."""
    path, expected = tmp_path / "a.json", open_trace(trace(tmp_path / "b.json", KERNEL, CALL)).operations
    for begin, end in product(("[", " [\n", "\ufeff["), ("]", "", ",", " ,\n", "\n]\n")):
        path.write_text(begin + ",\n".join(map(json.dumps, (KERNEL, CALL))) + end, encoding="utf-8")
        actual = open_trace(path)
        assert actual.operations.equals(expected), (begin, end)
        assert any("no closing bracket" in line for line in actual.info.problems) == ("]" not in end)


def test_damaged_lists_of_events(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text, words in (
        ('[{"name": "step", "ph": "X"}]', "not of torch.profiler"),
        ("[1, 2]", "no list of events"),
    ):
        path.write_text(text)
        says(ReportError, path, words)


@given(block=st.integers(1, 400), end=st.sampled_from(["]", "", ", "]))
@settings(max_examples=40)
def test_list_in_blocks(block: int, end: str) -> None:
    text = "[" + ", ".join(map(json.dumps, (KERNEL, CALL, KERNEL))) + end
    pieces = Pieces(BytesIO(text.encode()), block)
    events = [json.loads(event) for piece in pieces for event in piece.split(SEPARATOR)]
    assert events == [KERNEL, CALL, KERNEL]
    assert (pieces.before, pieces.is_open) == (b"", "]" not in end)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{}", "no list of events"),
        ("[]", "not of torch.profiler"),
        ('{"nodes": [1, 2]}', "no list of events"),
        ('{"traceEvents": [1, 2, 3]}', "before its first whole event"),
        ('{"traceEvents": []}', "not of torch.profiler"),
        ('{"traceEvents": [[]]}', "before its first whole event"),
        ('{"traceEvents": [{} {}]}', "not of torch.profiler"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "args": [1]}]}', "not of torch.profiler"),
        ('{"traceEvents": [{"cat": "kernel", "ts": [1]}]}', "not of torch.profiler"),
        ('{"traceEvents": [{"cat": "kernel", "a": \x1e}]}', "not of torch.profiler"),
        ('{"traceEvents": [{"cat": "kernel", "a": ' + "[" * 100_000 + "]" * 100_000 + "}]}", "not of torch.profiler"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + ', "traceEvents": [{"cat": "x"}]}', "deep"),
        ('{"a": ' + "9" * 5000 + ', "traceEvents": [{"cat": "x"}]}', "impossible number"),
        ('{"traceEvents": [{"cat": "x"}], "traceEvents": [{"cat": "kernel"}]}', "two lists"),
        ('{"traceEvents": [{"cat": "x"}]} and more', "before its first whole event"),
    ],
)
def test_invalid_traces_are_refused(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "run.pt.trace.json"
    path.write_text(text, encoding="utf-8")
    says(ReportError, path, word)
    packed = tmp_path / "run.pt.trace.json.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    says(ReportError, packed, word)


@pytest.mark.parametrize("odd", [1e300, -1e300, "x", None, True, 10**40, "1e5000", float("nan")])
def test_invalid_times_are_left_out(tmp_path: Path, odd: Any) -> None:
    analysis = analyze(trace(tmp_path / "run.json", KERNEL, CALL, {**KERNEL, "ts": odd}, {**KERNEL, "dur": odd}))
    assert analysis.devices[0].kernel_count == 1
    rows = [note.text.split(" of ")[0] for note in analysis.notes if " left out: " in note.text]
    assert rows in (["2 rows"], ["1 row", "1 row"])


def test_unusual_ids_and_names(tmp_path: Path) -> None:
    odd = {**ARGS, "stream": "0x7", "device": 10**30, "correlation": "five", "bytes": -(10**30)}
    events = [
        {**KERNEL, "args": odd},
        {**KERNEL, "pid": "GPU", "tid": None, "args": {}},
        {**KERNEL, "name": None},
        {**CALL, "pid": 1 << 40, "tid": -5},
        {**CALL, "pid": "host", "tid": "main", "name": 'a "quoted\\" {[ name \u2028 é 🚀'},
        {**CALL, "args": {"correlation": 5, "memory bandwidth (GB/s)": float("inf"), "x": float("nan")}},
        {"ph": "M", "name": "thread_name", "pid": 9, "tid": 9, "args": {"name": 5}},
    ]
    actual = open_trace(trace(tmp_path / "run.json", KERNEL, CALL, *events))
    assert (len(actual.operations), len(actual.api)) == (4, 4)
    assert 'a "quoted\\" {[ name \u2028 é 🚀' in actual.api["name"].cast(pl.String).to_list()


def test_invalid_unicode_in_a_gpu_name(tmp_path: Path) -> None:
    """Seed 62002529."""
    gpus = [{"id": 0, "name": "\ud800NVIDIA H200"}]
    actual = open_trace(trace(tmp_path / "run.json", KERNEL, CALL, deviceProperties=gpus))
    assert actual.devices["name"].to_list() == ["?NVIDIA H200"]


@given(st.decimals(min_value=-(10**15), max_value=10**15, places=5, allow_nan=False, allow_infinity=False))
def test_times_are_exact(time: Decimal) -> None:
    exact = int((abs(time) * 1000).quantize(Decimal(1), ROUND_HALF_UP)) * (-1 if time < 0 else 1)
    text = pl.DataFrame({"text": [f"{time:f}"]})
    assert text.select(nanoseconds(pl.col("text"))).item() == exact


@given(st.text("0123456789.eE+-", max_size=25))
def test_invalid_numbers_are_not_times(text: str) -> None:
    actual = pl.DataFrame({"text": [text]}).select(nanoseconds(pl.col("text"))).item()
    try:
        expected = Decimal(text) * 1000
    except ArithmeticError:
        assert actual == NOT_A_TIME
    else:
        assert actual == NOT_A_TIME or abs(actual - expected) <= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


EVENT = st.dictionaries(st.text(max_size=5), JSON, max_size=4).map(lambda event: {"ph": "X"} | event)


@settings(max_examples=60)
@given(st.lists(EVENT, min_size=1, max_size=12), st.integers(1, 90), st.booleans())
def test_pieces_hold_every_event(events: list[Any], block: int, compact: bool) -> None:
    """For any block size, the pieces hold every event once, and the document the rest."""
    kept = {"deviceProperties": [{"id": 1}], 'odd "traceEvents": [': ["}", "]"]}
    indent, separators = (None, (",", ":")) if compact else (2, None)
    text = json.dumps({**kept, "traceEvents": events, "after": {"a": []}}, indent=indent, separators=separators)
    pieces = Pieces(BytesIO(text.encode()), block)
    actual = [json.loads(item) for piece in pieces for item in piece.split(SEPARATOR)]
    assert actual == events
    assert json.loads(pieces.before + pieces.after) == {**kept, "traceEvents": [], "after": {"a": []}}


def test_long_events_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceview.read.kineto.pieces.MAX_TEXT", 1000)
    with pytest.raises(NotJsonError, match="more than"):
        list(Pieces(BytesIO(b'{"traceEvents": [{"a": "' + b"x" * 5000), 64))
