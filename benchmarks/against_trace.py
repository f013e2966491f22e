#!/usr/bin/env python3
"""Hold what the trainer says of itself against captures of the same steps.

    python benchmarks/against_trace.py RUN.sqlite ...

RUN.jsonl has to lie beside each: `--jsonl RUN.jsonl --monitor-every 10 --steps 30 --capture 20:30`.
Prints how much of the copies the compute hides, how long they take beside it, each perf/* time beside the
trace's, and the blocking calls of the captured steps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from traceview import Analysis, analyze

PHASES = ("forward", "backward", "optimizer")


def captured(path: Path) -> dict[str, Any]:
    """Return the trainer's record of the captured steps."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return next(one for one in records if one["step"] >= 20 and "perf/step_ms" in one)


def report(path: Path) -> str:
    """Return the lines about one capture."""
    analysis, record = analyze(path), captured(path.with_suffix(".jsonl"))
    device, steps = analysis.devices[0], len(analysis.iterations.per_iteration)  # type: ignore[union-attr]
    copies = [one for one in device.copies if one.kind == "h2d"]
    busy = sum(one.busy_ns for one in copies)
    hidden = sum(one.overlapped_ns for one in copies) / busy if busy else 0.0
    beside = busy / device.compute_ns
    lines = [f"{path.stem}: {hidden:.1%} of the h2d copies hidden, {beside:.0%} as long as the compute"]
    lines.append(_pair("copy", record["perf/copy_ms"], busy / steps))
    lines.append(_pair("step", record["perf/step_ms"], device.window.length / steps))
    lines += [_pair(name, record[f"perf/{name}_ms"], span / steps) for name, span in _spans(analysis).items()]
    calls = ", ".join(f"{one.count} {one.api}" for one in analysis.host.sync.calls)
    lines.append(f"  blocking calls in {steps} steps: {calls}; implicit: {analysis.host.implicit_sync.count}")
    return "\n".join(line for line in lines if line)


def _spans(analysis: Analysis) -> dict[str, int]:
    """Return the GPU span of each phase, its ranges one by one, in ns."""
    assert isinstance(analysis.nvtx, tuple)
    return {one.name: one.gpu_span_each_ns for one in analysis.nvtx if one.name in PHASES}


def _pair(name: str, own: float | None, trace_ns: float) -> str:
    if own is None or not trace_ns:
        return ""
    trace = trace_ns / 1e6
    return f"  {name:10} perf {own:8.3f} ms   trace {trace:8.3f} ms   {own / trace - 1:+.1%}"


if __name__ == "__main__":
    for given in sys.argv[1:]:
        print(report(Path(given)))
