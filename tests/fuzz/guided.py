"""Targets of the coverage-guided fuzzer. Each compares the reader of traces with json on the same bytes.

A target raises AssertionError if they differ. scripts/fuzz-guided runs them, tests/fuzz/test_guided.py their seeds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from tests.fuzz.invariants import parsed
from traceview.read.kineto.pieces import SEPARATOR, NotJsonError, Pieces

Target = Callable[[bytes], None]


def pieces(data: bytes) -> None:
    """Check that the pieces of a trace are its events for any block size, and that invalid JSON is refused."""
    cutter = Pieces(BytesIO(data[1:]), 1 + data[0]) if data else Pieces(BytesIO(b""))
    try:
        result = [_strict(item) for piece in cutter for item in piece.split(bytes([SEPARATOR]))]
        rest = _strict(cutter.before + cutter.after)
    except (NotJsonError, ValueError, RecursionError):
        return
    try:
        whole = _strict(data[1:])
    except ValueError:
        whole = _strict(re.sub(rb",(\s*\])", rb"\1", data[1:]))  # the only accepted input that is not JSON
    assert whole.pop("traceEvents") == result
    assert rest.pop("traceEvents") == []
    assert rest == whole


def is_refused_rightly(data: bytes) -> None:
    """Check that a valid trace is accepted if its events are objects that are not nested too deeply."""
    try:
        whole = _strict(data[1:])
        events = whole["traceEvents"]
        assert isinstance(whole, dict) and isinstance(events, list) and all(isinstance(item, dict) for item in events)
    except (ValueError, RecursionError, KeyError, TypeError, AssertionError):
        return
    if data.count(b"[") + data.count(b"{") > 60 or b'"traceEvents"' not in data or bytes([SEPARATOR]) in data:
        return
    cutter = Pieces(BytesIO(data[1:]), 1 + data[0])
    result = [_strict(item) for piece in cutter for item in piece.split(bytes([SEPARATOR]))]
    assert result == events


def _strict(text: bytes) -> Any:
    return parsed(text.decode("utf-8"))


TARGETS: Mapping[str, Target] = {"pieces": pieces, "whole": is_refused_rightly}


def seeds() -> list[bytes]:
    """Return a few small valid inputs."""
    texts = [json.dumps(_TRACE), json.dumps(_TRACE, separators=(",", ":")), json.dumps(_TRACE, indent=1)]
    return [bytes([block]) + text.encode() for block, text in zip((255, 40, 3), texts, strict=True)]


_TRACE = {
    "schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU {[\\\""}],
    "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "f\\", "ts": 1.5, "dur": 2, "args": {"stream": 7, "grid": [1, 1]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "\"}]", "ts": 1, "dur": 1, "args": {}}, {},
    ],
    "traceName": "x \"traceEvents\": [",
}  # fmt: skip
