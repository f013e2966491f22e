"""Measures what nsys adds to each kind of CUDA call on this machine: the microbenchmark with and without it."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from traceview.captures.record import TRACED, WITHOUT_CPU
from traceview.errors import ReportError
from traceview.read.calibration import FORMAT, VERSION
from traceview.read.nsys_rep import required_nsys, version_of_nsys
from traceview.workers import python_command

# The argument is the folder of the package: where it is not installed, the new Python does not find it by itself.
MICROBENCHMARK = (
    "import runpy; sys.path.append(sys.argv.pop(1)); runpy.run_module('traceview.captures.microbenchmark', "
    "run_name='__main__', alter_sys=True)"
)
TIMEOUT = 300  # seconds that one run may take
# What nsys adds to calls on the reference machine, in ns: means of three calibrations of an H200 host that did nothing
# else, whose scales are 0.98, 1.00 and 1.02. These calls take little time of their own, so that the difference of two
# runs is precise; that of launch calls varies by an eighth.
REFERENCE: Mapping[str, int] = {
    "nvtxRangePush, nvtxRangePop": 724,
    "event query": 240,
    "event wait": 256,
    "sync stream": 255,
    "sync event": 256,
    "cuGraphLaunch": 2_350,
    "cuKernelGetAttribute": 178,
    "cudaStreamSynchronize": 339,
    "cudaStreamIsCapturing": 260,
}

Run = Mapping[str, Any]


def calibrate(rounds: int, progress: Callable[[str, float], None]) -> dict[str, object]:
    """Return a calibration: what nsys adds to each kind of call here (docs/unprofiled.md "Calibration").

    Raises RequestError without nsys, and ReportError if the benchmark fails, for example without a GPU.
    """
    nsys = required_nsys()
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
        "added_ns": {name: round(ns) for name, ns in _added(plain, traced).items()},
    }


def _run(folder: Path, before: tuple[str, ...]) -> Run:
    """Run the microbenchmark in a folder, after the words of a command, and return its document."""
    output = folder / "times.json"
    output.unlink(missing_ok=True)
    command = [*before, *python_command(MICROBENCHMARK, str(Path(__file__).parents[2]), output.name)]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False
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


def figures(plain: Sequence[Run], traced: Sequence[Run]) -> dict[str, object]:
    """Return the figures of a calibration from runs without and with nsys, which have the same calls.

    `scale_range` has the quartiles of the scales of single rounds.
    """
    scale = _scale(plain, traced)
    rounds = [_scale([before], [after]) for before, after in zip(plain, traced, strict=True)]
    low, _, high = quantiles([scale, *rounds], n=4, method="inclusive")
    alone, under_nsys = (min(run["kernel_spacing"] for run in runs) for runs in (plain, traced))
    return {
        "scale": scale,
        "scale_range": [round(min(scale, low), 3), round(max(scale, high), 3)],
        "kernel_gap_ns": max(under_nsys - alone, 0),
    }


def _scale(plain: Sequence[Run], traced: Sequence[Run]) -> float:
    """Return what nsys adds to the calls of REFERENCE, relative to the reference machine."""
    added = {name: ns for name, ns in _added(plain, traced).items() if name in REFERENCE}
    return round(max(sum(added.values()), 0) / sum(REFERENCE[name] for name in added), 3)


def _added(plain: Sequence[Run], traced: Sequence[Run]) -> dict[str, float]:
    """Return the ns that nsys adds to each call, by its name: the difference of the medians of all batches.

    Cores of a shared host switch between two speeds, 1.5 apart, for seconds: single rounds differ by half.
    """
    calls = zip(_usual_times(plain), _usual_times(traced), strict=True)
    return {name: after - before for (name, before), (_, after) in calls}


def _usual_times(runs: Sequence[Run]) -> Iterator[tuple[str, float]]:
    """Yield each call with the median of its batches, in ns."""
    for same in zip(*(run["calls"] for run in runs), strict=True):
        yield same[0]["name"], median(ns for call in same for ns in call["batches"])


def _processor() -> str | None:
    """Return the model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
