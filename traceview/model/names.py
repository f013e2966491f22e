"""Names: what they mean, and the regular expressions of users and settings that are searched in them.

Names of ranges, threads and processes show what loads data, and names of kernels show communication between GPUs.
`title_name` is the form of any name in titles, answers and charts; tables and tooltips have the full one.

The engine of expressions does not backtrack: an expression takes time in proportion to the length of the names. A large
one takes long for each character, so the search stops after MAX_SECONDS.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from time import monotonic

import numpy as np
import polars as pl

from traceview.errors import RequestError
from traceview.model.units import plain

MAX_TITLE_NAME = 40  # letters
ABI_TAGS = r"(?:\[abi:[^\]]*\])+"  # Numba's, which hash the types of arguments: `add[abi:v1][abi:c8tJTC_2fWg]`
# AMD's matrix kernels state all their parameters: their layouts, types and tile are a name.
TENSILE = re.compile(r"(Cijk(?:_[A-Z][a-z]{3}){2}(?:_[A-Z0-9]{1,6}){1,2})(?=_)\w*?_(MT\d+x\d+x\d+)")
QUOTED_OR_LONG = re.compile(rf"`([^`]*)`|[^\s`]{{{MAX_TITLE_NAME + 1},}}")


def kernel_title(name: str) -> str:
    """Return the short name of a kernel without the parameters of its code generator."""
    tensile = TENSILE.match(name)
    return f"{tensile[1]} {tensile[2]}" if tensile else name


def title_name(name: str) -> str:
    """Return a name as titles, answers and charts show it: on one line, of at most MAX_TITLE_NAME letters."""
    return plain(kernel_title(name), MAX_TITLE_NAME)


def with_title_names(text: str) -> str:
    """Return a text with the title_name of each long name: what is between backticks, or has no spaces."""

    def short(match: re.Match[str]) -> str:
        return title_name(match[0]) if match[1] is None else f"`{title_name(match[1])}`"

    return QUOTED_OR_LONG.sub(short, text)


WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
# Words in names of ranges, threads and processes, which traceview/captures/kept_words.txt has too. The first ones
# mean loading whatever else the name says.
LOADER = re.compile(
    r"\b(?:data ?loaders?|data ?sets?|data ?(?:iter|module|pipe)|pt data|pin memory|mini ?batch(?:es)?|get ?item"
    r"|collat(?:e|es|or|ion|ing)|augment(?:s|er|ation|ations|ing)?|tokeniz(?:e|er|ers|ation|ing)|dali)\b"
)
LOADING = re.compile(
    r"\b(?:loaders?|load(?:s|ing)?|read(?:s|ing|ers?)?|prefetch(?:er|ing)?|fetch(?:er|es|ing)?|next|samplers?"
    r"|sampl(?:e|es|ing)|pre ?process(?:ing|or)?|batch(?:es)?(?! (?:norm|mat|gemm|mul|size))|data|input pipeline"
    r"|(?:get|prepare|make|next|wait) (?:for )?(?:inputs?|images?|frames?)"
    r"|decod(?:e|er|ing) (?:images?|jpegs?|videos?|frames?|audio)|(?:images?|jpegs?|videos?|audio) decod(?:e|er|ing))\b"
)
# What is loaded or read is not the input: parameters, code, results of the GPU.
NOT_INPUT = re.compile(
    r"\b(?:weights?|models?|checkpoints?|ckpt|states?|modules?|ptx|kernels?|librar\w+|param\w*|config\w*|engines?"
    r"|plugins?|kv|cache|layers?|h d|d h|hto?d|dto?h|parallel|balanc\w*|fusion|tokens?|logits|graphs?|threads?|locks?"
    r"|pools?|enter data|exit data|data (?:ptr|pointer|type|race|region|transfer|cop(?:y|ies)))\b"
)


@lru_cache(maxsize=4096)
def loading_words(name: str) -> str:
    """Return the words of a name that mean that data are loaded, such as "data loader"; "" if none do.

    Words count, not letters: `dataLoader` and `load_batch` have such words, `thread_pool` and `offload` have none.
    """
    words = " ".join(WORD.findall(name)).lower()
    match = LOADER.search(words) or (None if NOT_INPUT.search(words) else LOADING.search(words))
    return match[0] if match else ""


# Beginnings of short names: NCCL and its relatives, custom all-reduce of vLLM and SGLang, symmetric memory of PyTorch,
# fused all-reduce of TensorRT-LLM and FlashInfer, all-to-all and expert parallelism of MoE libraries.
COMMUNICATION = (
    r"(?i)^(?:nccl|rccl|nvshmem|mscclpp|cross_device_reduce|multimem_|(?:lamport_style_)?(?:one|two)_?shot_?all_?reduce|"
    "hybridCubeMeshAllReduce|allreduce_fusion_kernel|allreduce_prototype|(?:moe_?)?all_?to_?all|"
    "notify_dispatch|cached_notify|ep_?(?:dispatch|combine)_?(?:inter|intra)_?node)"
)
# Namespaces of libraries of expert parallelism, whose kernels have ordinary short names: dispatch, combine, notify.
EXPERT_PARALLEL = r"\b(?:deep_ep|dpsk::ep|hybrid_ep)::|\b(?:internode|intranode)(?:_ll)?::"


def communicates(short: pl.Series, full: pl.Series) -> pl.Series:
    """Return which kernels communicate, from their short and full names."""
    return short.str.contains(COMMUNICATION) | full.str.contains(EXPERT_PARALLEL)


MAX_LENGTH = 1_000  # characters of an expression
MAX_SHOWN = 80  # characters of an expression in an error
MAX_SECONDS = 10.0
SEARCHED_AT_ONCE = 1 << 16  # bytes of names between two looks at the clock
REASON = re.compile(r"^error: (.*)$", re.MULTILINE)


def names_with_match(names: pl.Series, pattern: str, where: str) -> pl.Series:
    """Return the distinct names that contain a match of a regular expression.

    Raises RequestError, which begins with `where`, if it cannot be searched.
    """
    distinct = names.drop_nulls().unique(maintain_order=True)
    block = distinct.str.len_bytes().cum_sum() // SEARCHED_AT_ONCE
    edges = np.flatnonzero(np.diff(block.to_numpy(), prepend=-1, append=-1)).tolist()
    began, matches = monotonic(), [distinct.clear()]
    for first, last in pairwise(edges):
        if monotonic() - began > MAX_SECONDS:
            raise RequestError(f"{where} {_shown(pattern)} takes more than {MAX_SECONDS:.0f} s; simplify it")
        searched = distinct[first:last]
        matches.append(searched.filter(_search(searched, pattern, where)))
    return pl.concat(matches)


def _search(names: pl.Series, pattern: str, where: str) -> pl.Series:
    if len(pattern) > MAX_LENGTH:
        raise RequestError(f"{where} has {len(pattern)} characters; an expression has at most {MAX_LENGTH}")
    try:
        return names.str.contains(pattern)
    except pl.exceptions.ComputeError as error:
        reason = REASON.findall(str(error)) or ["it is too large"]
        raise RequestError(
            f"{where} {_shown(pattern)} is not a regular expression that can be searched ({reason[-1]}); put a "
            "backslash before a character with a special meaning, and use neither look-around nor backreferences"
        ) from None


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= MAX_SHOWN else f"{pattern[:MAX_SHOWN]}…")


def with_ascii_classes(pattern: str) -> str:
    """Return a pattern of polars whose classes hold ASCII alone: those of Unicode take most of the time of a search."""
    for sign, own in ((r"\w", "[0-9A-Za-z_]"), (r"\d", "[0-9]"), (r"\b", r"(?-u:\b)")):
        pattern = pattern.replace(sign, own)
    return pattern


# The sign of a number, which a dash inside a word is not, and what numbers are replaced by, in this order.
SIGN = r"(^|[^\w.])-(\d)", "${1}${2}"
NUMBERS = (SIGN, (r"#(\d)", "${1}"), (r"(^|[^A-Za-z\d])\d+", "${1}#"), (r"\d+([^A-Za-z\d]|$)", "#${1}"))


def fold_numbers(names: pl.Series) -> pl.Series:
    """Replace numbers with `#`: `iteration 7`, `iteration -3` and `iteration #7` become `iteration #`, `h2d` stays."""
    for pattern, by in NUMBERS:
        names = names.str.replace_all(pattern, by)
    return names
