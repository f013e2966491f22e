"""What kind of program a capture shows, and how to capture missing data of it with each profiler.

Rules choose their advice by the kind (docs/definitions.md "Program kinds").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

ARRAYS = ("cupy", "numba", "warp", "taichi", "pycuda")  # libraries of Python whose programs write kernels and arrays
PROGRAM_NAMES = {  # by kind, in the order in which evidence decides
    "pytorch": "PyTorch",
    "jax": "JAX",
    "tensorflow": "TensorFlow",
    "tensorrt": "TensorRT",
    "onnx": "ONNX Runtime",
    "triton": "Triton",
    "cupy": "CuPy",
    "numba": "Numba",
    "warp": "Warp",
    "taichi": "Taichi",
    "pycuda": "PyCUDA",
    "julia": "Julia",
    "rust": "Rust",
    "physx": "PhysX",
    "openacc": "OpenACC",
    "openmp": "OpenMP",
    "mpi": "CUDA",  # it calls MPI, which program_words adds
    "cuda": "CUDA",
}
KINDS = tuple(PROGRAM_NAMES)
MODELS = ("pytorch", "jax", "tensorflow", "tensorrt", "onnx", "triton")  # frameworks of machine learning


@dataclass(frozen=True, slots=True)
class Program:
    """The kind of a program.

    Attributes:
        kind: One of KINDS; "cuda" without evidence of another.
        frameworks: Everything there is evidence of, the kind first; more names than KINDS ("dali", "kokkos", "raja").
        training: Whether the program trains a model; None if that is unknown or it has no model.
        python: Whether Python runs the program.
        communicates: Whether several GPUs or ranks exchange data; None if that is unknown.
        attention: Whether a kernel or range is named after attention; None if that is unknown.
        evidence: One line for each framework and for training. It contains no name, path or text of the program.
    """

    kind: str = "cuda"
    frameworks: tuple[str, ...] = ()
    training: bool | None = None
    python: bool = False
    evidence: tuple[str, ...] = ()
    communicates: bool | None = None
    attention: bool | None = None

    @property
    def has_model(self) -> bool:
        """Whether the program runs a model of machine learning, by its framework."""
        return self.kind in MODELS

    @property
    def cupy(self) -> bool:
        """Whether CuPy fits the program: it uses CuPy, or Python without a library of arrays that is known."""
        return self.kind not in ARRAYS or "cupy" in self.frameworks


PLAIN_CUDA = Program()


def program_words(program: Program) -> str:
    """Return the kind of a program: "PyTorch training", "OpenACC with MPI"."""
    words = PROGRAM_NAMES.get(program.kind, program.kind)
    words += "" if program.training is None else " training" if program.training else " inference"
    return f"{words} with MPI" if "mpi" in program.frameworks else words


@dataclass(frozen=True, slots=True)
class CaptureAdvice:
    """Texts on how to capture what is missing.

    Attributes:
        gpu: How to capture GPU work, in one line.
        calls: How to capture CUDA API calls.
        ranges: How to capture ranges.
        no_ranges, no_iterations: Why figures are missing without them, and how to get them. `{push}` stands for the
            calls that open and close a range.
    """

    gpu: str
    calls: str
    ranges: str
    no_ranges: str
    no_iterations: str


NSYS = CaptureAdvice(
    gpu="nsys profile -t cuda,nvtx COMMAND",
    calls="Trace the CUDA API: `-t cuda` records its calls unless the export filters them out.",
    ranges="Annotate each step and its phases, and trace NVTX: `-t cuda,nvtx`.",
    no_ranges="no NVTX ranges in the capture, so phases are unknown: put {push} around each step and capture with "
    "-t cuda,nvtx",
    no_iterations="iterations are unknown: no repeating NVTX range launches the GPU work, and the launches have no "
    "clear period; put a range around each step ({push}), or name it with --iteration",
)
TORCH = CaptureAdvice(
    gpu="torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    calls="Profile the host as well: add ProfilerActivity.CPU to ProfilerActivity.CUDA.",
    ranges="Put `record_function` around each step and its phases, or call `prof.step()` after each step.",
    no_ranges="no record_function ranges in the trace, so phases are unknown: put torch.profiler.record_function "
    "around each step, or call prof.step() after each step",
    no_iterations="iterations are unknown: no repeating range launches the GPU work, and the launches have no clear "
    "period; call prof.step() after each step, three times or more while the profiler records, or "
    "name the range with --iteration",
)
PROFILERS: Mapping[str, CaptureAdvice] = {"nsys": NSYS, "torch.profiler": TORCH}
# nsys 2022.4 to 2024.2 do not record ranges of the Python package nvtx 0.2.12 and later.
PYTHON_RANGES = "nvtx.annotate (of the package nvtx 0.2.11)"
RANGE_CALLS: Mapping[str, str] = {
    "pytorch": "torch.cuda.nvtx.range_push/range_pop (or instrument.annotate)",
    "triton": "torch.cuda.nvtx.range_push/range_pop",
    "julia": "NVTX.@range",
}


def capture_advice(profiler: str, program: Program = PLAIN_CUDA) -> CaptureAdvice:
    """Return the texts for a profiler and a kind of program; those for nsys if the profiler is unknown."""
    advice = PROFILERS.get(profiler, NSYS)
    calls = RANGE_CALLS.get(program.kind, PYTHON_RANGES if program.python else "nvtxRangePushA/nvtxRangePop")
    return replace(
        advice,
        no_ranges=advice.no_ranges.replace("{push}", calls),
        no_iterations=advice.no_iterations.replace("{push}", calls),
    )
