"""Fixes by the kind of program: one for CUDA, and others for kinds that need a different change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from traceview.model.program import Program

IN_PYTHON = frozenset({"pytorch", "inference", "jax", "onnx", "arrays", "python"})  # fixes with code in Python
JULIA = "julia"


@dataclass(frozen=True, slots=True)
class Fix:
    """Advice, and code that shows it. `is_command` marks code for a shell, which fits a program in any language.

    `remedy` is the advice in one line, if it differs from that of the finding's kind.
    """

    advice: str
    code: str = ""
    is_command: bool = False
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixes:
    """The fixes of a finding by the kind of program; `cuda` serves every kind without one.

    `inference` is for PyTorch without training, `python` for every program in Python, and `arrays` for those in Python
    without one of these frameworks: CuPy, Numba. `remedy` is that of every fix without its own.
    """

    cuda: Fix
    pytorch: Fix | None = None
    inference: Fix | None = None
    jax: Fix | None = None
    tensorrt: Fix | None = None
    onnx: Fix | None = None
    julia: Fix | None = None
    openacc: Fix | None = None
    openmp: Fix | None = None
    arrays: Fix | None = None
    python: Fix | None = None
    remedy: str = ""

    def choose(self, program: Program) -> Fix:
        """Return the fix for a program, without code in a language that is not the program's."""
        name = next(name for name in _names(program) if getattr(self, name) is not None)
        fix: Fix = getattr(self, name)
        if self.remedy and not fix.remedy:
            fix = replace(fix, remedy=self.remedy)
        own = "python" if program.python else JULIA if program.kind == JULIA else "C"
        return fix if fix.is_command or _language(name) == own else replace(fix, code="")


def _names(program: Program) -> Iterator[str]:
    """Yield the names of the fixes that fit a program, the closest first."""
    if program.kind == "triton" or (program.kind == "pytorch" and program.training is False):
        yield from ("inference", "pytorch")  # PyTorch calls the kernels of Triton
    elif program.kind not in ("cuda", "mpi"):
        yield program.kind
    elif program.python:
        yield "arrays"
    if program.python:
        yield "python"
    yield "cuda"


def _language(name: str) -> str:
    return "python" if name in IN_PYTHON else name if name == JULIA else "C"
