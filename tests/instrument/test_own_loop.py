"""The two loops of docs/trainer.md give the same losses."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import torch

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "trainer.md"
SETUP = "model, optimizer, loader, loss_function = ..."


def loops() -> list[str]:
    """Return the code of the document's two loops, in its order."""
    return [code for code in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL) if SETUP in code]


def run(code: str) -> list[tuple[int, float]]:
    """Run a loop on a small regression, and return the steps and losses that it prints."""
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1)
    batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(5)]
    given = {
        "epochs": 3,
        "given": (model, torch.optim.SGD(model.parameters(), lr=0.1), batches, torch.nn.functional.mse_loss),
    }
    names: dict[str, Any] = dict(given)
    printed = io.StringIO()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with contextlib.redirect_stdout(printed):
        exec(code.replace(SETUP, SETUP.replace("...", "given")).replace('"cuda"', repr(device)), names)
    *lines, last = printed.getvalue().splitlines()
    if last.startswith("["):  # what is printed after the loop
        lines += [f"{step} {figures['loss']}" for step, figures in eval(last)]
    else:
        lines.append(last)
    return [(int(step), float(loss)) for step, loss in (line.split() for line in lines)]


def test_own_loop_gives_the_losses_of_the_plain_loop() -> None:
    plain, own = loops()
    assert len(run(plain)) == 15
    assert run(own) == run(plain)


def test_own_loop_adds_at_most_thirty_lines() -> None:
    plain, own = ([line for line in code.splitlines() if line.strip()] for code in loops())
    assert len(set(own) - set(plain)) <= 30
