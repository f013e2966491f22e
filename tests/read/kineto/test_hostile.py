"""What is no whole trace of torch.profiler ends in one line; what is odd in one is left out and said."""

from __future__ import annotations

import gzip
import json
import random
from decimal import ROUND_HALF_UP, Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.read.test_formats import says
from traceview.errors import DamagedExportError, NotAnExportError, ReportError, TraceviewError
from traceview.pipeline import analyze, open_trace
from traceview.read.kineto.events import nanoseconds
from traceview.read.kineto.pieces import SEPARATOR, NotJsonError, Pieces
from traceview.read.raw import NOT_A_TIME

ARGS = {"External id": 1, "device": 0, "context": 1, "stream": 7, "correlation": 5}
KERNEL = {"ph": "X", "cat": "kernel", "name": "void f<int>(float)", "pid": 0, "tid": 7, "ts": 20.5, "dur": 1.25}
KERNEL["args"] = ARGS
CALL = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": 10, "dur": 5}
CALL["args"] = {"correlation": 5}


def trace(path: Path, *events: Any, **around: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, **around}, indent=1), encoding="utf-8")
    return path


def test_a_small_trace(tmp_path: Path) -> None:
    found = open_trace(trace(tmp_path / "a.json", KERNEL, CALL))
    assert found.operations.select("start", "end", pl.col("name").cast(pl.String), "launch").rows() == [
        (10_500, 11_750, "f", 0)
    ]


def test_a_trace_that_is_cut_off_anywhere(tmp_path: Path) -> None:
    path = trace(tmp_path / "run.json", KERNEL, CALL, KERNEL, traceName="x" * 50)
    whole = path.read_bytes()
    for size in range(1, len(whole) - 1, 3):
        path.write_bytes(whole[:size])
        with pytest.raises((DamagedExportError, NotAnExportError)) as caught:
            open_trace(path)
        assert "\n" not in str(caught.value) and "run.json" in str(caught.value)
    path.write_bytes(whole[: len(whole) // 2])
    says(DamagedExportError, path, "cut off", "torch leaves such a file when it is killed", "export_chrome_trace")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{}", "no list of events"),
        ("[]", "no list of events"),
        ('{"nodes": [1, 2]}', "no list of events"),
        ('{"traceEvents": [1, 2, 3]}', "not an event"),
        ('{"traceEvents": []}', "not of torch.profiler"),
        ('{"traceEvents": [[]]}', "not an object"),
        ('{"traceEvents": [{} {}]}', "comma"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "args": [1]}]}', "a type that torch does not write"),
        ('{"traceEvents": [{"cat": "kernel", "ts": [1]}]}', "a type that torch does not write"),
        ('{"traceEvents": [{"cat": "kernel", "a": \x1e}]}', "control character"),
        ('{"traceEvents": [{"cat": "kernel", "a": ' + "[" * 100_000 + "]" * 100_000 + "}]}", "deep"),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + ', "traceEvents": [{"cat": "x"}]}', "deep"),
        ('{"a": ' + "9" * 5000 + ', "traceEvents": [{"cat": "x"}]}', "impossible number"),
        ('{"traceEvents": [{"cat": "x"}], "traceEvents": [{"cat": "kernel"}]}', "two lists"),
        ('{"traceEvents": [{"cat": "x"}]} and more', "not JSON around"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "run.pt.trace.json"
    path.write_text(text, encoding="utf-8")
    says(ReportError, path, word)
    packed = tmp_path / "run.pt.trace.json.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    says(ReportError, packed, word)


@pytest.mark.parametrize("odd", [1e300, -1e300, "x", None, True, 10**40, "1e5000", float("nan")])
def test_odd_times_are_left_out_and_counted(tmp_path: Path, odd: Any) -> None:
    for key in ("ts", "dur"):
        path = trace(tmp_path / "run.json", KERNEL, CALL, {**KERNEL, key: odd})
        analysis = analyze(path)
        assert analysis.devices[0].kernel_count == 1
        assert any("1 rows left out" in note for note in analysis.notes)


def test_odd_ids_and_names(tmp_path: Path) -> None:
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
    found = open_trace(trace(tmp_path / "run.json", KERNEL, CALL, *events))
    assert (len(found.operations), len(found.api)) == (4, 4)
    assert 'a "quoted\\" {[ name \u2028 é 🚀' in found.api["name"].cast(pl.String).to_list()


def test_half_a_character_in_the_name_of_a_gpu(tmp_path: Path) -> None:
    """Seed 62002529."""
    gpus = [{"id": 0, "name": "\ud800NVIDIA H200"}]
    found = open_trace(trace(tmp_path / "run.json", KERNEL, CALL, deviceProperties=gpus))
    assert found.devices["name"].to_list() == ["?NVIDIA H200"]


def test_damaged_bytes_of_a_trace(tmp_path: Path) -> None:
    """Bytes of a trace changed at random: an analysis, or one line; never anything else."""
    path = trace(tmp_path / "run.json", *(KERNEL, CALL) * 20, deviceProperties=[{"id": 0, "name": "GPU"}])
    whole, chance = path.read_bytes(), random.Random(7)
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 3, 30))):
            damaged[chance.randrange(len(whole))] = chance.choice(b'"{}[]\\,:0eE-\x00\xff\x1e\n ')
        path.write_bytes(damaged)
        try:
            open_trace(path)
        except TraceviewError as error:
            assert "\n" not in str(error) and "run.json" in str(error)


