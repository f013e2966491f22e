"""The intermediate that fills memory is named by its line; the same model without it has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from instrument.config.schema import Config, Data, Model, Training  # noqa: E402
from instrument.diagnosis.forward import largest_intermediate, memory_note  # noqa: E402
from instrument.diagnosis.stages import StageContext  # noqa: E402

CODE = "docs.examples.masked_language"


def context(prompt: str, **model: Any) -> StageContext:
    sizes: dict[str, Any] = {"layers": 1, "width": 32, "heads": 2, "vocabulary": 64}
    config = Config(
        training=Training(device="cpu", precision="fp32"),
        model=Model(f"{CODE}:{prompt}", f"{CODE}:loss", **sizes | model),
        data=Data(Path(f"{CODE}:{'Tokens' if prompt == 'plain' else 'PromptTokens'}"), batch=3, sequence=20, samples=6),
    )
    return StageContext.from_config(config)


def test_gated_prompt_is_named() -> None:
    largest = largest_intermediate(context("gated"))
    assert largest is not None
    assert (largest.function, largest.shape) == ("apply_prompt_gated", (3, 20, 16, 32))
    assert largest.nbytes == 3 * 20 * 16 * 32 * 4
    (note,) = memory_note(largest)
    assert note.startswith("Memory: apply_prompt_gated (masked_language.py:")
    assert note.endswith(
        "makes the largest tensor of the forward, 120 KiB (3, 20, 16, 32), from at most 3.8 KiB; add into the result "
        "without it (scatter_add_, index_add_, einsum), or compile the model."
    )


@pytest.mark.parametrize("prompt", ["gated_scatter", "vectorised", "plain"])
def test_other_prompts_have_no_such_intermediate(prompt: str) -> None:
    assert memory_note(largest_intermediate(context(prompt))) == ()


def test_compiled_model_is_not_searched() -> None:
    assert largest_intermediate(context("gated", compile="full")) is None
