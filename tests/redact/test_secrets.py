"""Which texts match a secret pattern, and which names must not."""

from __future__ import annotations

import re
import sqlite3
import string

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import ALL, shared
from traceview.captures.redact.secrets import NameRedactor, Secrets, is_private, words_of_environment
from traceview.measure.nvtx import LIBRARY_NAMES, NUMBER
from traceview.normalise.codes import short_names

# Made by hand: none of these opens anything.
SECRETS = {
    "Hugging Face token": "hf_" + "aBcDeFgHiJ" * 3,
    "GitHub token": "ghp_" + "a1B2c3D4e5" * 4,
    "GitLab token": "glpat-" + "x1Y2z3" * 4,
    "AWS key": "AKIA" + "ABCDEFGH12345678",
    "Google key": "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "Slack token": "xoxb-1234567890-abcdefghij",
    "OpenAI or Anthropic key": "sk-proj-" + "abc123DEF4" * 3,
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP",
    "e-mail address": "jane.doe+x@mail.example.com",
    "path": "/home/jane/project/train.py",
    "address": "https://jane:pw@host.example/x?y=1",
    "IP address": "10.20.30.40",
    "long hexadecimal": "0123456789abcdef" * 2,
    "long base64": "aB3dE5fG7hI9jK1lM2nO4pQ6rS8tU0vW+xYz/1A=",
    "password, key or token that is set": "password=hunter2",
    "private key": "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n",
}


@pytest.mark.parametrize(("kind", "secret"), SECRETS.items())
@pytest.mark.parametrize("around", ["{}", "load {} now", "step({})", "[{}]"])
def test_secret_is_replaced_and_counted(kind: str, secret: str, around: str) -> None:
    secrets = Secrets({})
    cleaned = secrets.clean(around.format(secret))
    assert "[removed " in cleaned
    assert secret not in cleaned
    assert dict(secrets.counts) == {kind: 1}
    assert secrets.clean(cleaned) == cleaned
    assert secrets.kind_in([cleaned]) is None
    assert Secrets({}).kind_in([around.format(secret)]) == kind


def test_punctuation_in_a_private_word() -> None:
    word = "a" + string.punctuation + " \n\té" + "z"
    assert Secrets({word: "value of an environment variable"}).clean(f"x{word}y") == "x[removed b 1]y"


def test_marks_of_an_earlier_redaction_are_not_reused() -> None:
    secrets = Secrets({})
    secrets.learn(["load [removed b 1]", "load a@x.org"])
    assert secrets.clean("load [removed b 1]") == "load [removed b 1]"
    assert secrets.clean("load a@x.org") == "load [removed c 1]"


@pytest.mark.parametrize(
    "name",
    [
        "iteration 7",
        "token embedding",
        "Token::foo1234567",
        "pass: forward",
        "/model/layers.0/self_attn/MatMul",
        "a/b/c",
        "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNN",
        "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8",
        "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
        "void at::native::<unnamed>::CatArrayBatchedCopy<at::native::OpaqueType<2>, unsigned int, 3, 64, 64>(T1 *)",
        "triton_red_fused_native_layer_norm_12",
        "TransformerEncoderLayerWithAVeryLongCamelCaseNameAndNoDigitAtAll",
        "version 2024.2.3",
        "_fwd_kernel_0d1d2d3d4d5d6d7d8d9d10d11d12d13d14de15de16c",
        "triton_per_fused__to_copy_add_mean_mul_pow_rsqrt_view_7",
        "nvjet_sm90_tst_192x128_64x5_1x2_h_bz_coopB_bias_TNT",
        "task-loader-process-worker-12345",
        "MatMul@cuda:0",
        "std::array<c10::BFloat16, 4>",
    ],
)
def test_ordinary_name_is_kept(name: str) -> None:
    assert Secrets({}).clean(name) == name


