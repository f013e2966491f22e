"""Texts of findings, as data: an entry for each finding, whose placeholders a rule fills with values.

The entry of a finding is the file traceview/rules/texts/ID.toml, or a mapping of the same form in Rule.entries:

    title, advice           `{fix}` in the advice stands for the fix. Without an advice, the fix is the advice.
    remedy                  The advice in one line of at most 70 characters.
    loss, effect            Words for the answer: "half is LOSS. EFFECT would take an iteration to ...".
    place                   What happened at the places that show the finding.
    change                  The changes of `traceview whatif` that predict the gain: the best one that applies counts.
    no_gain                 Why the gain of the remedy is not known. Such a finding is behind those that gain 3%.
    otherwise               The remedy in one line where no change of `change` applies, as no CUDA graph does.
    fix, code or command    What to do, and code that shows it. A command fits programs in any language, and has values.
    shows                   The properties of NEEDS that the finding itself is evidence of.
    known, known_remedy     The advice, without code, if the capture shows where the host was, and the same in one line.

A sentence or code with a word of NEEDS is for programs that have what it speaks of. `training`, `communicates`,
`attention`, `cupy` and `nvidia` are properties of a program.

`[loop: ...]` is text for programs that repeat iterations, `[once: ...]` for those of which none are known. Without
iterations code about the next one is left out. To programs on AMD's GPUs, CUDA is HIP.

A table with the name of a kind of program (KINDS) has the texts for programs of this kind. The closest table gives
fix, code and known. If no table fits the program, it gets no such finding. Other tables are cases that a rule
names in FindingDraft.case; they have what differs, and can have tables of kinds. Other texts are phrases.

`like` names another entry that has what this one lacks, `fixes` the entry whose tables of kinds a case has. `{NAME}`
stands for another text of the entry or for a value, `{shared.NAME}` for a text of shared.toml, and `{capture.NAME}` for
the text of the capture's profiler (model/capture_advice.toml). Values are inserted last and once, so that
braces in names of a capture stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from traceview.model.catalogue import read_toml
from traceview.model.frozen import dataclass
from traceview.model.program import ARRAYS, Program, capture_advice
from traceview.model.units import duration

FOLDER = Path(__file__).parents[1] / "rules" / "texts"
# The kinds, and the language of their code. `training` and `inference` are PyTorch that may train, and that does not,
# `arrays` are programs in Python without a framework (ARRAYS), and `python` is every program in Python.
KINDS: Mapping[str, str] = {
    "cuda": "C",
    "pytorch": "python",
    "training": "python",
    "inference": "python",
    "jax": "python",
    "tensorrt": "C",
    "onnx": "python",
    "julia": "julia",
    "openacc": "C",
    "openmp": "C",
    "tensorflow": "python",
    "arrays": "cupy",
    "python": "python",
}
PLACEHOLDER = re.compile(r"\{([a-z_]+(?:\.[a-z_]+)?)\}")
CODE = ("code", "command")
SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z`{])")
# Words that need a property of the program (model/program.py). A sentence or code with one of them is left out if the
# program lacks the property.
NEEDS: Mapping[str, re.Pattern[str]] = {
    "training": re.compile(
        r"(?i)optimizer|adamw|backward|gradient|zero_grad|\bloss\b|autograd|DataLoader|num_workers|\bDDP\b|DistributedData"
    ),
    "communicates": re.compile(
        r"(?i)\bDDP\b|DistributedData|\bFSDP\b|bucket|nccl|all-?reduce|tensor parallel|\branks?\b"
    ),
    "attention": re.compile(r"(?i)attention|flash|keys and values|\bcache\["),
    "cupy": re.compile(r"(?i)cupy"),
    "nvidia": re.compile(r"Nsight Compute|\bncu\b|CUDA_MODULE_LOADING"),
}
CLAUSE = re.compile(r"\[(loop|once): ([^\]]*)\]")
CODE_OF_LOOPS = re.compile(r"(?<!\.)\bsteps?\b|\bfor \w+(?:, \w+)* in\b|cudaGraph|graphed|reduce-overhead")
PRICED = ("cost", "share", "gaps")  # values that follow from the price
Entry: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FindingTexts:
    """The texts of a finding for a program: templates by name, and the values that fill them."""

    templates: Mapping[str, str]
    values: Mapping[str, object]

    def __getitem__(self, name: str) -> str:
        """Return a filled text; "" if the entry has none."""
        return PLACEHOLDER.sub(lambda match: str(self.values.get(match[1], match[0])), self.templates.get(name, ""))

    @property
    def code(self) -> str:
        """The code that shows the fix, or the command. Code has no values."""
        return self["command"] or self.templates["code"]

    @property
    def missing(self) -> set[str]:
        """The placeholders without a value. Code has no placeholders."""
        texts = [text for name, text in self.templates.items() if name != "code"]
        return {name for text in texts for name in PLACEHOLDER.findall(text)} - self.values.keys()

    def at_known_place(self) -> FindingTexts:
        """Return the texts if the capture shows where the host was: without code and words that help to find it."""
        if not self.templates.get("known"):
            return self
        known = {
            "advice": self.templates["known"],
            "code": "",
            "command": "",
            "remedy": self.templates["general_remedy"],
        }
        return replace(self, templates={**self.templates, **known})


@cache
def read_entry(name: str) -> Entry | None:
    """Return an entry of traceview's own findings; None if there is none with this name."""
    path = FOLDER / f"{name}.toml"
    if not name.isidentifier() or not path.is_file():
        return None
    entry = read_toml(path)
    return {**(read_entry(entry["like"]) or {}), **entry} if "like" in entry else entry


