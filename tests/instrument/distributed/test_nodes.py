"""Two groups of processes, as torchrun starts them on two machines, train as one group of two processes does."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

FLAGS = (
    *("--device", "cpu", "--layers", "1", "--width", "16", "--heads", "2", "--features", "8", "--vocabulary", "32"),
    *("--batch", "2", "--sequence", "4", "--samples", "32", "--steps", "6", "--monitor-every", "1", "--no-progress"),
    *("--checkpoint-folder", "kept", "--jsonl", "run.jsonl"),
)


def free_port() -> int:
    """Return a port that no connection gets by chance: those begin at 32768."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


def start(folder: Path, *torchrun: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", *torchrun, "-m", "instrument.train", *FLAGS]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def finished(runs: Sequence[subprocess.Popen[str]]) -> list[str]:
    texts = [run.communicate(timeout=300)[1] for run in runs]
    assert [run.returncode for run in runs] == [0 for _run in runs], texts
    return texts


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "run.jsonl").read_text().splitlines() if '"loss"' in line]


def test_two_nodes_train_as_two_processes_of_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    port = f"--master-port={free_port()}"
    finished([start(one, "--nproc-per-node=2", "--master-addr=127.0.0.1", port)])
    nodes = ("--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={free_port()}")
    first, second = finished([start(two, *nodes, f"--node-rank={rank}") for rank in range(2)])
    assert losses(two) == losses(one) and len(losses(two)) == 6
    assert "2 processes (DDP)" in first and "done at step 6" in first
    assert "GPUs are" not in first  # processes on a CPU share its cores
    assert "instrument: " not in second  # the first rank alone writes messages
    assert "the same command with --checkpoint-folder kept --resume" in first
    assert len(list((two / "kept").glob("*-step-6.pt"))) == 1
