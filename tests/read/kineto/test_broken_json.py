"""Events that are not JSON are repaired or left out, and counted; a trace that ends early is read up to its end."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.read.kineto.test_hostile import CALL, KERNEL
from tests.read.test_formats import says
from traceview.errors import DamagedExportError
from traceview.model.trace import Trace
from traceview.pipeline import open_trace
from traceview.read import raw
from traceview.read.kineto.pieces import Faults, escaped_text, repaired_event, repaired_events
from traceview.read.kineto.trace_file import read_trace

# What torch writes as the names of Python functions and ops.
ODD_NAMES = (
    '{"device": "cpu", "dtype": "float32"}(12): run',
    '_lib = torch.library.Library("_inductor_test", "IMPL")\n(1): <module>',
    r"C:\Users\me\train.py(12): run",
    'one " quote',
    'a brace "{" and a bracket "["',
    '"}, ] and } outside',
    "|||S(1): \x01<module>",
    "a \x1e separator",
)
BEGIN = '{"schemaVersion": 1, "baseTimeNanoseconds": 1731000000000000000, "traceEvents": ['
END = '], "traceName": "C:\\Users\\me\\trace.json", "displayTimeUnit": "ms"}'


def raw_event(event: dict[str, Any], name: str) -> str:
    """Return an event as torch writes it: its name as it is."""
    return json.dumps({**event, "name": "NAME"}).replace("NAME", name)


def written(path: Path, names: list[str], end: str = END) -> Path:
    """Write a trace of a range and a kernel for each name; the ranges have the names."""
    events = []
    for number, name in enumerate(names):
        times = {"ts": 100 * number + 10}
        events += [raw_event({**CALL, **times, "cat": "user_annotation"}, name), json.dumps({**KERNEL, **times})]
    path.write_text(BEGIN + ",\n".join(events) + end, encoding="utf-8")
    return path


def names_of(trace: Trace) -> list[str]:
    """Return the names of a trace's ranges in order."""
    return trace.ranges["name"].cast(pl.String).to_list()


def note(trace: Trace) -> str:
    """Return the note on events that are not JSON."""
    return next((line for line in trace.info.problems if "not valid JSON" in line), "")


@pytest.mark.parametrize("odd", ODD_NAMES)
@pytest.mark.parametrize("count", [1, 2])
def test_odd_names_are_repaired(tmp_path: Path, odd: str, count: int) -> None:
    """Also where quotes hide the ends of events, so that the events between two odd names look like one."""
    names = ["first", odd, "second", *[odd] * (count - 1), "third"]
    trace = open_trace(written(tmp_path / "run.json", names))
    expected = [name.replace("\x1e", "\x1f") for name in names]
    assert names_of(trace) == expected
    assert len(trace.operations) == len(names)
    assert f"{count} repaired, 0 left out" in note(trace)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text('ab"{}[]:,\\\n\t ', max_size=8), min_size=1, max_size=4))
def test_any_name(tmp_path_factory: pytest.TempPathFactory, odd: list[str]) -> None:
    """The kernels with plain names keep their names, in order, whatever the others are called."""
    names = [name for index, text in enumerate(odd) for name in (f"plain{index}", text)]
    trace = open_trace(written(tmp_path_factory.mktemp("any") / "run.json", [*names, "last"]))
    assert [name for name in names_of(trace) if name.startswith(("plain", "last"))] == [*names[::2], "last"]


def test_valid_names_are_not_changed() -> None:
    text = r"a \"quoted\" \\ name \u00e9 \/ \n"
    assert escaped_text(text) == text


def test_events_that_cannot_be_repaired_are_counted() -> None:
    events, faults = repaired_events(
        ['{"ph": "X", "ts": }', '{"ph": "X", "a": [N/A, inf]}', '{"ph": "X"}', "7", '{"a": -nan}']
    )
    assert (events, faults) == (['{"ph": "X"}', '{"a": null}'], Faults(1, 3))
    assert (
        repaired_event('{"args": {"Call stack": "f("x")", "n": 1}}') == r'{"args": {"Call stack": "f(\"x\")", "n": 1}}'
    )


@pytest.mark.parametrize("value", [[1], {"a": 1}])
def test_values_of_other_types_cost_one_event(tmp_path: Path, value: Any) -> None:
    events = [KERNEL, {**KERNEL, "ts": value}, CALL, {**KERNEL, "args": [1]}, {**KERNEL, "ts": 40}]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    trace = open_trace(path)
    assert len(trace.operations) == 2 and "2 left out" in note(trace) and trace.info.trust.left_out == 2


def test_every_cut(tmp_path: Path) -> None:
    """The whole events before a cut are read, and nothing else; before the first one, the file is refused."""
    whole = written(tmp_path / "whole.json", ["a", "b", "c"]).read_text()
    path = tmp_path / "cut.json"
    for size in range(len(BEGIN), len(whole) - 1, 7):
        path.write_text(text := whole[:size])
        try:
            capture = read_trace(path)
        except DamagedExportError as error:
            assert "cut off: it ends before its first whole event" in str(error) and "}}" not in text
        else:
            counts = [len(capture.tables[name]) if name in capture.tables else 0 for name in (raw.NVTX, raw.KERNEL)]
            assert tuple(counts) == ((text.count("}}") + 1) // 2, text.count("}}") // 2)
            assert any("up to its last whole event" in line for line in capture.problems)


def test_cut_compressed_traces(tmp_path: Path) -> None:
    """The end of a compressed trace may be missing too."""
    content = written(
        tmp_path / "whole.json", [f"kernel {number} of {number * 7919 % 1009}" for number in range(3000)]
    ).read_bytes()
    for ending, packed in (("gz", gzip.compress(content)), ("xz", lzma.compress(content))):
        path = tmp_path / f"cut.json.{ending}"
        path.write_bytes(packed[: len(packed) // 2])
        trace = open_trace(path)
        assert 0 < len(trace.operations) < 3000
        assert any("up to its last whole event" in line for line in trace.info.problems)


def test_cut_before_the_events(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for text in (BEGIN[:30], BEGIN, BEGIN + '{"ph": "X"'):
        path.write_text(text)
        says(DamagedExportError, path, "cut off", "let the process run")