def texts_for(
    entry: Entry,
    case: str,
    program: Program,
    values: Mapping[str, object],
    profiler: str = "nsys",
    *,
    repeats: bool = True,
) -> FindingTexts | None:
    """Return the texts of a finding for a program and a profiler; None if the remedy does not apply to the program.

    `repeats` says whether the capture has iterations.
    """
    in_case = _with_fixes(entry.get(case, {}))
    kinds = tuple(kinds_of(program))
    general = next((kind for kind in kinds if kind in entry), "")
    own = next((kind for kind in kinds if kind in in_case), "")
    if not (general or own or KINDS.keys().isdisjoint(entry)):
        return None
    common = {**_texts(entry), **_texts(in_case)}
    closest = {**_texts({} if own else entry.get(general, {})), **_texts(in_case), **_texts(in_case.get(own, {}))}
    if "change" in entry and closest.keys() & {"remedy", "change"}:
        common["effect"] = ""  # the effect is that of the change, which this case replaces
    texts = {
        "advice": "{fix}",
        **_texts(entry),
        **closest,
        "effect": closest.get("effect", common.get("effect", "")),
        "general_remedy": common.get("known_remedy") or common.get("remedy", ""),
    }
    shown = texts.pop("shows", "")
    phrases = {
        f"{source}.{name}": text
        for source, own in (("shared", read_entry("shared") or {}), ("capture", capture_advice(profiler, program)))
        for name, text in own.items()
    }
    plain = {name: " ".join(text.split()) for name, text in phrases.items()}
    words = {name: _expanded(" ".join(text.split()), texts, plain) for name, text in texts.items() if name not in CODE}
    words = {name: _for_loops(text, repeats) for name, text in words.items()}
    words = {
        name: " ".join(each for each in SENTENCE.split(text) if not is_lacking(each, program, shown))
        for name, text in words.items()
    }
    code = {name: _expanded(texts.get(name, ""), {}, phrases) for name in CODE}
    code = {name: "" if is_lacking(text, program, shown) else text for name, text in code.items()}
    shows_loop = not repeats and CODE_OF_LOOPS.search(code["code"])
    code["code"] = code["code"] if _has_language(program, own or general) and not shows_loop else ""
    if not program.nvidia:
        words = {name: _for_hip(text) for name, text in words.items()}
        code = {name: _for_hip(text) for name, text in code.items()}
    return FindingTexts({**words, **code}, values)


def _for_loops(text: str, repeats: bool) -> str:
    """Return a text with its clauses for programs that repeat, or for others."""
    wanted = "loop" if repeats else "once"
    return CLAUSE.sub(lambda match: match[2] if match[1] == wanted else "", text)


