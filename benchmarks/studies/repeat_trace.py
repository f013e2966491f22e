#!/usr/bin/env python3
"""Repeat a torch.profiler trace N times, to measure how reading time and memory grow.

    python benchmarks/studies/repeat_trace.py samples/torch_profiler/serial.json.gz 312 big.json [--without-operators]
    python benchmarks/studies/repeat_trace.py --measure big.json

Each repetition has separate times and correlation ids, so that each kernel keeps its launch.
"""

from __future__ import annotations

import gzip
import json
import re
import resource
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

OPERATORS = ("cpu_op", "ac2g", "fwdbwd")
MARK = re.compile('"@([^"@]*)@"')


def main() -> None:
    """Write the repeated trace, or measure how long a trace takes to read."""
    if sys.argv[1] == "--measure":
        measure(Path(sys.argv[2]))
        return
    source, times, out = Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    repeat(source, times, out, without=OPERATORS if "--without-operators" in sys.argv else ())


def repeat(source: Path, times: int, out: Path, without: tuple[str, ...]) -> None:
    """Write `times` repetitions of all events, except those of the categories `without`."""
    with gzip.open(source, "rt", encoding="utf-8") as file:
        document = json.load(file, parse_float=Decimal)
    events = [event for event in document.pop("traceEvents") if event.get("cat") not in without]
    begins = [int(event["ts"] * 1000) for event in events]
    span = max(begins) - min(begins) + 1_000_000
    highest = 1 + max(event.get("args", {}).get("correlation", 0) for event in events)
    templates = [template(event) for event in events]
    with out.open("w", encoding="utf-8") as file:
        file.write(json.dumps(document, default=float)[:-1] + ', "traceEvents": [\n')
        for round_ in range(times):
            shift, lift = round_ * span, round_ * highest
            texts = (
                text % ({"ts": f"{(begin + shift) // 1000}.{(begin + shift) % 1000:03}", "c": correlation + lift})
                for (text, correlation), begin in zip(templates, begins, strict=True)
            )
            file.write(("" if round_ == 0 else ",\n") + ",\n".join(texts))
        file.write("\n]}\n")


def template(event: dict[str, Any]) -> tuple[str, int]:
    """Return an event's text with placeholders for its time and correlation id, and that id."""
    args = dict(event.get("args", {}))
    correlation = args.get("correlation", 0)
    if "correlation" in args:
        args["correlation"] = "@%(c)d@"
    changed = {name: value for name, value in event.items() if name not in ("ts", "args", "dur")}
    text = json.dumps(changed | {"ts": "@HERE@", "dur": f"@{event.get('dur', 0)}@"}, default=float)
    text += "|" + json.dumps(args, default=float).replace("@%(c)d@", "@HERE2@")
    plain = text.replace("%", "%%").replace("@HERE@", "@%(ts)s@").replace("@HERE2@", "@%(c)d@")
    head, _, tail = plain.rpartition("}|")
    return MARK.sub(r"\1", f'{head}, "args": {tail}}}'), correlation


def measure(path: Path) -> None:
    """Print the time to read and to analyze a trace, and the peak memory."""
    from traceview.pipeline import analyze, open_trace

    begin, processor = time.perf_counter(), time.process_time()
    trace = open_trace(path)
    read, read_cpu = time.perf_counter() - begin, time.process_time() - processor
    analysis = analyze(trace)
    whole = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    kernels = sum(device.kernel_count for device in analysis.devices)
    print(f"{path.stat().st_size / 1e6:.0f} MB, {len(trace.operations):,} GPU operations, {kernels:,} kernels")
    print(f"read {read:.1f} s ({read_cpu:.1f} s of processor), with the analysis {whole:.1f} s, at most {peak} MB")


if __name__ == "__main__":
    main()
