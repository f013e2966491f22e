"""How to capture missing data with each profiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CaptureAdvice:
    """Texts on how to capture what is missing.

    Attributes:
        gpu: How to capture GPU work, in one line; `code` shows it in a program or command.
        calls: How to capture CUDA API calls.
        ranges: How to capture ranges; `annotate` is code that names the steps.
        no_ranges, no_iterations: Why figures are missing without them, and how to get them.
    """

    gpu: str
    calls: str
    ranges: str
    no_ranges: str
    no_iterations: str
    annotate: str
    code: str


NSYS = CaptureAdvice(
    gpu="nsys profile -t cuda,nvtx COMMAND",
    calls="Trace the CUDA API: `-t cuda` records its calls unless the export filters them out.",
    ranges="Annotate each step and its phases, and trace NVTX: `-t cuda,nvtx`.",
    no_ranges="no NVTX ranges in the capture, so phases and iterations are unknown: put "
    "torch.cuda.nvtx.range_push/range_pop (or instrument.annotate) around each step and capture with "
    "-t cuda,nvtx; nsys 2022.4 to 2024.2 do not record ranges of the nvtx package 0.2.12 and later",
    no_iterations="no NVTX range repeats three times on a thread, so iterations are unknown: put a range around each "
    "step (torch.cuda.nvtx.range_push('iteration')), or name it with --iteration",
    annotate="""for step, batch in enumerate(loader):
    with torch.cuda.nvtx.range(f"iteration {step}"):
        train_step(batch)""",
    code="nsys profile -t cuda,nvtx -o report python train.py",
)
TORCH = CaptureAdvice(
    gpu="torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    calls="Profile the host as well: add ProfilerActivity.CPU to ProfilerActivity.CUDA.",
    ranges="Put `record_function` around each step and its phases, or call `prof.step()` after each step.",
    no_ranges="no record_function ranges in the trace, so phases and iterations are unknown: put "
    "torch.profiler.record_function around each step, or call prof.step() after each step",
    no_iterations="no range repeats three times on a thread, so iterations are unknown: call prof.step() after each "
    "step, three times or more while the profiler records, or name the range with --iteration",
    annotate="""for step, batch in enumerate(loader):
    with torch.profiler.record_function(f"iteration {step}"):
        train_step(batch)""",
    code="with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:\n    train(10)\n"
    'prof.export_chrome_trace("trace.json.gz")',
)
PROFILERS: Mapping[str, CaptureAdvice] = {"nsys": NSYS, "torch.profiler": TORCH}


def capture_advice(profiler: str) -> CaptureAdvice:
    """Return the texts for a profiler; those for nsys if the profiler is unknown."""
    return PROFILERS.get(profiler, NSYS)