@pytest.mark.parametrize("name", ALL)
def test_kernel_names_of_real_captures_are_kept(name: str) -> None:
    export = sqlite3.connect(f"{shared(name).as_uri()}?mode=ro&immutable=1", uri=True)
    kernels = "SELECT value FROM StringIds WHERE value LIKE '%(%' OR value LIKE '\\_Z%' ESCAPE '\\'"
    names = [value for (value,) in export.execute(kernels) if "\n" not in value]  # output of a program has line ends
    export.close()
    secrets = Secrets({})
    secrets.learn(names)
    assert [name for name in names if secrets.clean(name) != name] == []


def test_private_words_are_replaced_in_names() -> None:
    private = words_of_environment("USER=janedoe;PATH=/bin;WANDB_API_KEY=correct-horse-battery;HOSTNAME=node-17;A=b")
    assert {word for word, kind in private.items() if is_private(word, kind)} == {
        *("janedoe", "correct-horse-battery", "node-17")
    }
    secrets = Secrets({**private, "root": "host or user", "vm": "host or user"})
    cleaned = secrets.clean("janedoe runs correct-horse-battery on node-17 as root in a vm, janedoes not")
    assert re.sub(r"\[removed \w \d\]", "*", cleaned) == "* runs * on * as root in a vm, janedoes not"


def test_each_secret_has_its_own_mark() -> None:
    secrets = Secrets({})
    first, second = secrets.clean("a@x.org"), secrets.clean("b@x.org")
    assert first != second
    assert secrets.clean("a@x.org") == first
    # Names that differ only in numbers belong to the same iterations; this must stay so.
    seven, eight = secrets.clean("u7@x.org"), secrets.clean("u8@x.org")
    assert seven != eight
    assert re.sub(NUMBER, "#", seven) == re.sub(NUMBER, "#", eight)


@settings(max_examples=40)
@given(st.lists(st.sampled_from([*SECRETS.values(), "x", "_", " ", "/", "9", "-", "at::native<4>"]), max_size=5))
def test_no_pattern_matches_a_cleaned_text(parts: list[str]) -> None:
    secrets = Secrets({})
    cleaned = secrets.clean("".join(parts))
    assert Secrets({}).kind_in([cleaned]) is None


names = st.text(st.sampled_from("ab-_ 019.é"), min_size=1, max_size=12)


@settings(max_examples=40)
@given(names, names)
def test_hashing_keeps_which_names_are_equal(first: str, second: str) -> None:
    redactor = NameRedactor(Secrets({}), hashed=True)

    def without_numbers(name: str) -> str:
        return re.sub(NUMBER, "#", re.sub(r"(^|[^\w.])-\d+", r"\1#", name))

    assert (redactor.range(first) == redactor.range(second)) == (first == second)
    assert (without_numbers(redactor.range(first)) == without_numbers(redactor.range(second))) == (
        without_numbers(first) == without_numbers(second)
    )
    assert (redactor.kernel(first) == redactor.kernel(second)) == (first == second)
    assert redactor.kernel(f"ncclDevKernel_{first}").startswith("nccl_")


def test_hashing_keeps_kernels_of_deep_ep_recognisable() -> None:
    redactor = NameRedactor(Secrets({}), hashed=True)
    full = redactor.kernel("void deep_ep::intranode::dispatch<(int)8>(int4 *)")
    assert short_names(pl.Series([full])).to_list() == [redactor.kernel("dispatch")]
    assert "intranode" not in full


def test_hashing_keeps_the_library_of_a_kernel() -> None:
    redactor = NameRedactor(Secrets({}), hashed=True)
    forward, backward = (redactor.kernel(f"void at::native::{name}<float>(T1)") for name in ("tanh", "tanh_backward"))
    assert forward.startswith("void at::native::") and "tanh" not in forward
    assert "Backward" in backward and "Backward" not in forward


def test_hashed_ranges_of_libraries_differ_in_their_numbers_alone() -> None:
    redactor = NameRedactor(Secrets({}), hashed=True)
    first, second, other = map(
        redactor.range, ("aten::add, op_id = 71", "aten::add, op_id = 72", "aten::mul, op_id = 71")
    )
    assert first.endswith(" 71") and first[:-2] == second[:-2] and first != second
    assert other[:-2] != first[:-2] and re.search(LIBRARY_NAMES, first)