@given(st.decimals(min_value=-(10**15), max_value=10**15, places=5, allow_nan=False, allow_infinity=False))
def test_times_are_exact(time: Decimal) -> None:
    exact = int((abs(time) * 1000).quantize(Decimal(1), ROUND_HALF_UP)) * (-1 if time < 0 else 1)
    text = pl.DataFrame({"text": [f"{time:f}"]})
    assert text.select(nanoseconds(pl.col("text"))).item() == exact


@given(st.integers(-(9 * 10**15), 9 * 10**15), st.integers(0, 999))
def test_no_nanosecond_is_lost(us: int, ns: int) -> None:
    text = pl.DataFrame({"text": [f"{us}.{ns:03}"]})
    sign = -1 if us < 0 else 1
    assert text.select(nanoseconds(pl.col("text"))).item() == us * 1000 + sign * ns


@given(st.text("0123456789.eE+-", max_size=25))
def test_what_is_no_number_is_no_time(text: str) -> None:
    found = pl.DataFrame({"text": [text]}).select(nanoseconds(pl.col("text"))).item()
    try:
        expected = Decimal(text) * 1000
    except ArithmeticError:
        assert found == NOT_A_TIME
    else:
        assert found == NOT_A_TIME or abs(found - expected) <= 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60)
@given(st.lists(st.dictionaries(st.text(max_size=5), JSON, max_size=4), max_size=12), st.integers(1, 90), st.booleans())
def test_pieces_are_the_events(events: list[Any], block: int, compact: bool) -> None:
    """Whatever the size of a block, the pieces hold every event once, and the rest is what is around them."""
    kept = {"deviceProperties": [{"id": 1}], 'odd "traceEvents": [': ["}", "]"]}
    indent, separators = (None, (",", ":")) if compact else (2, None)
    text = json.dumps({**kept, "traceEvents": events, "after": {"a": []}}, indent=indent, separators=separators)
    pieces = Pieces(BytesIO(text.encode()), block)
    found = [json.loads(one) for piece in pieces for one in piece.decode().split(chr(SEPARATOR))]
    assert found == events
    assert json.loads(pieces.document) == {**kept, "traceEvents": [], "after": {"a": []}}


def test_a_list_of_events_is_looked_for_once() -> None:
    """A hundred thousand keys of that name deeper inside, or in a text, are not the document's."""
    inner = [{"traceEvents": [1]}] * 100_000
    text = json.dumps({"a": inner, 'b "traceEvents": [': 1, "traceEvents": [{"ph": "X"}]})
    assert list(Pieces(BytesIO(text.encode()))) == [b'{"ph": "X"}']


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceview.read.kineto.pieces.MAX_TEXT", 1000)
    with pytest.raises(NotJsonError, match="more than"):
        list(Pieces(BytesIO(b'{"traceEvents": [{"a": "' + b"x" * 5000), 64))
