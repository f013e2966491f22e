"""The intermediate that fills memory is named by its line; the same model without it has none."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from instrument.config.schema import Config, Data, Model, Training  # noqa: E402
from instrument.diagnosis.context import StageContext  # noqa: E402
from instrument.diagnosis.memory import largest_intermediate, memory_note  # noqa: E402


def context(**model: Any) -> StageContext:
    sizes: dict[str, Any] = {"layers": 1, "width": 32, "heads": 2, "vocabulary": 64, "prompt_tokens": 4}
    config = Config(
        training=Training(device="cpu", precision="fp32"),
        model=Model("mlm", **sizes | model),
        data=Data(batch=3, sequence=8, samples=6),
    )
    return StageContext.from_config(config, 1)


def test_gated_prompt_is_named_with_its_twin() -> None:
    made = context(prompt="gated")
    found = largest_intermediate(made)
    assert found is not None
    assert (found.function, found.shape, found.nbytes) == ("apply_prompt_gated", (3, 8, 4, 32), 3 * 8 * 4 * 32 * 4)
    (note,) = memory_note(found, made.config)
    assert note.startswith("Memory: apply_prompt_gated (mlm.py:")
    assert note.endswith(
        "makes the largest tensor of the forward, 12 KiB (3, 8, 4, 32), from at most 512 bytes; "
        "use --prompt gated-scatter, which adds into the result with scatter_add_."
    )


@pytest.mark.parametrize("prompt", ["gated-scatter", "vectorised", "none"])
def test_other_prompts_have_no_such_intermediate(prompt: str) -> None:
    made = context(prompt=prompt)
    assert memory_note(largest_intermediate(made), made.config) == ()


def test_compiled_model_is_not_searched() -> None:
    assert largest_intermediate(context(prompt="gated", compile="full")) is None
