"""What kind of program a capture shows, and how to capture missing data of it with each profiler.

Rules choose their advice by the kind (docs/definitions.md "Program kinds").
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from traceview.model.catalogue import read_toml
from traceview.model.frozen import dataclass

ADVICE = Path(__file__).with_name("capture_advice.toml")
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
        layers: Whether kernels are named after layers of a model, such as products and norms; None if it has no model.
        nvidia: Whether the tools of NVIDIA fit its GPUs.
        evidence: One line for each framework and for training. It contains no name, path or text of the program.
    """

    kind: str = "cuda"
    frameworks: tuple[str, ...] = ()
    training: bool | None = None
    python: bool = False
    evidence: tuple[str, ...] = ()
    communicates: bool | None = None
    attention: bool | None = None
    layers: bool | None = None
    nvidia: bool = True

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
    """Return the kind of a program: "PyTorch training", "OpenACC with MPI"; inference needs layers of a model."""
    words = PROGRAM_NAMES.get(program.kind, program.kind)
    words += " training" if program.training else " inference" if program.training is False and program.layers else ""
    return f"{words} with MPI" if "mpi" in program.frameworks else words


def capture_advice(profiler: str, program: Program = PLAIN_CUDA) -> dict[str, str]:
    """Return texts on how to capture with a profiler, nsys if it is unknown, by the names in capture_advice.toml.

    `gpu`, `calls` and `ranges` say how to capture GPU work (in one line), CUDA API calls and ranges. `no_ranges` and
    `no_iterations` say why figures are missing without them, and how to get them. `newer` and `less` are words for a
    newer profiler and a cheaper capture, `sample` names programs that take stacks. The rest are texts of findings.
    """
    texts = read_toml(ADVICE)
    calls = texts["range_calls"]
    push = calls.get(program.kind) or calls["python" if program.python else "other"]
    return {name: text.replace("{push}", push) for name, text in texts.get(profiler, texts["nsys"]).items()}


def missing_in_trace(*, ops: bool, stacks: bool, shapes: bool, memory: bool, steps: bool) -> Iterator[str]:
    """Yield a line for each kind of data that a trace of torch.profiler lacks, with the option that records it."""
    present = {"ops": ops, "stacks": stacks, "shapes": shapes, "memory": memory, "steps": steps}
    yield from (text for name, text in read_toml(ADVICE)["torch_options"].items() if not present[name])
