"""Measures what nsys adds to each kind of CUDA call on this machine: the microbenchmark with and without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from traceview.errors import ReportError, RequestError
from traceview.read.calibration import FORMAT, VERSION
from traceview.read.nsys_rep import installed_nsys, version_of_nsys
from traceview.record import TRACED, WITHOUT_CPU

MICROBENCHMARK = (sys.executable, "-m", "traceview.record.microbenchmark")
TIMEOUT = 300  # seconds that one run may take
# What nsys adds to the benchmark's launch calls, in ns: medians of three runs on the host that set the constants of
# traceview.model.unprofiled.
REFERENCE: Mapping[str, int] = {"cuLaunchKernel": 1_100, "cuLaunchKernelEx": 1_015, "cudaLaunchKernel": 1_892}

Run = Mapping[str, Any]


def calibrate(rounds: int, progress: Callable[[str, float], None]) -> dict[str, object]:
    """Return a calibration: what nsys adds to each kind of call here (docs/unprofiled.md "Calibration").

    Raises RequestError without nsys, and ReportError if the benchmark fails, for example without a GPU.
    """
    nsys = installed_nsys()
    if nsys is None:
        raise RequestError("nsys is not on PATH; install Nsight Systems, or name the program with --nsys")
    version = version_of_nsys(nsys)
    plain, traced = [], []
    with tempfile.TemporaryDirectory(prefix="traceview-") as name:
        folder = Path(name)
        under_nsys = (nsys, "profile", f"--trace={TRACED}", *WITHOUT_CPU, "--force-overwrite=true", "--output=run")
        for turn in range(rounds):
            progress("without nsys", turn / rounds)
            plain.append(_run(folder, ()))
            progress("with nsys", (turn + 0.5) / rounds)
            traced.append(_run(folder, under_nsys))
    return {
        "format": FORMAT,
        "version": VERSION,
        "gpu": plain[0]["gpu"],
        "cpu": _processor(),
        "cuda": plain[0]["cuda"],
        "nsys": ".".join(map(str, version)) if version else None,
        **figures(plain, traced),
        "added_ns": {call["name"]: round(after - before) for call, before, after in _hot_times(plain, traced)},
    }


def _run(folder: Path, before: tuple[str, ...]) -> Run:
    """Run the microbenchmark in a folder, after the words of a command, and return its document."""
    output = folder / "times.json"
    output.unlink(missing_ok=True)
    source = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [*before, *MICROBENCHMARK, output.name]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": source},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
        document: Run = json.loads(output.read_text(encoding="utf-8"))
    except subprocess.TimeoutExpired:
        raise ReportError(f"the calibration takes longer than {TIMEOUT} s; is the GPU busy?") from None
    except (OSError, ValueError):
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no output"]
        where = "under nsys" if before else "on this machine"
        raise ReportError(
            f"no CUDA calls can be timed {where}: {lines[-1][:200]}; `traceview doctor` looks for the reason"
        ) from None
    return document


def figures(plain: Sequence[Run], traced: Sequence[Run]) -> dict[str, float]:
    """Return the figures of a calibration from runs without and with nsys, which have the same calls."""
    launches = [
        (REFERENCE[call["name"]], after - before)
        for call, before, after in _hot_times(plain, traced)
        if call["name"] in REFERENCE
    ]
    usual, added = (sum(values) for values in zip(*launches, strict=True))
    before, after = (median(run["kernel_spacing"] for run in runs) for runs in (plain, traced))
    return {
        "scale": round(max(added, 0) / usual, 3),
        "kernel_gap_ns": max(after - before, 0),
    }


def _hot_times(plain: Sequence[Run], traced: Sequence[Run]) -> Iterator[tuple[Run, float, float]]:
    """Yield each call with its median time in a tight loop, without and with nsys."""
    for index, call in enumerate(plain[0]["calls"]):
        before, after = (median(run["calls"][index]["hot"] for run in runs) for runs in (plain, traced))
        yield call, before, after


def _processor() -> str | None:
    """Return the model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
