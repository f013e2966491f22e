"""The words in names of ranges, threads and processes that mean that data are loaded."""

from __future__ import annotations

import re
from functools import lru_cache

WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
# Words in names of ranges, threads and processes. traceview.captures.redact keeps them, so that a redacted capture has
# the same findings. The first ones mean loading whatever else the name says.
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
    r"|pools?|enter data|exit data|data (?:ptr|pointer|type|race|region|transfer))\b"
)


@lru_cache(maxsize=4096)
def loading_words(name: str) -> str:
    """Return the words of a name that mean that data are loaded, such as "data loader"; "" if none do.

    Words count, not letters: `dataLoader` and `load_batch` have such words, `thread_pool` and `offload` have none.
    """
    words = " ".join(WORD.findall(name)).lower()
    match = LOADER.search(words) or (None if NOT_INPUT.search(words) else LOADING.search(words))
    return match[0] if match else ""
