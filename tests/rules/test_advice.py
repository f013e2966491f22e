"""Advice and code fit the kind of program: no word of another kind, for every fix and in whole analyses."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.captures import ALL, SAMPLES, analyzed, sample, shared
from tests.rules.helpers import in_a_part
from traceview.errors import NoGpuWorkError
from traceview.model.analysis import Analysis
from traceview.model.profilers import capture_advice
from traceview.model.program import KINDS, PLAIN_CUDA, Program
from traceview.pricing.fixes import Fix, Fixes
from traceview.rules import advice
from traceview.slices.findings import find

# Every kind of program that advice differs for, by a name.
PROGRAMS = {
    **{kind: Program(kind, (kind,)) for kind in ("cuda", "julia", "openacc", "openmp", "mpi", "tensorrt")},
    "training": Program("pytorch", ("pytorch",), training=True, python=True),
    "unknown training": Program("pytorch", ("pytorch",), training=None, python=True),
    "inference": Program("pytorch", ("pytorch",), training=False, python=True),
    "jax": Program("jax", ("jax",), python=True),
    "triton": Program("triton", ("triton",), python=True),
    "onnx": Program("onnx", ("onnx",), training=False, python=True),
    "tensorrt in Python": Program("tensorrt", ("tensorrt",), training=False, python=True),
    "Python": Program("cuda", ("cupy",), python=True),
}
# Words, and the programs above that may read them.
TRAINS = {"training", "unknown training"}
PYTORCH = TRAINS | {"inference", "triton"}
PYTHON = PYTORCH | {"jax", "onnx", "tensorrt in Python", "Python"}
WORDS = {
    r"torch|autograd|non_blocking|\.item\(|pin_memory\b|record_stream": PYTORCH,
    r"DataLoader|num_workers|DDP|DistributedData|optimizer|backward|gradient|zero_grad|drop_last|loss\b": TRAINS,
    r"\bjax\b|\bXLA\b|\bjit\b|device_put|donate_argnums": {"jax"},
    r"cupy|CuPy|Numba": {"Python"},
    r"onnx|ONNX|io_?binding": {"onnx"},
    r"trtexec|enqueueV3|execution context|the engine\b": {"tensorrt", "tensorrt in Python"},
    r"\bacc\b|OpenACC|`async`|firstprivate\(dt\)`": {"openacc"},
    r"\bomp\b|omp_|OpenMP|nowait|taskwait": {"openmp"},
    r"CUDA\.@|CUDA\.pin|Julia|allowscalar|Threads\.@": {"julia"},
    r"Python|NumPy|\bgc\.|py-spy|import ": PYTHON,
    r"[^-]python |train\.py": set(),
}
CITING = ("lost_ranges", "dominant_kernel")  # notes that cite names of the program or of packages
ALLOWED = {"openmp": ("firstprivate",), "julia": ("gc.",)}  # words of two kinds
C_CODE = re.compile(r"<<<|;$|&\w+", re.MULTILINE)


def all_fixes() -> dict[str, Fixes]:
    modules = [
        importlib.import_module(f"{advice.__name__}.{item.name}") for item in pkgutil.iter_modules(advice.__path__)
    ]
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, Fixes)
    }


FIXES = all_fixes()


def foreign_words(text: str, program: str) -> list[str]:
    """Return the words of other kinds; names of threads that a text cites do not count."""
    text = re.sub(r"thread pt_\w+", "thread", text)
    return [
        match[0]
        for words, readers in WORDS.items()
        if program not in readers
        for match in re.finditer(words, text)
        if not any(match[0].strip("`(").startswith(allowed) for allowed in ALLOWED.get(program, ()))
    ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_fixes_hold_no_word_of_another_kind(program: str) -> None:
    fixes = {name: fix.choose(PROGRAMS[program]) for name, fix in FIXES.items()}
    texts = {name: f"{fix.advice}\n{fix.code}" for name, fix in fixes.items()}
    assert {name: words for name, text in texts.items() if (words := foreign_words(text, program))} == {}
    assert all("MPI" in fix.advice for name, fix in fixes.items() if name.endswith("MPI_WAIT"))  # for a range of MPI
    python = {name: fix.code for name, fix in fixes.items() if program in PYTHON and not fix.is_command}
    without_comments = {name: re.sub(r"#.*", "", code).replace("; ", "\n") for name, code in python.items()}
    assert {name: code for name, code in without_comments.items() if C_CODE.search(code)} == {}


def test_every_word_occurs_in_the_fixes() -> None:
    every = [fix for fixes in FIXES.values() for fix in texts_of(fixes)]
    texts = "\n".join(f"{fix.advice}\n{fix.code}" for fix in every)
    unused = [words for words, readers in WORDS.items() if readers and not re.search(words, texts)]
    assert len(FIXES) >= 20 and unused == []


def test_remedies_are_one_short_line() -> None:
    remedies = {
        text for fixes in all_fixes().values() for text in (fixes.remedy, *(fix.remedy for fix in texts_of(fixes)))
    }
    assert len(remedies) > 8
    assert all(text.endswith(".") and len(text) <= 70 for text in remedies - {""})


def texts_of(fixes: Fixes) -> Iterator[Fix]:
    yield from (fix for name in Fixes.__slots__ if isinstance(fix := getattr(fixes, name), Fix))


CAPTURES = [
    *ALL,  # the samples outside folders have the same events
    *(
        str(path.relative_to(SAMPLES))
        for path in sorted(SAMPLES.rglob("*/*.sqlite*"))
        if "ranks" not in path.parts or "rank0" in path.name
    ),
]


def findings_by_program(name: str) -> Iterator[tuple[str, Analysis]]:
    """Yield a third of the programs, by turns, and the analysis of a capture as if it were of this program."""
    measured = analyzed(shared(name) if name in ALL else sample(name))
    for program in list(PROGRAMS)[CAPTURES.index(name) % 3 :: 3]:
        of_program = replace(measured, trace=replace(measured.trace, program=PROGRAMS[program]), notes=())
        parts, steady = in_a_part(of_program)
        findings, notes = find(of_program, steady, parts)
        yield program, replace(of_program, findings=findings, notes=notes)


@pytest.mark.parametrize("name", CAPTURES)
def test_analyses_hold_no_word_of_another_kind(name: str) -> None:
    try:
        for program, analysis in findings_by_program(name):
            for finding in analysis.findings:
                assert foreign_words(f"{finding.advice}\n{finding.code}", program) == [], (program, finding.id)
            for note in analysis.notes:
                if note.id not in CITING:
                    assert foreign_words(note.text, program) == [], (program, note.id)
    except NoGpuWorkError:
        pytest.skip(f"{name} holds no GPU work")


@pytest.mark.parametrize("name", ["h200_serial.sqlite", "h200_quad.sqlite", "h200_ddp2.sqlite"])
def test_kind_changes_only_texts(name: str) -> None:
    rows = [
        # Some changes to the compute exist in PyTorch alone.
        [(item.id, item.cost_ns, item.device) for item in analysis.findings if item.claims == "waiting"]
        for _, analysis in findings_by_program(name)
    ]
    assert rows[0] and all(row == rows[0] for row in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_advice_on_launches(kind: str) -> None:
    own = FIXES["launches.LAUNCH_BOUND"].choose(replace(PLAIN_CUDA, kind=kind)).advice
    general = FIXES["launches.LAUNCH_BOUND"].cuda.advice
    assert (own == general) == (kind in ("cuda", "mpi"))


def test_code_is_in_the_language_of_the_program() -> None:
    launches = FIXES["launches.LAUNCH_BOUND"]
    in_cpp = launches.choose(Program("pytorch", ("pytorch",), training=False, python=False))
    in_julia = launches.choose(PROGRAMS["julia"])
    assert "CUDA graph" in in_cpp.advice and in_cpp.code == ""
    assert in_julia.code.startswith("@. y = ") and FIXES["copies.MANAGED"].choose(PROGRAMS["julia"]).code == ""
    assert FIXES["host.SLOW_CALLS"].choose(PROGRAMS["julia"]).code == "CUDA_MODULE_LOADING=EAGER COMMAND"


def test_how_to_capture_fits_the_language() -> None:
    texts = {program: capture_advice("nsys", known).no_ranges for program, known in PROGRAMS.items()}
    assert "torch.cuda.nvtx" in texts["inference"] and "nvtxRangePushA" in texts["openacc"]
    assert "NVTX.@range" in texts["julia"] and "nvtx.annotate" in texts["Python"]
    assert all("{push}" not in text for text in texts.values())
