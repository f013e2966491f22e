"""Time each step of an analysis, once and in one process, in the order of the command line.

python benchmarks/stages.py REPORT.sqlite
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path


class Clock:
    """Prints wall time, processor time and the resident memory after each step."""

    def __init__(self) -> None:
        self.wall, self.processor = time.perf_counter(), time.process_time()

    def lap(self, step: str) -> None:
        """Print a step and begin the next."""
        wall, processor = time.perf_counter(), time.process_time()
        held = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
        print(
            f"  {step:24}{wall - self.wall:8.2f} s{processor - self.processor:8.2f} s of processor"
            f"{int(held.split()[1]) / 1000:8.0f} MB after it"
        )
        self.wall, self.processor = time.perf_counter(), time.process_time()


def main() -> None:
    """Run the steps of the command one by one."""
    clock = Clock()
    import_module("polars")
    clock.lap("import polars, NumPy")
    import_module("traceview.cli")
    import_module("traceview.cli.analyze")
    pipeline = import_module("traceview.pipeline")
    page = import_module("traceview.report.analysis.page").render
    to_json = import_module("traceview.report.analysis").to_json
    page_inputs = import_module("traceview.engine.page").page_inputs
    read_capture = import_module("traceview.read").read_capture
    normalise = import_module("traceview.normalise").normalise
    clock.lap("import traceview")
    tables = [read_capture(sys.argv[1])]
    clock.lap("read")
    trace = normalise(tables.pop())
    clock.lap("normalise")
    capture = pipeline.analyze_trace(trace)
    clock.lap("measure, find, predict")
    to_json(capture.analysis)
    clock.lap("to JSON")
    page(page_inputs(capture))
    clock.lap("to page")


if __name__ == "__main__":
    main()
