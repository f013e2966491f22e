"""How to capture what a capture lacks, in the words of the profiler that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capturing:
    """Advice: `gpu` captures GPU work, in one line, `code` in a program; `annotate` is code that names the steps.

    `no_ranges` and `no_iterations` say what cannot be measured without them.
    """

    gpu: str
    calls: str
    ranges: str
    no_ranges: str
    no_iterations: str
    annotate: str
    code: str


NSYS = Capturing(
    gpu="nsys profile -t cuda,nvtx COMMAND",
    calls="Trace CUDA on the host too: `-t cuda` records API calls unless they were filtered out of the export.",
    ranges="Annotate each step and its phases, and trace NVTX: `-t cuda,nvtx`.",
    no_ranges="no NVTX ranges in the capture, so nothing can be told apart by phase or iteration: put "
    "torch.cuda.nvtx.range_push/range_pop (or instrument.annotate) around each step and capture with "
    "-t cuda,nvtx; the nvtx package from 0.2.12 on is not recorded by nsys 2022.4 to 2024.2",
    no_iterations="no NVTX range repeats three times on a thread, so no iteration was found: put a range around each "
    "step (torch.cuda.nvtx.range_push('iteration')), or name it with --iteration",
    annotate="""for step, batch in enumerate(loader):
    with torch.cuda.nvtx.range(f"iteration {step}"):
        train_step(batch)""",
    code="nsys profile -t cuda,nvtx -o report python train.py",
)
TORCH = Capturing(
    gpu="torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    calls="Profile the host too: ProfilerActivity.CPU beside ProfilerActivity.CUDA.",
    ranges="Put `record_function` around each step and its phases, or call `prof.step()` after each.",
    no_ranges="no record_function ranges in the trace, so nothing can be told apart by phase or iteration: put "
    "torch.profiler.record_function around each step, or call prof.step() after each",
    no_iterations="no range repeats three times on a thread, so no iteration was found: call prof.step() after each "
    "step, three times or more while the profiler records, or name the range with --iteration",
    annotate="""for step, batch in enumerate(loader):
    with torch.profiler.record_function(f"iteration {step}"):
        train_step(batch)""",
    code="with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:\n    train(10)\n"
    'prof.export_chrome_trace("trace.json.gz")',
)
PROFILERS: Mapping[str, Capturing] = {"nsys": NSYS, "torch.profiler": TORCH}


def capturing(profiler: str) -> Capturing:
    """Return how a profiler captures."""
    return PROFILERS.get(profiler, NSYS)