def _for_hip(text: str) -> str:
    """Return a text for AMD's GPUs, whose calls have the names of CUDA's."""
    return re.sub(r"\bcuda(?=[A-Z])", "hip", re.sub(r"\bCUDA\b(?!\.)", "HIP", text))


def is_lacking(text: str, program: Program, shown: str = "") -> bool:
    """Return whether a text speaks of something that the program does not have; a finding may show that it has it."""
    lacks = (name for name in NEEDS if name not in shown and getattr(program, name) is False)
    return any(NEEDS[name].search(text) for name in lacks)


def _with_fixes(case: Entry) -> Entry:
    """Return a case with the tables of kinds of the entry, or of the case of one, that it names."""
    if "fixes" not in case:
        return case
    name, _, of_case = case["fixes"].partition(".")
    other = read_entry(name) or {}
    other = other.get(of_case, {}) if of_case else other
    return {**{kind: table for kind, table in other.items() if kind in KINDS}, **case}


def _texts(table: Entry) -> dict[str, str]:
    return {name: text for name, text in table.items() if isinstance(text, str)}


def kinds_of(program: Program) -> Iterator[str]:
    """Yield the kinds whose texts fit a program, the closest first."""
    if program.kind == "triton":
        yield from ("inference", "pytorch")  # PyTorch calls the kernels of Triton
    elif program.kind == "pytorch":
        yield from ("inference" if program.training is False else "training", "pytorch")
    elif program.kind in ARRAYS or (program.kind in ("cuda", "mpi") and program.python):
        yield "arrays"
    elif program.kind not in ("cuda", "mpi"):
        yield program.kind
    if program.python:
        yield "python"
    yield "cuda"


def fits(kinds: Sequence[str], program: Program) -> bool:
    """Return whether a program is of one of the kinds; every program is if there are none."""
    return not kinds or not set(kinds).isdisjoint(kinds_of(program))


def _has_language(program: Program, kind: str) -> bool:
    """Return whether the code for a kind is in the language of the program."""
    language = KINDS.get(kind)
    if language == "cupy":
        return program.kind not in ARRAYS or program.kind == "cupy"
    if program.python:
        return language == "python"
    return language == {"julia": "julia", "rust": "rust"}.get(program.kind, "C")


def _expanded(text: str, texts: Mapping[str, str], phrases: Mapping[str, str]) -> str:
    """Return a text with the texts and phrases that it names. Other placeholders stay: they are values."""

    def named(match: re.Match[str]) -> str:
        name = match[1]
        if name in phrases:
            return phrases[name]
        return _expanded(" ".join(texts[name].split()), texts, phrases) if name in texts else match[0]

    return PLACEHOLDER.sub(named, text)


def join_words(words: list[str]) -> str:
    """Return "a", "a and b" or "a, b and c"."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


# What the causes of exposed time say in a finding (docs/definitions.md "Exposed time by cause").
MIN_PART = 0.05  # share of the exposed time from which a cause is named
MAX_NAMED = 3


def _cause_words() -> Mapping[str, Mapping[str, str]]:
    return read_toml(Path(__file__).with_name("exposed_causes.toml"))


def lost_ns(causes: Mapping[str, int]) -> int:
    """Return the exposed time without the ordinary gaps between kernels, in which nothing is lost."""
    return sum(causes.values()) - causes["kernel_gap"]


def main_cause(causes: Mapping[str, int]) -> str:
    """Return the cause with the most time of those that have a remedy; "" if none has time."""
    cause = max((name for name, words in _cause_words().items() if "cure" in words), key=lambda name: causes[name])
    return cause if causes[cause] else ""


UNKNOWN_CURE = "Start them earlier, beside compute."


def cause_values(causes: Mapping[str, int]) -> dict[str, str]:
    """Return the values `why`, a sentence with the largest causes, and `cure`, the remedy of the largest one."""
    exposed = sum(causes.values())
    largest = sorted((name for name in causes if causes[name] > MIN_PART * exposed), key=lambda name: -causes[name])
    parts = [f"{duration(causes[name])} {_cause_words()[name]['because']}" for name in largest[:MAX_NAMED]]
    cause = main_cause(causes)
    return {
        "why": f"Exposed are {join_words(parts)}. " if parts else "",
        "cure": f"{_cause_words()[cause]['cure'] if cause else UNKNOWN_CURE} ",
    }
