"""What kind of program a capture shows; rules choose their advice by it (docs/definitions.md "Program kinds")."""

from __future__ import annotations

from dataclasses import dataclass

ARRAYS = ("cupy", "numba", "warp", "taichi", "pycuda")  # libraries of Python whose programs write kernels and arrays
KINDS = (
    *("pytorch", "jax", "tensorflow", "tensorrt", "onnx", "triton"),
    *ARRAYS,
    *("julia", "rust", "physx", "openacc", "openmp", "mpi", "cuda"),
)

PROGRAM_NAMES = {
    "pytorch": "PyTorch",
    "jax": "JAX",
    "tensorrt": "TensorRT",
    "onnx": "ONNX Runtime",
    "tensorflow": "TensorFlow",
    "triton": "Triton",
    "cupy": "CuPy",
    "numba": "Numba",
    "warp": "Warp",
    "taichi": "Taichi",
    "pycuda": "PyCUDA",
    "rust": "Rust",
    "physx": "PhysX",
    "julia": "Julia",
    "openacc": "OpenACC",
    "openmp": "OpenMP",
    "mpi": "MPI",
    "cuda": "CUDA",
}


@dataclass(frozen=True, slots=True)
class Program:
    """The kind of a program.

    Attributes:
        kind: One of KINDS; "cuda" without evidence of another.
        frameworks: Everything there is evidence of, the kind first; more names than KINDS ("kokkos", "raja").
        training: Whether the program trains a model; None if that is unknown or it has no model.
        python: Whether Python runs the program.
        evidence: One line for each framework and for training. It contains no name, path or text of the program.
    """

    kind: str = "cuda"
    frameworks: tuple[str, ...] = ()
    training: bool | None = None
    python: bool = False
    evidence: tuple[str, ...] = ()


PLAIN_CUDA = Program()


def program_words(program: Program) -> str:
    """Return the kind of a program: "PyTorch training"."""
    words = PROGRAM_NAMES.get(program.kind, program.kind)
    return words if program.training is None else f"{words} {'training' if program.training else 'inference'}"
