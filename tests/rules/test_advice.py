"""Advice and code fit the kind of program: no word of another kind, in every entry and in whole analyses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.captures import ALL, SAMPLES, analyzed, sample, shared
from traceview.errors import NoGpuWorkError
from traceview.model.analysis import Analysis
from traceview.model.program import KINDS, PLAIN_CUDA, Program, capture_advice
from traceview.pipeline.findings import find
from traceview.pipeline.measure import TraceWork
from traceview.pricing.texts import FOLDER, FindingTexts, is_lacking, read_entry, texts_for
from traceview.pricing.texts import KINDS as TEXT_KINDS
from traceview.replay.changes import CHANGES, GraphChange
from traceview.replay.changes.communication import OVERLAP
from traceview.replay.changes.hiding import PREFETCH_COLLECTIVE, REORDER, SEPARATE_STREAM

# Every kind of program that advice differs for, by a name.
PROGRAMS = {
    **{kind: Program(kind, (kind,)) for kind in ("cuda", "julia", "openacc", "openmp", "mpi", "tensorrt")},
    "training": Program("pytorch", ("pytorch",), training=True, python=True),
    "unknown training": Program("pytorch", ("pytorch",), training=None, python=True),
    "inference": Program("pytorch", ("pytorch",), training=False, python=True),
    "jax": Program("jax", ("jax",), python=True),
    "triton": Program("triton", ("triton",), python=True),
    "tensorflow": Program("tensorflow", ("tensorflow",), python=True),
    "onnx": Program("onnx", ("onnx",), training=False, python=True),
    "tensorrt in Python": Program("tensorrt", ("tensorrt",), training=False, python=True),
    "Python": Program("cuda", ("cupy",), python=True),
}
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != "shared")
# Words, and the programs above that may read them.
TRAINS = {"training", "unknown training"}
PYTORCH = TRAINS | {"inference", "triton"}
PYTHON = PYTORCH | {"jax", "tensorflow", "onnx", "tensorrt in Python", "Python"}
WORDS = {
    r"torch|autograd|non_blocking|\.item\(|pin_memory\b|record_stream": PYTORCH,
    r"DataLoader|num_workers|DDP|DistributedData|optimizer|backward|gradient|zero_grad|drop_last|loss\b": TRAINS,
    r"\bjax\b|\bjit\b|device_put|donate_argnums": {"jax"},
    r"\bXLA\b": {"jax", "tensorflow"},
    r"\btf\.|jit_compile": {"tensorflow"},
    r"cupy|CuPy|Numba": {"Python"},
    r"onnx|ONNX|io_?binding": {"onnx"},
    r"trtexec|enqueueV3|execution context|the engine\b": {"tensorrt", "tensorrt in Python"},
    r"\bacc\b|OpenACC|`async`|firstprivate\(dt\)`": {"openacc"},
    r"\bomp\b|omp_|OpenMP|nowait|taskwait": {"openmp"},
    r"CUDA\.@|CUDA\.pin|Julia|allowscalar|Threads\.@": {"julia"},
    r"Python|NumPy|\bgc\.|py-spy|import ": PYTHON,
    r"[^-]python |train\.py": set(),
}
CITED = r"a kernel of \w+|regex:\S+|The costliest, .+, has"
CITING = ("lost_ranges",)  # notes that cite names of the program or of packages
ALLOWED = {"openmp": ("firstprivate",), "julia": ("gc.",)}  # words of two kinds
C_CODE = re.compile(r"<<<|;$|&\w+", re.MULTILINE)


def texts_of(program: Program, *, repeats: bool = True) -> dict[str, FindingTexts]:
    """Return the texts of all findings that a program can have, by entry and case."""
    texts = {
        f"{name}.{case}": texts_for(entry, case, program, {}, repeats=repeats)
        for name in NAMES
        for entry in [read_entry(name) or {}]
        for case in ["", *(key for key, table in entry.items() if isinstance(table, dict) and key not in TEXT_KINDS)]
    }
    return {name: text for name, text in texts.items() if text is not None}


def foreign_words(text: str, program: str) -> list[str]:
    """Return the words of other kinds; names of threads, kernels and their libraries that a text cites do not count."""
    text = re.sub(r"thread pt_\w+", "thread", re.sub(CITED, "a kernel", text))
    return [
        match[0]
        for words, readers in WORDS.items()
        if program not in readers
        for match in re.finditer(words, text)
        if not any(match[0].strip("`(").startswith(allowed) for allowed in ALLOWED.get(program, ()))
    ]


@pytest.mark.parametrize("program", PROGRAMS)
def test_texts_hold_no_word_of_another_kind(program: str) -> None:
    texts = {name: each for name, each in texts_of(PROGRAMS[program]).items() if not name.endswith(".follower")}
    words = {name: foreign_words(f"{each['advice']}\n{each.code}", program) for name, each in texts.items()}
    assert {name: found for name, found in words.items() if found} == {}
    assert "MPI" in texts["host_bound.mpi"]["advice"]  # for a range of MPI
    python = {name: re.sub(r"#.*", "", each.code).replace("; ", "\n") for name, each in texts.items()}
    in_c = {
        name: code for name, code in python.items() if C_CODE.search(code) and "command" not in texts[name].templates
    }
    assert program not in PYTHON or in_c == {}


# What findings are about that exist without iterations, or that themselves show a loop or a step.
OF_LOOPS = re.compile(
    r"kernel_storm|(?:before|after)_loop|communication|data_loading|casts|idle_stream|optimizer|exposed_p2p|slow_calls\.$"
    r"|operation_gaps|start_up|exposed_um|costliest|small_grid|tail_wave|dependency_wait|layout_changes|late_start\.$"
    r"|unknown_launch|exposed_d2d|paced"
)
COLLECTIVE_CHANGES = (OVERLAP, REORDER, SEPARATE_STREAM, PREFETCH_COLLECTIVE)
LOOP = re.compile(r"\b(?:the loop|steps?|iterations?|every N|next batch|this batch)\b")


@pytest.mark.parametrize("program", PROGRAMS)
def test_texts_without_iterations_speak_of_no_loop(program: str) -> None:
    texts = texts_of(PROGRAMS[program], repeats=False)
    words = {
        name: sorted({*LOOP.findall(f"{each['advice']} {each['remedy']} {each['effect']}")})
        for name, each in texts.items()
        if not OF_LOOPS.search(name)
    }
    assert {name: found for name, found in words.items() if found} == {}


@pytest.mark.parametrize("program", PROGRAMS)
def test_texts_speak_of_what_the_program_has(program: str) -> None:
    """A program on one GPU without attention reads nothing about ranks and attention, and no text is lost for it."""
    alone = replace(PROGRAMS[program], communicates=False, attention=False)
    complete = texts_of(PROGRAMS[program])
    for key, texts in texts_of(alone).items():
        name, _, case = key.partition(".")
        entry = read_entry(name) or {}
        shown = " ".join(table.get("shows", "") for table in (entry, entry.get(case, {})))
        words = [text for text in texts.templates.values() if is_lacking(text, alone, shown)]
        assert words == [], key
        kept = {part for part, text in complete[key].templates.items() if text and part not in ("code", "command")}
        assert [part for part in kept if not texts.templates[part]] == [], key


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
@pytest.mark.parametrize("program", PROGRAMS)
def test_changes_speak_of_what_the_program_has(program: str, change: GraphChange) -> None:
    alone = replace(PROGRAMS[program], communicates=change in COLLECTIVE_CHANGES, attention=False)
    shown = change.for_program(alone)
    text = "" if shown is None else f"{shown.title} {shown.rests_on}"
    assert (foreign_words(text, program), is_lacking(text, alone)) == ([], False)


def test_every_word_occurs_in_the_texts() -> None:
    every = [each for program in PROGRAMS.values() for each in texts_of(program).values()]
    text = "\n".join(f"{each['advice']}\n{each.code}" for each in every)
    assert [words for words, readers in WORDS.items() if readers and not re.search(words, text)] == []


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
        findings, notes = find(TraceWork.from_trace(of_program.trace), of_program)
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
        # Some changes to the compute exist in PyTorch alone, and some kinds compile at the first call of a function.
        [
            (item.id, item.cost_ns, item.device)
            for item in analysis.findings
            if item.claims == "waiting" and not item.once
        ]
        for _, analysis in findings_by_program(name)
    ]
    assert rows[0] and all(row == rows[0] for row in rows)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_advice_on_launches(kind: str) -> None:
    own = texts_of(replace(PLAIN_CUDA, kind=kind))["launch_bound."]["advice"]
    general = texts_of(PLAIN_CUDA)["launch_bound."]["advice"]
    assert (own == general) == (kind in ("cuda", "mpi", "rust", "physx"))


def test_code_is_in_the_language_of_the_program() -> None:
    in_cpp = texts_of(Program("pytorch", ("pytorch",), training=False, python=False))["launch_bound."]
    in_julia = texts_of(PROGRAMS["julia"])
    assert "CUDA graph" in in_cpp["advice"] and in_cpp.code == ""
    assert in_julia["launch_bound."].code.startswith("@. y = ") and in_julia["exposed_um_h2d."].code == ""
    assert in_julia["slow_calls.first"].code == "CUDA_MODULE_LOADING=EAGER COMMAND"


def test_how_to_capture_fits_the_language() -> None:
    texts = {program: capture_advice("nsys", known)["no_ranges"] for program, known in PROGRAMS.items()}
    assert "torch.cuda.nvtx" in texts["inference"] and "nvtxRangePushA" in texts["openacc"]
    assert "NVTX.@range" in texts["julia"] and "nvtx.annotate" in texts["Python"]
    assert all("{push}" not in text for text in texts.values())
