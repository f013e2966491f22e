"""File names of stack frames without the parts that identify a machine or its user."""

from __future__ import annotations

import re

import polars as pl

# Everything up to the folder of installed packages, or of Python's own modules.
INSTALLED = re.compile(r"^.*[/\\](?:site|dist)-packages[/\\]")
STANDARD = re.compile(r"^.*[/\\]lib(?:64)?[/\\]python\d+\.\d+[/\\]|^.*[/\\]python\d+\.zip[/\\]", re.IGNORECASE)
# torch.profiler writes paths relative to sys.path, so that only well-known packages can be recognised as libraries.
PACKAGES = re.compile(
    r"^(?:torch|torchvision|torchaudio|torchdata|transformers|accelerate|datasets|tokenizers|timm|lightning|"
    r"pytorch_lightning|deepspeed|triton|jax|jaxlib|flax|tensorflow|keras|numpy|pandas|PIL|cv2|sklearn|scipy|"
    r"ray|dask|vllm|sglang|flashinfer|diffusers|peft|trl|safetensors|huggingface_hub|sympy|matplotlib|requests|"
    r"typing_extensions|_distutils_hack|megatron|apex|xformers|flash_attn|tqdm|wandb|json|logging|threading|multiprocessing|"
    r"concurrent|asyncio|importlib|contextlib|queue|selectors|subprocess|random|typing|functools|enum|re)(?:[/\\]|\.py$)"
)
KEPT_FOLDERS = 1  # folders in the name of a file outside the program's folder


def shown_files(paths: pl.Series, program_folders: frozenset[str]) -> tuple[list[str], list[bool]]:
    """Return the file name to show for each path, and whether it belongs to a library.

    `program_folders` holds the folders of the program's scripts: a file below one of them is named relative to it.
    """
    pairs = [_shown_file(path or "", program_folders) for path in paths.to_list()]
    return [name for name, _ in pairs], [library for _, library in pairs]


def is_library(path: str) -> bool:
    """Return whether a path belongs to an installed package, to Python, or to no file at all."""
    return not path or path.startswith("<") or any(kind.match(path) for kind in (INSTALLED, STANDARD, PACKAGES))


def folder_of(path: str) -> str:
    """Return the folder of a path, with slashes; "" if it has none."""
    return path.replace("\\", "/").rpartition("/")[0]


def _shown_file(path: str, program_folders: frozenset[str]) -> tuple[str, bool]:
    for kind in (INSTALLED, STANDARD):
        inside = kind.match(path)
        if inside:
            return path[inside.end() :].replace("\\", "/"), True
    if is_library(path):
        return path, True
    slashed = path.replace("\\", "/")
    folder = folder_of(slashed)
    while folder:
        if folder in program_folders:
            return slashed[len(folder) + 1 :], False
        folder = folder.rpartition("/")[0]
    if slashed.startswith("/") or ":" in slashed[:3]:
        return "/".join(slashed.split("/")[-1 - KEPT_FOLDERS :]), False
    return slashed, False
