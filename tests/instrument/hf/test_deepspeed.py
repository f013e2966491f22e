"""`instrument.hf` under a ZeRO-2 configuration of DeepSpeed, with the real package, on two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("deepspeed")

from instrument.hf import AsyncTrainer
from tests.instrument.hf.tiny import Texts, trainer

STEPS, ACCUMULATION, PROCESSES = 6, 2, 2
ZERO_2 = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2},
}
DEVICE = "cuda" if torch.cuda.device_count() >= PROCESSES else "cpu"


def train(way: str, folder: Path) -> None:
    """Train in one of several processes; the first one writes the losses."""
    made = trainer(
        folder, AsyncTrainer, DEVICE, Texts(64), max_steps=STEPS, gradient_accumulation_steps=ACCUMULATION,
        deepspeed=ZERO_2 if way == "zero" else None,
    )  # fmt: skip
    made.train()
    if made.args.process_index == 0:
        losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
        torch.save(losses, folder / f"{way}.pt")


def result(way: str, folder: Path) -> list[float]:
    command = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES))
    done = subprocess.run(
        [*command, "-m", __name__, way, str(folder)],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "DS_ACCELERATOR": DEVICE, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    found: list[float] = torch.load(folder / f"{way}.pt", weights_only=False)
    return found


def test_zero_2_has_the_losses_of_ddp(tmp_path: Path) -> None:
    zero, ddp = result("zero", tmp_path), result("ddp", tmp_path)
    assert len(zero) == STEPS
    assert zero == pytest.approx(ddp, rel=1e-5)


if __name__ == "__main__":
    train(sys.argv[1], Path(sys.argv[2]))
