"""Code of the catalogue runs: every snippet in Python compiles, and those of PyTorch run on the CPU where torch is."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from textwrap import indent
from typing import Any
from unittest.mock import MagicMock

import pytest

from traceview.model.program import Program
from traceview.pricing.texts import FOLDER, KINDS, read_entry, texts_for

NAMES = sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem != "shared")
PROGRAMS = {
    "training": Program("pytorch", ("pytorch",), training=True, python=True),
    "inference": Program("pytorch", ("pytorch",), training=False, python=True),
    "jax": Program("jax", ("jax",), python=True),
    "tensorflow": Program("tensorflow", ("tensorflow",), python=True),
    "onnx": Program("onnx", ("onnx",), training=False, python=True),
    "arrays": Program("cupy", ("cupy",), python=True),
    "python": Program("triton", ("triton",), python=True),
}
IN_TORCH = ("training", "inference")
NEEDS_GPUS = ("exposed_p2p", "exposed_communication")  # copies from one GPU to another, and a hook of NCCL


def snippets() -> Iterator[tuple[str, str, str]]:
    """Yield the program, the entry with its case, and the code of each snippet in Python."""
    for program, kind in PROGRAMS.items():
        for name in NAMES:
            entry = read_entry(name) or {}
            cases = [key for key, table in entry.items() if isinstance(table, dict) and key not in KINDS]
            for case in ("", *cases):
                for profiler in ("nsys", "torch.profiler"):
                    texts = texts_for(entry, case, kind, {}, profiler)
                    if texts is not None and texts.templates["code"] and not texts.templates["command"]:
                        yield program, f"{name}.{case}".rstrip("."), texts.templates["code"]


EVERY = list(dict.fromkeys(snippets()))


def in_loop(code: str) -> str:
    """Return a snippet as the body of a loop, because some leave it."""
    return f"for _ in range(1):\n{indent(code.strip(), '    ')}\n    pass\n"


@pytest.mark.parametrize(("program", "name", "code"), EVERY, ids=[f"{name} {program}" for program, name, _ in EVERY])
def test_code_compiles(program: str, name: str, code: str) -> None:
    compile(in_loop(code), f"{name} {program}", "exec")


@pytest.fixture(scope="module")
def torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return PyTorch with one rank on the CPU, and streams and events that do nothing."""
    torch = pytest.importorskip("torch")
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("store") / "ranks"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("Stream", "Event", "current_stream", "synchronize", "cudart"):
            patch.setattr(torch.cuda, name, MagicMock())
        patch.setattr(torch.Tensor, "record_stream", MagicMock())
        patch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
        yield torch
    torch.distributed.destroy_process_group()


def small_program(torch: Any) -> dict[str, Any]:
    """Return the names of a program that trains or runs a small model."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.pipelining import PipelineStage
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    x = torch.rand(4, 8)
    halves = [PipelineStage(torch.nn.Linear(8, 8), at, 2, torch.device("cpu")) for at in range(2)]
    pinned, batches = torch.empty(4, 8), [x.clone() for _ in range(4)]
    return {
        "torch": torch,
        "nn": torch.nn,
        "time": time,
        "DataLoader": torch.utils.data.DataLoader,
        "DistributedDataParallel": DistributedDataParallel,
        "fully_shard": fully_shard,
        "MixedPrecisionPolicy": MixedPrecisionPolicy,
        "mesh": init_device_mesh("cpu", (1,), mesh_dim_names=("dp",)),
        "model": model,
        "Model": lambda: torch.nn.Linear(8, 8),
        "block": torch.nn.Linear(8, 8),
        "dataset": batches,
        "loader": batches,
        "executor": ThreadPoolExecutor(1),
        "load": lambda index: batches[index],
        "index": 0,
        "compute": model,
        "batches": iter(batches),
        "requests": iter(batches),
        "step": lambda batch: model(batch).sum(),
        "stages": halves,
        "n_microbatches": 2,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "lr": 0.1,
        "device": "cpu",
        "x": x,
        "a": x,
        "b": x.T,
        "y": x,
        "example": x,
        "current": x,
        "request": x,
        "result": x,
        "host": pinned,
        "pinned": pinned,
        "copy_stream": None,
        "shape": (4, 8),
        "shapes": [(4, 8)],
        "n": 4,
        "batch": x,
        "inputs": [x, x],
        "weights": [x.T, x.T],
        "losses": [x.sum()],
        "log": lambda _value: None,
        "parts": 2,
        "rows": 4,
        "width": 3,
        "total": 8,
        "first": torch.rand(4, 3),
        "second": torch.rand(4, 5),
        "length": 2,
        "heads": 2,
        "pairs": [(0, 1), (2, 3)],
        "mask": torch.zeros(4, 4),
        "end": 3,
        "logits": x,
        "position": 1,
        "q": torch.rand(1, 2, 4, 8),
        "k": torch.rand(1, 2, 4, 8),
        "v": torch.rand(1, 2, 4, 8),
        "key": x,
        "cache": torch.zeros(4, 3, 8),
        "tokens_embedded": x[:2],
        "position_weight": x,
        "tokenizer": range(100),
        "loss": (model(x) ** 2).mean(),
        "sample_batch": x,
        "following": x,
        "gc": gc,
    }


def own_names(torch: Any, name: str, names: dict[str, Any]) -> dict[str, Any]:
    """Return what a snippet uses under a name that means something else in the others."""
    images, weight = (torch.rand(sizes) for sizes in ((2, 3, 8, 8), (4, 3, 3, 3)))
    network = names["model"]
    own: Mapping[str, dict[str, Any]] = {
        "concatenations": {
            "batch": 4,
            "cache": torch.zeros(4, 2, 3, 8),
            "key": torch.rand(4, 2, 8),
            "model": MagicMock(),
        },
        "strided_copies": {"batch": 2, "length": 2, "heads": 2, "width": 4, "q": torch.rand(2, 2, 8)},
        "synchronize": {"step": 50},
        "layout_changes": {"images": images, "model": torch.nn.Conv2d(3, 4, 3)},
        "costliest_kernel": {"x": images if "convolution" in name else names["x"], "weight": weight},
        "fp32_matrix": {"model": lambda batch: (network(batch) ** 2).mean()},
        "odd_dimensions": {"model": MagicMock()},  # of Hugging Face
    }
    return own.get(name.partition(".")[0], {})


@pytest.mark.parametrize(
    ("program", "name", "code"),
    [each for each in EVERY if each[0] in IN_TORCH],
    ids=[f"{name} {program}" for program, name, _ in EVERY if program in IN_TORCH],
)
@pytest.mark.filterwarnings("ignore")
def test_code_runs_on_the_cpu(program: str, name: str, code: str, torch: Any) -> None:
    if name in NEEDS_GPUS:
        pytest.skip("it needs two GPUs")
    names = small_program(torch)
    names |= own_names(torch, name, names)
    exec(compile(in_loop(code.replace("=...", "=2")), name, "exec"), names)
