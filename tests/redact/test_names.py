"""A hidden name matches each pattern of the analysis that the name matches, and no other."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceview.captures.redact import LETTERS, HiddenNames, hidden_kernels, kept_words
from traceview.measure import nvtx, places, rates, storms
from traceview.measure.kernels.families import KernelKind, kernel_kind, kind_words, stated_kind
from traceview.model.names import COMMUNICATION, loading_words
from traceview.normalise import host_events, ranges, sizes, stacks
from traceview.pricing.speedups import matrices, memory, steps
from traceview.ranks import whatif
from traceview.replay import build, unprofiled
from traceview.rules import communication, host_bound, launches, start_up

PATTERNS = {
    "library": nvtx.LIBRARY_NAMES,
    "jitted": nvtx.JITTED,
    "counter": nvtx.COUNTER_WORDS,
    "part": nvtx.PART_WORDS,
    "step": nvtx.STEP_WORDS,
    "pass": nvtx.PASS_WORDS,
    "layer": nvtx.LAYER_NAME.replace("#", "[0-9]"),
    **places.DIRECTION_NAMES,
    "wrapper": places.WRAPPER,
    "unrecorded": places.UNRECORDED,
    "op mark": ranges.OP_MARK,
    "op": ranges.BACKWARD_OP,
    "module": ranges.MODULE_NAME,
    "optimizer": host_bound.OPTIMIZER.pattern.replace("sgd", r"(^|[^A-Za-z])sgd"),
    "reads": host_bound.READS,
    "zero_grad": launches.ZERO_GRAD.pattern,
    "collection": host_events.COLLECTION,
    "waits": host_events.WAITS,
    "loader": unprofiled.LOADER_THREADS,
    "autograd": f"^{stacks.AUTOGRAD}",
    "packages": stacks.PACKAGES.pattern,
    "backward": build.BACKWARD,
    "communication": COMMUNICATION,
    "sums": whatif.SUMS_FLOATS,
    "recurrent": storms.RECURRENT,
    "fill": memory.FILL,
    "embedding": memory.EMBEDDING_GRADIENT,
    "loss": memory.LOSS,
    "cast": memory.CAST,
    "concatenation": memory.CONCATENATION,
    "strided": memory.STRIDED,
    "compiled": memory.COMPILED,
    "not updates": memory.NOT_UPDATES,
    "update": memory.UPDATE,
    "volumes": matrices.VOLUMES,
    "odd": steps.ODD_PRODUCT,
    **dict(rates.PARALLELISMS),
    **{pattern: pattern for pattern, _ in ((each.pattern, kind) for each, kind in sizes.KINDS)},
    "pipeline": communication.PIPELINE.pattern,
    "compiles": start_up.COMPILES.pattern,
}
WORDS = sorted(kept_words()[0])
JUNK = ["acme", "moonshot", "http", "qx", "a", "7", "42", "123456"]
separators = st.sampled_from([" ", "_", "::", ".", "#", "(", ">", "-", "/", ": "])
words = st.one_of(st.sampled_from(WORDS), st.sampled_from(JUNK))
camel_case = st.lists(words.filter(str.isalpha).map(str.capitalize), min_size=1, max_size=3).map("".join)
names = st.lists(st.tuples(st.one_of(words, camel_case), separators), min_size=1, max_size=4).map(
    lambda pairs: "".join(part for pair in pairs for part in pair)
)


def hidden(name: str) -> str:
    return HiddenNames([name]).name(name)


def matches(pattern: str, name: str) -> bool:
    return re.search(pattern, name) is not None


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS.keys())
def test_words_of_patterns_stay(pattern: str) -> None:
    plain = re.sub(r"\[[^\]]*\]|\\[a-zA-Z]|\(\?[a-zA-Z-]+[:)]", " ", pattern)
    literals = {
        form
        for text in re.findall(r"[A-Za-z]{4,}\??", plain)
        for form in (text.rstrip("?"), text[:-2])[: 1 + ("?" in text)]
    }
    literals -= {"ation", "conv", "dconv", "align"}  # they begin or end a word
    assert [literal for literal in sorted(literals) if hidden(literal) != literal] == []


@settings(max_examples=500)
@given(names)
def test_hidden_names_match_the_same_patterns(name: str) -> None:
    after = hidden(name)
    assert [key for key, pattern in PATTERNS.items() if matches(pattern, name) != matches(pattern, after)] == []
    assert loading_words(name) == loading_words(after)


@given(names, names)
def test_equal_names_have_equal_hashes(first: str, second: str) -> None:
    both = HiddenNames([first, second])
    assert (both.name(first) == both.name(second)) == (first == second)
    folded = [re.sub("[0-9]+", "#", text) for text in (first, second)]
    hidden_folded = [re.sub("[0-9]+", "#", both.name(text)) for text in (first, second)]
    assert (hidden_folded[0] == hidden_folded[1]) == (folded[0] == folded[1])


@given(st.text(max_size=30))
def test_any_text_can_be_hidden(text: str) -> None:
    after = hidden(text)
    assert after.isascii() and len(HiddenNames([]).name(text * 10_000)) <= 1 << 15


def test_unknown_words_are_hashed() -> None:
    after = hidden("load customer_Acme42 batch 7, é")
    assert re.fullmatch(rf"load [{LETTERS}]{{6}}_[A-Z][{LETTERS}]{{5}}42 batch 7, [{LETTERS}]{{6}}", after)
    key = "9f8e7d6c5b4a39281706f5e4d3c2b1a0"
    assert not re.search("[0-9]", hidden(key)) and not re.search("[0-9]", hidden(f"load_{key}"))
    assert re.fullmatch("[A-Z]", hidden("K")[:1]) and hidden("K") != "K"


def test_no_kept_word_is_spelled_with_the_letters_of_hashes() -> None:
    assert not [word for word in WORDS if len(word) > 3 and set(word) <= set(LETTERS)]


def test_long_numbers_keep_their_order_alone() -> None:
    texts = ["id 20260102030405", "id 20260102030406", "id 9999999", "id 0009999999", "id 123456"]
    both = HiddenNames(texts)
    after = [both.name(text) for text in texts]
    assert not [text for text in texts[:4] if text in after] and after[4].endswith(" 123456")
    values = [int(text.rpartition(" ")[2]) for text in after[:3]]
    assert values[2] < values[0] < values[1] and len(set(after)) == len(texts)


@pytest.mark.parametrize(
    ("text", "stays"),
    [
        ("cudaLaunchKernel_v7000", True),
        ("MPI_Allreduce", True),
        ("aten::addmm", True),
        ("pthread_cond_timedwait", True),
        ("_allgather_base", True),
        ("moonshot::attention", False),
        ("moonshotLaunch", False),
        ("open_moonshot", False),
        ("cuda moonshot", False),
    ],
)
def test_public_calls_stay(text: str, stays: bool) -> None:
    assert HiddenNames([]).public(text) == (text if stays else None)


KINDS = [
    KernelKind(label, family, precision, tensor_core, library)
    for label in ("f", "a [b]: c]", "x\ny")
    for family in ("gemm", "communication", "custom")
    for precision in (None, "bf16")
    for tensor_core in (True, False, None)
    for library in (None, "torch.compile")
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_kind_of_a_hidden_kernel_is_stated(kind: KernelKind) -> None:
    assert stated_kind(f"void q<x> {kind_words(kind)}") == kind == kernel_kind("q", kind_words(kind))


@pytest.mark.parametrize(
    "full",
    ["f", "f [hidden gemm bf16 tensor cuBLAS]", "[hidden gemm secret tensor cuBLAS: x]", "[hidden x bf16 tensor -: x]"],
)
def test_other_names_state_no_kind(full: str) -> None:
    assert stated_kind(full) is None


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
SHORT = ["vectorized_elementwise_kernel", NCCL, "acme_gemm", "dispatch", None]
FULL = [
    "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, float)",
    f"{NCCL}(ncclDevKernelArgsStorage<(unsigned long)4096>)",
    "acme_gemm(float*)",
    "void deep_ep::intranode::dispatch<8>(int4*)",
    None,
]


@pytest.mark.parametrize("keeps_words", [True, False])
@pytest.mark.parametrize("names", [[SHORT, FULL], [SHORT]])
def test_hidden_kernels_keep_their_kinds(names: list[list[str | None]], keeps_words: bool) -> None:
    made = hidden_kernels(names, HiddenNames([]), keeps_words=keeps_words)
    assert len(made) == len(names) and not [text for column in made for text in column if text and "acme" in text]
    for before, after in zip(zip(*names, strict=True), zip(*made, strict=True), strict=True):
        if None in before:
            assert after == before
            continue
        old, new = (kernel_kind(str(each[0]), str(each[-1])) for each in (before, after))
        assert new._replace(label="") == old._replace(label="")
        assert matches(COMMUNICATION, str(after[0])) == (old.family == "communication")
    assert [column[1] for column in made] == [column[1] for column in names]
