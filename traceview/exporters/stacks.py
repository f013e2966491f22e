"""Time by stack for flame graph viewers: speedscope's JSON, and collapsed stacks.

A speedscope file has the frames, and for each profile stacks (indices of frames, the outermost first) with their
weights (https://github.com/jlfwong/speedscope/blob/main/src/lib/file-format-spec.ts). Collapsed stacks have a line for
each stack: its frames from the outermost in with `;` between them, then its weight. All weights are ns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import polars as pl

from traceview.errors import RequestError
from traceview.exporters.contents import ExportContents
from traceview.measure.host import HostIdle
from traceview.model.rows import place_text
from traceview.model.units import plain

SCHEMA = "https://www.speedscope.app/file-format-schema.json"
IDLE, THREAD = "idle_ns", "thread_ns"
TITLES = {IDLE: "GPU idle time by stack", THREAD: "host time by stack"}
MAX_NAME = 300
RECORD = "record the program with traceview record, or with torch.profiler's with_stack=True"


def speedscope(contents: ExportContents) -> Iterator[bytes]:
    """Yield a speedscope file with a profile for the idle time and one for the host time, in pieces."""
    times = _times(contents)
    frames = [
        {"name": plain(function, MAX_NAME)} | ({"file": file} if file else {}) | ({"line": line} if line else {})
        for function, file, line, _ in contents.trace.evidence.frames.iter_rows()
    ]
    head = {"$schema": SCHEMA, "exporter": "traceview", "name": plain(contents.trace.info.file, MAX_NAME)}
    yield _json(head | {"shared": {"frames": frames}})[:-1] + b',"profiles":['
    for place, figure in enumerate(figure for figure in TITLES if times[figure].sum()):
        some = times.filter(pl.col(figure) > 0)
        total = int(some[figure].sum())
        unit = {"name": TITLES[figure], "unit": "nanoseconds", "startValue": 0, "endValue": total}
        profile = {"type": "sampled", **unit, "weights": some[figure].to_list()}
        yield (b"," if place else b"") + _json(profile)[:-1] + b',"samples":['
        for row, stack in enumerate(_stacks(contents, some["stack"].to_list())):
            yield (b"," if row else b"") + _json(stack)
        yield b"]}"
    yield b"]}\n"


def collapsed_idle(contents: ExportContents) -> Iterator[bytes]:
    """Yield the idle time of GPUs as collapsed stacks."""
    return _collapsed_stacks(contents, IDLE)


def collapsed_host(contents: ExportContents) -> Iterator[bytes]:
    """Yield the time of Python threads as collapsed stacks."""
    return _collapsed_stacks(contents, THREAD)


def _collapsed_stacks(contents: ExportContents, figure: str) -> Iterator[bytes]:
    some = _times(contents, figure).filter(pl.col(figure) > 0)
    frames = [
        plain(f"{function} ({place})" if (place := place_text(file, line)) else function, MAX_NAME).replace(";", ":")
        for function, file, line, _ in contents.trace.evidence.frames.iter_rows()
    ]
    for stack, ns in zip(_stacks(contents, some["stack"].to_list()), some[figure].to_list(), strict=True):
        yield f"{';'.join(frames[frame] for frame in stack)} {ns}\n".encode("utf-8", "replace")


def _times(contents: ExportContents, *needed: str) -> pl.DataFrame:
    """Return the time of each stack (StackTimes.frame). Raises RequestError if no stack has the figures `needed`."""
    host_idle = HostIdle.build(contents.trace, contents.host)
    devices = contents.activities
    gaps, windows = [contents.gaps(device).frame for device in devices], [device.window for device in devices]
    times = None if host_idle is None else host_idle.stack_times(host_idle.line_sums(gaps), windows).frame
    if times is None or not all(times[figure].sum() for figure in needed or (IDLE,)):
        wanted = "Python stacks" if THREAD in needed else "stacks in idle time of a GPU"
        raise RequestError(f"{contents.trace.info.file}: the capture has no {wanted}; {RECORD}")
    return times


def _stacks(contents: ExportContents, nodes: list[int]) -> Iterator[list[int]]:
    """Yield the frames (rows of HostEvidence.frames) of each stack, the outermost first."""
    parent, frame = (contents.trace.evidence.stacks[name].to_list() for name in ("parent", "frame"))
    for node in nodes:
        stack = []
        while node >= 0:
            stack.append(frame[node])
            node = parent[node]
        yield stack[::-1]


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
