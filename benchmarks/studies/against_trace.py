#!/usr/bin/env python3
"""Compare the trainer's own figures with captures of the same steps.

    python benchmarks/studies/against_trace.py RUN.sqlite ...

Each needs RUN.jsonl beside it, from `--jsonl RUN.jsonl --monitor-every 10 --steps 30 --capture 20:30`. Prints the share
of copies hidden by compute, their duration, each perf/* time and the time in the trace, and the blocking calls of the
captured steps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from traceview import Analysis, analyze

PHASES = ("forward", "backward", "optimizer")


def captured(path: Path) -> dict[str, Any]:
    """Return the trainer's record of the captured steps."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return next(record for record in records if record["step"] >= 20 and "perf/step_ms" in record)


def report(path: Path) -> str:
    """Return the lines for a capture."""
    analysis, record = analyze(path), captured(path.with_suffix(".jsonl"))
    device, steps = analysis.devices[0], len(analysis.iterations.per_iteration)  # type: ignore[union-attr]
    copies = [record for record in device.copies if record.kind == "h2d"]
    busy = sum(record.busy_ns for record in copies)
    hidden = sum(record.overlapped_ns for record in copies) / busy if busy else 0.0
    beside = busy / device.compute_ns
    lines = [f"{path.stem}: {hidden:.1%} of the h2d copies hidden, {beside:.0%} as long as the compute"]
    lines.append(_pair("copy", record["perf/copy_ms"], busy / steps))
    lines.append(_pair("step", record["perf/step_ms"], device.window.length / steps))
    lines += [_pair(name, record[f"perf/{name}_ms"], span / steps) for name, span in _spans(analysis).items()]
    calls = ", ".join(f"{record.count} {record.api}" for record in analysis.host.sync.calls)
    lines.append(f"  blocking calls in {steps} steps: {calls}; implicit: {analysis.host.implicit_sync.count}")
    return "\n".join(line for line in lines if line)


def _spans(analysis: Analysis) -> dict[str, int]:
    """Return the GPU spans of the ranges of each phase, in ns."""
    assert isinstance(analysis.nvtx, tuple)
    return {record.name: record.gpu_span_each_ns for record in analysis.nvtx if record.name in PHASES}


def _pair(name: str, own: float | None, trace_ns: float) -> str:
    if own is None or not trace_ns:
        return ""
    trace = trace_ns / 1e6
    return f"  {name:10} perf {own:8.3f} ms   trace {trace:8.3f} ms   {own / trace - 1:+.1%}"


if __name__ == "__main__":
    for path in sys.argv[1:]:
        print(report(Path(path)))
