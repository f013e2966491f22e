"""What kind of program a capture shows (docs/definitions.md "Program kinds").

The evidence is names: of kernels, of the threads and processes that used CUDA or NVTX, of ranges and their domains,
and of modules in stack samples. No text of the program leaves this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import polars as pl

from traceview.model.catalogue import read_toml
from traceview.model.frozen import dataclass
from traceview.model.names import communicates, with_ascii_classes
from traceview.model.program import ARRAYS, KINDS, Program
from traceview.normalise.codes import SHORT_NAME, categories, short_names, texts_of
from traceview.normalise.threads import process_of, without_path
from traceview.read import raw

PLAIN, KERNEL_TEXTS = "plain", "kernel texts"
MAX_SEARCHED = 2000  # characters of a text; names are at its start, and a million characters take 0.5 s


class Mark(NamedTuple):
    """One sign of a framework: a pattern (of polars: no look-around) in one sort of names.

    `names` is a field of ProgramNames, or PLAIN: kernels without parameters in their names, which no C++ compiler
    made, or KERNEL_TEXTS: texts that name a kernel of the capture, not a function of the host. `evidence` says in a
    report what matches. A sign that `is_weak`, such as a library that is loaded, counts where no kind has another sign.
    """

    framework: str
    names: str
    pattern: str
    evidence: str
    is_weak: bool = False


@dataclass(frozen=True)
class ProgramNames:
    """The names in a capture: `texts` are all strings (demangled kernels, modules), the others are some of them.

    `threads` and `processes` are those of processes with GPU work.
    """

    kernels: pl.Series
    threads: pl.Series
    processes: pl.Series
    ranges: pl.Series
    domains: pl.Series
    texts: pl.Series

    @cached_property
    def marked_texts(self) -> pl.Series:
        """The texts that any mark may match: one search for all marks, so that each mark then searches few texts."""
        every = (*framework_marks(), *PYTHON_MARKS, *TRAINING_MARKS)
        patterns = [mark.pattern for mark in every if mark.names in ("texts", KERNEL_TEXTS)]
        starts = self.texts.str.slice(0, MAX_SEARCHED)
        return self.texts.filter(starts.str.contains("|".join(f"(?:{pattern})" for pattern in patterns)))

    def matching(self, mark: Mark) -> pl.Series:
        """Return the names that match a mark."""
        fields = {PLAIN: "kernels", "texts": "marked_texts", KERNEL_TEXTS: "marked_texts"}
        names: pl.Series = getattr(self, fields.get(mark.names, mark.names))
        if names.is_empty():  # saves to compile the pattern, 0.2 ms
            return names
        matches = names.filter(names.str.contains(mark.pattern))
        if mark.names == KERNEL_TEXTS and len(self.kernels):  # a graph that is traced whole hides its kernels
            kernels = self.kernels.implode()
            short = matches.str.extract(SHORT_NAME)
            return matches.filter(matches.is_in(kernels) | short.is_in(kernels).fill_null(False))
        if mark.names != PLAIN or matches.is_empty():
            return matches
        return matches.filter(~matches.is_in(short_names(self.texts).implode()))

    @classmethod
    def from_tables(
        cls, tables: dict[str, pl.DataFrame], threads: pl.DataFrame, operations: pl.DataFrame, ranges: pl.DataFrame
    ) -> ProgramNames:
        """Collect the names of a capture; without GPU work, of the processes in `threads`, which used CUDA or NVTX."""
        working = operations["process"] if len(operations) else threads["process"]
        processes, named = (_rows_of(tables.get(name), working) for name in (raw.PROCESSES, raw.THREAD_NAMES))
        programs: Iterable[str] = processes["name"].drop_nulls() if "name" in processes.columns else ()
        return cls(
            kernels=_texts(categories(operations["name"])),
            threads=_texts(texts_of(named["nameId"].unique(), tables) if len(named) else ()),
            processes=_texts(map(without_path, programs)),
            ranges=_texts(categories(ranges["name"])),
            domains=_texts(categories(ranges["domain"])),
            texts=_without_environment(tables[raw.STRINGS]["value"].drop_nulls()),
        )


def _rows_of(table: pl.DataFrame | None, processes: pl.Series) -> pl.DataFrame:
    """Return the rows of a table that lists every thread or process of the machine, for some processes."""
    if table is None or table.is_empty():
        return pl.DataFrame()
    column = "globalPid" if "globalPid" in table.columns else "globalTid"
    return table.filter(process_of(column).is_in(processes.unique().implode()))


def _without_environment(texts: pl.Series) -> pl.Series:
    """Leave out texts that name libraries without showing them.

    They are texts of several lines (environment, settings, output), and kernels of a library's headers around a
    function of the program's own main().
    """
    return texts.filter(~texts.str.contains(r"[\x00\n]|\bmain::\{lambda|[(<, ]&main\b|Z4mainE"))


def _texts(texts: Iterable[str]) -> pl.Series:
    return pl.Series(list(texts), dtype=pl.String)


MARKS = Path(__file__).with_name("program.toml")
OPENACC_KERNELS, JAX_RANGES = "kernels of OpenACC", "ranges of JAX"  # evidence in program.toml


@cache
def framework_marks() -> tuple[Mark, ...]:
    """Return the marks of all frameworks."""
    return tuple(
        Mark(framework, names, with_ascii_classes(pattern), *rest)
        for framework, marks in read_toml(MARKS).items()
        for names, pattern, *rest in marks
    )


PYTHON_MARKS = (
    Mark("python", "threads", r"^i?python|^pt_(main|elastic|data)|^VLLM::|^sglang::|^ray::", "threads of Python"),
    Mark("python", "processes", r"^i?python|^torchrun|^pytest", "a process of Python"),
    Mark("python", "texts", r"^\S*(libpython\d|/lib/python\d)", "libraries of Python"),
)
BACKWARD = "Backward|backward|FusedAdam"
# A transposed convolution runs a kernel of data gradients (dgrad) in its forward pass, which does not train.
TRAINING = r"(?i)backward|bprop|_bwd|bwd_|wgrad|(^|[^a-z])(fused)?adam|optimizer\.step|transpose\(jvp"
TRAINING_MARKS = (
    Mark("training", "threads", r"^pt_autograd", "a thread of autograd"),
    Mark("training", "kernels", TRAINING, "kernels of a backward pass or an optimizer"),
    Mark("training", "texts", rf"at::native::.*({BACKWARD})", "kernels of a backward pass"),
    Mark("training", "ranges", TRAINING, "ranges of a backward pass or an optimizer"),
)
# Matrix products, convolutions, attention and norms, kernels that a compiler or a graph fuses, and those of inference.
LAYERS = (
    r"(?i)gemm|gemv|nvjet|cutlass|^kernel2?$|device_kernel|Cijk_|(?:^|_|[hw]|wg)mma|matmul|conv(?:\d|_|ol|$)|dgrad|attn|attention|fmha|flash|sdpa"
    r"|norm(?:_|iz|aliz|$)|softmax|embedding|^triton_|^CUDA graph|pool|lstm|gru|rnn|decode|vllm|marlin"
)
ATTENTION = r"(?i)attention|attn|flash_?(fwd|bwd|infer|decod)|fmha|sdpa"
TORCH_TRACE = "a trace of torch.profiler"
ONLY_INFERENCE = ("tensorrt", "onnx")
# Frameworks whose kernels one program may mix; the one with most kernel time is the kind.
MODELS = ("pytorch", "tensorrt", "onnx", "jax", "tensorflow")
IN_PYTHON = ("pytorch", "jax", "triton", "tensorflow", *ARRAYS)


def find_program(
    names: ProgramNames,
    operations: pl.DataFrame,
    is_torch_trace: bool,
    devices: Sequence[str | None] = ("",),
    calls: Iterable[str] = (),
) -> Program:
    """Return the kind of the program that made a capture of GPUs and API calls with these names."""
    signs, weak = {"pytorch": TORCH_TRACE} if is_torch_trace else {}, set[str]()
    for mark in framework_marks():
        if (mark.framework not in signs or mark.framework in weak) and names.matching(mark).len():
            signs[mark.framework] = mark.evidence
            (weak.add if mark.is_weak else weak.discard)(mark.framework)
    if "gcc" in signs:
        # GCC gives kernels of both the same names. Its OpenMP runtime waits for the context, its OpenACC runtime for a
        # stream.
        in_context = "openacc" not in signs and names.texts.is_in(["cuCtxSynchronize"]).any()
        signs.setdefault("openmp" if in_context else "openacc", signs.pop("gcc"))
    if "openmp" in signs and signs.get("openacc") == OPENACC_KERNELS:
        del signs["openacc"]  # the runtime that fills memory is the same
    if "tensorflow" in signs:
        # TensorFlow contains XLA, whose threads have TensorFlow's names in JAX too.
        signs.pop("tensorflow" if signs.get("jax") == JAX_RANGES else "jax", None)
    strong = {name: sign for name, sign in signs.items() if name not in weak}
    kind = _main_kind(strong if set(strong) & set(KINDS) - {"mpi"} else signs, names, operations)
    training, training_evidence = _training(kind, names, kind in strong)
    frameworks = sorted(signs, key=lambda name: name != kind)
    is_nameless = names.threads.is_empty() and names.processes.is_empty()
    return Program(
        kind=kind,
        frameworks=tuple(frameworks),
        training=training,
        python=is_torch_trace or _runs_in_python(kind, names) or (is_nameless and kind in IN_PYTHON),
        evidence=(*(f"{name}: {signs[name]}" for name in frameworks), *training_evidence),
        communicates="mpi" in signs or len(devices) > 1 or bool(communicates(names.kernels, names.kernels).any()),
        attention=any(series.str.contains(ATTENTION).any() for series in (names.kernels, names.ranges)),
        layers=_has_layers(kind, names),
        nvidia=not (any("AMD" in (name or "") for name in devices) or any(name.startswith("hip") for name in calls)),
    )


def _runs_in_python(kind: str, names: ProgramNames) -> bool:
    """Return whether Python runs the processes with GPU work.

    Libraries of Python may be those of a process that started a program in another language.
    """
    *own, libraries = (names.matching(mark).len() > 0 for mark in PYTHON_MARKS)
    return any(own) or (libraries and (names.processes.is_empty() or kind in IN_PYTHON))


PROPERTIES = ("python", "communicates", "attention", "nvidia")


def program_rows(program: Program) -> pl.DataFrame:
    """Return raw.PROGRAM, with which a redacted copy states its program instead of the names that show it."""
    stated = {name: [str(getattr(program, name))] for name in ("kind", "training", "layers", *PROPERTIES)}
    stated |= {name: list(getattr(program, name)) for name in ("frameworks", "evidence")}
    rows = [(name, value) for name, values in stated.items() for value in values]
    return pl.DataFrame(rows, schema=["name", "value"], orient="row")


def stated_program(table: pl.DataFrame | None) -> Program | None:
    """Return the program that raw.PROGRAM states, as far as it consists of known words; None if it states none."""
    if table is None or table.is_empty():
        return None
    stated: dict[str, list[str]] = {}
    for name, value in table.drop_nulls().iter_rows():
        stated.setdefault(name, []).append(value)
    marks = framework_marks()
    known = {*(mark.framework for mark in marks), *KINDS}
    signs = {TORCH_TRACE, *(mark.evidence for mark in (*marks, *TRAINING_MARKS))}
    evidence = {f"{name}: {sign}" for name in (*known, "training") for sign in signs}
    words = {"True": True, "False": False}
    return Program(
        kind=next((kind for kind in stated.get("kind", ()) if kind in KINDS), "cuda"),
        frameworks=tuple(name for name in stated.get("frameworks", ()) if name in known),
        training=words.get(stated.get("training", ["None"])[0]),
        layers=words.get(stated.get("layers", ["None"])[0]),
        evidence=tuple(line for line in stated.get("evidence", ()) if line in evidence),
        **{name: words.get(stated.get(name, ["False"])[0], False) for name in PROPERTIES},
    )


def _main_kind(signs: Mapping[str, str], names: ProgramNames, operations: pl.DataFrame) -> str:
    """Return the first of KINDS with a sign. If several MODELS have kernels, return the one with most kernel time."""
    kernel_time = {
        name: _kernel_time(name, names, operations)
        for name in MODELS
        if sum(model in signs for model in MODELS) > 1 and name in signs
    }
    if any(kernel_time.values()):
        return max(kernel_time, key=lambda name: kernel_time[name])
    return next((kind for kind in KINDS if kind in signs), "cuda")


def _kernel_time(framework: str, names: ProgramNames, operations: pl.DataFrame) -> int:
    """Return the summed time of the kernels that the marks of a framework name, in ns."""
    own = [
        names.matching(mark)
        for mark in framework_marks()
        if mark.framework == framework and mark.names in ("kernels", "texts", PLAIN, KERNEL_TEXTS)
    ]
    short = pl.concat([pl.concat([matches, short_names(matches)]) for matches in own]).unique()
    kernels = operations.filter(operations["name"].cast(pl.String).is_in(short.implode()))
    return int((kernels["end"] - kernels["start"]).sum())


def _has_layers(kind: str, names: ProgramNames) -> bool | None:
    if kind in ONLY_INFERENCE:
        return True
    return bool(names.kernels.str.contains(LAYERS).any()) if kind in MODELS else None


def _training(kind: str, names: ProgramNames, is_certain: bool) -> tuple[bool | None, tuple[str, ...]]:
    """Return whether the program trains a model, and the evidence; None if nothing shows it.

    Communication alone does not show inference, nor does a kind that is not certain.
    """
    if kind not in MODELS:
        return None, ()
    if kind in ONLY_INFERENCE:
        return False, ()
    if kind == "jax" and not _has_layers(kind, names):
        return None, ()  # simulations differentiate, too
    evidence = next((mark.evidence for mark in TRAINING_MARKS if names.matching(mark).len()), None)
    if evidence is not None:
        return True, (f"training: {evidence}",)
    computes = names.kernels.filter(~names.kernels.str.contains(r"(?i)^(nccl|rccl|nvshmem)")).len() > 0
    return (False if kind == "pytorch" and is_certain and computes else None), ()
