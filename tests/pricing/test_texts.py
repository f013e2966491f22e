"""The catalogue of texts is complete, agrees with the rules, and takes nothing from a capture as a template."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.captures import ROOT
from traceview.model.program import PLAIN_CUDA, Program
from traceview.model.trace import KINDS as COPY_KINDS
from traceview.pricing.speedups import FINDABLE, SPEEDUPS
from traceview.pricing.texts import (
    FOLDER,
    KINDS,
    PLACEHOLDER,
    FindingTexts,
    _cause_words,
    join_words,
    read_entry,
    texts_for,
)
from traceview.replay.changes import CHANGES
from traceview.rules.kernels import FINDINGS as OF_SPEEDUPS

NEED_PYTORCH = {speedup.name for speedup in FINDABLE if speedup.programs} - {"bf16"}  # TF32 has texts for all
NEED_TRAINING = {speedup.name for speedup in FINDABLE if speedup.programs == ("training",)}
NAMES = sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != "shared")
FAULTS = "nsys profile --cuda-um-gpu-page-faults=true"
PROFILERS = ("nsys", "torch.profiler")
NOTES = ("unused_stream",)  # cost nothing
WITH_PLACES = ("idle_stream", "kernel_storm", "launch_bound")  # their rules name the places
TRAINING = Program("pytorch", ("pytorch",), training=True, python=True)
INFERENCE = Program("pytorch", ("pytorch",), training=False, python=True)
SOURCES = [path.read_text(encoding="utf-8") for path in (ROOT / "traceview" / "rules").glob("*.py")]


def entry(name: str) -> dict[str, Any]:
    found = read_entry(name)
    assert found is not None
    return dict(found)


def cases(name: str) -> list[str]:
    """Return the cases of an entry, "" first."""
    return ["", *(key for key, value in entry(name).items() if isinstance(value, dict) and key not in KINDS)]


def every_texts() -> Iterator[tuple[str, str, FindingTexts]]:
    """Yield the texts of each entry and case for each kind of program."""
    kinds = ("cuda", "pytorch", "jax", "tensorrt", "onnx", "triton", "julia", "openacc", "openmp", "mpi")
    for name in NAMES:
        for case in cases(name):
            for kind in kinds:
                for python in (False, True):
                    for training in (False, None):
                        program = Program(kind, (kind,), training=training, python=python)
                        for profiler in PROFILERS:
                            if (texts := texts_for(entry(name), case, program, {}, profiler)) is not None:
                                yield name, case, texts


EVERY = list(every_texts())


def test_cases_with_another_remedy_have_its_effect() -> None:
    """The effect of an entry describes what its change gives."""
    for name, case, texts in EVERY:
        if entry(name).get("change") and not texts["change"]:
            assert texts["effect"] != entry(name)["effect"], (name, case)


def test_entries_are_complete() -> None:
    assert {name for name, _, _ in EVERY} == set(NAMES)
    for name, case, texts in EVERY:
        needed = ("title", "advice") if name in NOTES else ("title", "advice", "loss", "remedy")
        assert all(texts[key] for key in needed), (name, case)
        assert texts["place"] or name in (*NOTES, *WITH_PLACES), (name, case)
        if name not in NOTES:
            cures = [words["cure"] for words in _cause_words().values() if "cure" in words]
            for remedy in cures if texts["remedy"] == "{cure}" else [texts["remedy"]]:
                assert remedy.endswith(".") and len(remedy) <= 70, (name, case)
            assert not texts["loss"].endswith(".") and not texts["effect"].endswith(".")
        shown = (texts["title"], texts["advice"], texts.code)
        assert not any("{shared" in text or "{capture" in text or "{fix}" in text for text in shown), (name, case)


def test_each_finding_has_an_entry_and_each_entry_a_finding() -> None:
    nodes = [node for source in SOURCES for node in ast.walk(ast.parse(source))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "FindingDraft"]
    literal = {call.args[0].value for call in calls if call.args and isinstance(call.args[0], ast.Constant)}
    named = {node.value for node in nodes if isinstance(node, ast.Constant) and node.value in NAMES}
    by_kind = {f"exposed_{kind}" for kind in COPY_KINDS}  # in exposed_copies.py
    assert len(calls) > 15 and literal | named | by_kind == set(NAMES)


def test_rules_name_each_case() -> None:
    words = {word for source in SOURCES for word in re.findall(r'"(\w+)"', source)}
    assert [(name, case) for name in NAMES for case in cases(name) if case and case not in words] == []


def test_changes_exist() -> None:
    known = {change.name for change in CHANGES} | {speedup.name for speedup in SPEEDUPS}
    named = {name for _, _, texts in EVERY for name in texts["change"].split()}
    assert named <= known and len(named) > 10
    predicted = {name: finding for name, finding in OF_SPEEDUPS.items() if name in {each.name for each in SPEEDUPS}}
    assert all(name in entry(finding)["change"].split() for name, finding in predicted.items())
    assert {speedup.name for speedup in FINDABLE} == set(OF_SPEEDUPS)


def test_rules_skip_what_does_not_apply() -> None:
    for speedup, finding in OF_SPEEDUPS.items():
        assert (texts_for(entry(finding), "", PLAIN_CUDA, {}) is None) == (speedup in NEED_PYTORCH), finding
        assert (texts_for(entry(finding), "", INFERENCE, {}) is None) == (speedup in NEED_TRAINING), finding
        assert texts_for(entry(finding), "", TRAINING, {}) is not None


def test_references_exist() -> None:
    shared = entry("shared")
    used = set()
    for path in FOLDER.glob("*.toml"):
        text = path.read_text(encoding="utf-8")
        used |= {name.removeprefix("shared.") for name in PLACEHOLDER.findall(text) if name.startswith("shared.")}
        for key, other in re.findall(r'^(like|fixes) = "([\w.]+)"$', text, re.MULTILINE):
            name, _, case = other.partition(".")
            assert name in NAMES and (not case or case in cases(name)), (path.name, key)
    assert used == set(shared)


def test_words_of_nsys_are_not_for_traces_of_torch() -> None:
    """nsys options do not apply to a torch.profiler trace, and its ranges come from record_function.

    nsys alone traces whole CUDA graphs, and page faults.
    """
    words = re.compile(r"nsys|nvtx|--cuda-|-t cuda|traceview record|cudaProfiler", re.IGNORECASE)
    for name in NAMES:
        for case in cases(name):
            for program in (TRAINING, INFERENCE):
                of_nsys, of_torch = (texts_for(entry(name), case, program, {}, kind) for kind in PROFILERS)
                assert (of_nsys is None) == (of_torch is None), (name, case)
                if of_torch is not None:
                    shown = [text for text in of_torch.templates.values() if words.search(text.replace(FAULTS, ""))]
                    assert shown == [] or (name, case) == ("costliest_kernel", "graph"), (name, case)


def test_names_of_a_capture_are_text() -> None:
    name = "{fix} {cost} {0} {range} {shared.numa} { }"
    texts = texts_for(entry("host_bound"), "", PLAIN_CUDA, {"range": name, "cost": "1 ms"})
    assert texts is not None
    assert texts["title"] == f"The GPU waits 1 ms for the host in `{name}`"
    assert texts["place"] == f"the host is in {name}"


def test_texts_follow_the_program() -> None:
    small = {
        "title": "a {one}",
        "advice": "{first}. {fix}",
        "first": "First {one}",
        "remedy": "General.",
        "cuda": {"fix": "in C", "code": "x{};"},
        "training": {"fix": "for training", "code": "x()", "known": "There.", "remedy": "Of training."},
        "other": {"title": "b", "inference": {"command": "run {one}"}},
    }

    def read(case: str, program: Program) -> FindingTexts:
        texts = texts_for(small, case, program, {"one": 1})
        assert texts is not None
        return texts

    assert [read("", PLAIN_CUDA)[key] for key in ("title", "advice", "remedy")] == ["a 1", "First 1. in C", "General."]
    assert read("", PLAIN_CUDA).code == "x{};" and read("", INFERENCE).code == ""
    training = read("other", TRAINING)
    assert (training["title"], training["advice"], training["remedy"]) == ("b", "First 1. for training", "Of training.")
    known = training.at_known_place()
    assert (known["advice"], known.code, known["remedy"]) == ("There.", "", "General.")
    assert read("other", INFERENCE).code == "run 1"
    assert read("", INFERENCE).at_known_place() == read("", INFERENCE)
    only = {"title": "c", "pytorch": {"fix": "d"}}
    assert texts_for(only, "", PLAIN_CUDA, {}) is None
    assert texts_for({"title": "c", "advice": "e"}, "", PLAIN_CUDA, {}) is not None


@pytest.mark.parametrize("name", ["", "../texts/host_bound", "nothing", "host_bound.toml"])
def test_unknown_entries(name: str) -> None:
    assert read_entry(name) is None


def test_joined_words() -> None:
    assert (join_words(["a"]), join_words(["a", "b", "c"]), join_words([])) == ("a", "a, b and c", "")
