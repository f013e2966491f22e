"""The private words of a capture: its host, its user, and the values of environment variables."""

from __future__ import annotations

import html
import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

from traceview.redact.keep import HOST_OR_USER_SETTINGS
from traceview.redact.shapes import values_that_are_set

HOST_OR_USER, VARIABLE, OTHER_VARIABLE = "host or user", "value of an environment variable", "value of another variable"
# nsys writes `NAME="value"`, `NAME=value;NAME=value` and, as the kernel does, `NAME=value` with NUL bytes between.
_VARIABLE = re.compile(r"(?:^|(?<=[;\n\0]))([A-Za-z_]\w{0,100})=")
_SENSITIVE = re.compile(r"TOKEN|KEY|SECRET|PASS|PWD$|CRED|AUTH|WEBHOOK|DSN|COOKIE|_PW\b|_URL$|_URI$", re.IGNORECASE)
_USER_OR_HOST = re.compile(r".*(?:USER|LOGNAME|USERNAME|HOST|HOSTNAME|ACCOUNT|NODELIST|NODENAME|ADDR)")
_PUBLIC_FOLDER = re.compile(r"/(?:usr|s?bin|lib\w*|etc|proc|dev|sys)\b")
_FOLDER = re.compile(r"(?:HOME|PWD|OLDPWD|USERPROFILE|HOMEPATH|\w+_HOME)$")
# Words that do not identify anybody. A value made of them alone stays, because names of kernels and settings have them.
PUBLIC = frozenset(
    re.findall(
        r"\S+",
        "root user users localhost ubuntu debian admin none unknown python python3 true false yes no on off auto "
        "default all info warn warning error debug trace verbose local home work workspace app apps src bin lib "
        "lib64 usr opt tmp var etc share include sbin site packages c en us utf posix xterm 256color screen linux "
        "gnu x86 64 amd64 arm64 aarch64 bash zsh sh nvidia cuda cudnn cublas cutlass cute nccl rccl mpi openmpi gpu "
        "gpus cpu cpus compute utility graphics video display lazy eager spawn fork ampere hopper turing volta ada "
        "blackwell a100 h100 h200 v100 l40s sm80 sm90 tensor tensorop xmma wgmma gemm sgemm hgemm kernel kernels "
        "native elementwise vectorized reduce softmax norm layer layers flash attn attention fmha fused adam adamw "
        "sgd optimizer forward backward loss step steps iteration epoch batch data dataset loader load train "
        "training trainer model models test eval inference half float float16 float32 bfloat16 bf16 fp16 fp32 fp8 "
        "tf32 int8 triton torch pytorch torchrun tensorflow jax xla inductor dynamo transformers transformer resnet "
        "bert gpt gpt2 llama megatron deepspeed memcpy memset copy stream streams graph nvtx nsys rank world size "
        "flashinfer vllm sglang xformers apex fbgemm cub thrust cupy numba kokkos raja onnx onnxruntime nvinfer "
        "tensorrt trt deep ep nvshmem mscclpp multimem deepgemm cudf rapids magma myelin static dynamic legacy "
        "allreduce main worker workers thread threads noninteractive expandable segments removed ",
    )
)


def words_of_settings(settings: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the words in settings of a capture, which are names and values, that may be private, with their kinds."""
    words: dict[str, str] = {}
    arguments = []
    for name, value in settings:
        if "ENVIRONMENT" in name.upper():
            words |= words_of_environment(value)
        elif (key := name.rsplit(":", 1)[-1]) in HOST_OR_USER_SETTINGS:
            words |= _forms_of_host(unquoted(value))
        elif key == "WORKING_DIR":
            words |= words_of_environment(f"PWD={value}")
        elif key.startswith("ARGUMENT_"):
            arguments.append(value)
    return words | dict.fromkeys(values_that_are_set("\0".join(arguments)), VARIABLE)


def words_of_environment(variables: str) -> dict[str, str]:
    """Return the values of environment variables, with their kinds.

    A `;`, a line end or a NUL separates variables. Quotes around a value do not belong to it.
    """
    words: dict[str, str] = {}
    starts = list(_VARIABLE.finditer(variables))
    ends = [*(match.start() for match in starts[1:]), len(variables)]
    for match, end in zip(starts, ends[: len(starts)], strict=True):
        name, value = match[1].upper(), unquoted(variables[match.end() : end].rstrip(";\n\0"))
        if _USER_OR_HOST.fullmatch(name):
            words |= _forms_of_host(value)
        elif _SENSITIVE.search(name):
            words[value] = VARIABLE
        else:
            items = [item for item in re.split(r"[\s:;,=]+", value) if not _PUBLIC_FOLDER.match(item)]
            words = dict.fromkeys((value, *items, *map(last_part, items)), OTHER_VARIABLE) | words
        if _FOLDER.fullmatch(name) and is_private(last_part(value), HOST_OR_USER):
            words[last_part(value)] = HOST_OR_USER
    return words


def _forms_of_host(value: str) -> dict[str, str]:
    return dict.fromkeys((value, value.partition(".")[0]), HOST_OR_USER)


def last_part(path: str) -> str:
    """Return the part of a path after its last slash or backslash; those at its end do not count."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def unquoted(value: str) -> str:
    """Return a value without spaces and quotes around it."""
    value = value.strip()
    while len(value) > 1 and value[0] == value[-1] and value[0] in "\"'`":
        value = value[1:-1]
    return value


def is_private(word: str, kind: str) -> bool:
    """Return whether a word may identify somebody: it is long enough, and neither a number nor made of PUBLIC words."""
    parts = re.findall(r"[^\W_]+", word.lower())
    if all(part in PUBLIC or (part.isdigit() and len(part) < 7) for part in parts):
        return False
    return len(word) >= {HOST_OR_USER: 3, VARIABLE: 4}.get(kind, 6)


def written_forms(word: str) -> Iterator[str]:
    """Yield a word as texts may hold it: plain, and as JSON, an address, HTML, a shell and base64 write it."""
    yield word
    yield json.dumps(word)[1:-1]
    yield json.dumps(word, ensure_ascii=False)[1:-1]
    yield quote(word, safe="")
    yield quote(word)
    yield quote_plus(word)
    yield html.escape(word)
    yield html.escape(word, quote=False)
    yield word.replace("'", "'\\''")
    yield repr(word)[1:-1]
    if len(word) >= 8:
        yield b64encode(word.encode("utf-8", "replace")).decode().rstrip("=")


def pattern_of_words(words: Iterable[str], kinds: Mapping[str, str]) -> str:
    """Return a pattern of private words, longest first. All but a long value of a key must be words of their own."""
    patterns = []
    for word in sorted(words, key=len, reverse=True):
        whole = kinds[word] != VARIABLE or len(word) < 8
        before = "(?<![A-Za-z0-9])" if whole and word[0].isalnum() else ""
        after = "(?![A-Za-z0-9])" if whole and word[-1].isalnum() else ""
        patterns.append(f"{before}{re.escape(word)}{after}")
    return f"(?i:{'|'.join(patterns)})"
