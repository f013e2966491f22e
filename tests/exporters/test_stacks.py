"""Stacks for flame graph viewers hold the idle time of the lines; made evidence and a real capture."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from tests.captures import PUBLIC, sample, shared
from tests.measure.host.test_host_time import FRAME_ROWS, OWN_LINE, STACK_ROWS, random_trace
from traceview.errors import RequestError
from traceview.exporters import collect
from traceview.exporters.stacks import collapsed_host, collapsed_idle, speedscope
from traceview.model.stacks import FRAMES
from traceview.model.trace import Trace
from traceview.pipeline import analyze, open_trace


def stack_lines(text: bytes) -> dict[tuple[str, ...], int]:
    """Return the weights of collapsed stacks, read as their description says."""
    rows = [line.rpartition(" ") for line in text.decode().splitlines()]
    assert len({stack for stack, _, _ in rows}) == len(rows)
    return {tuple(stack.split(";")): int(weight) for stack, _, weight in rows}


def frames_of(node: int) -> list[int]:
    parent, frame = STACK_ROWS[node]
    return [*(frames_of(parent) if parent >= 0 else []), frame]


def own_lines(stacks: dict[tuple[int, ...], int]) -> dict[int, int]:
    lines: Counter[int] = Counter()
    nodes = {tuple(frames_of(node)): node for node in range(len(STACK_ROWS))}
    for frames, weight in stacks.items():
        lines[OWN_LINE[nodes[frames]]] += weight
    return dict(lines)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_stacks_hold_the_idle_time_of_lines(seed: int, exact: bool) -> None:
    trace = random_trace(seed, exact, complete=True)
    idle = {line.line: line.idle_ns for line in analyze(trace, whole=True).tables["lines"].rows}
    document = json.loads(b"".join(speedscope(collect(trace))))
    names = [(frame["name"], frame["file"], frame["line"]) for frame in document["shared"]["frames"]]
    assert names == [frame[:3] for frame in FRAME_ROWS]
    first, host = document["profiles"]
    assert first["unit"] == "nanoseconds" and first["endValue"] == sum(first["weights"]) == sum(idle.values())
    assert own_lines(dict(zip(map(tuple, first["samples"]), first["weights"], strict=True))) == idle
    written = {f"{name} ({file}:{line})": row for row, (name, file, line) in enumerate(names)}
    for profile, collapsed in ((first, collapsed_idle), (host, collapsed_host)):
        stacks = {
            tuple(written[name] for name in names): weight
            for names, weight in stack_lines(b"".join(collapsed(collect(trace)))).items()
        }
        assert stacks == dict(zip(map(tuple, profile["samples"]), profile["weights"], strict=True))


def test_frames_of_collapsed_stacks_are_separate() -> None:
    trace = random_trace(0, exact=True)
    rows = [(f"a;b\n{name} 7", file, line, library) for name, file, line, library in FRAME_ROWS]
    frames = pl.DataFrame(rows, schema=dict(FRAMES), orient="row")
    hostile: Trace = replace(trace, evidence=replace(trace.evidence, frames=frames))
    plain = stack_lines(b"".join(collapsed_idle(collect(trace))))
    assert sorted(map(len, stack_lines(b"".join(collapsed_idle(collect(hostile)))))) == sorted(map(len, plain))


def test_native_stacks_have_idle_time() -> None:
    contents = collect(open_trace(shared(PUBLIC[4])))
    lines = analyze(contents.trace, whole=True).tables["lines"].rows
    document = json.loads(b"".join(speedscope(contents)))
    assert [profile["name"] for profile in document["profiles"]] == ["GPU idle time by stack"]
    assert document["profiles"][0]["endValue"] == sum(line.idle_ns for line in lines) > 0
    with pytest.raises(RequestError, match="no Python stacks"):
        list(collapsed_host(contents))


def test_capture_without_stacks() -> None:
    path: Path = sample("serial.sqlite")
    for pieces in (speedscope, collapsed_idle):
        with pytest.raises(RequestError, match=r"serial\.sqlite: the capture has no stacks .* traceview record"):
            list(pieces(collect(open_trace(path))))
