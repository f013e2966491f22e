"""Diffusion and flow matching on the Trainer: the paths, and a model that learns its images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from docs.examples.hf_diffusion import DitTrainer, FlowTrainer  # noqa: E402
from tests.instrument.models.tiny import built  # noqa: E402


@pytest.mark.parametrize("kind", [DitTrainer, FlowTrainer])
def test_paths_lead_from_noise_to_image(kind: Any) -> None:
    image, noise = torch.full((2, 1, 2, 2), 3.0), torch.full((2, 1, 2, 2), 5.0)
    ends = [kind.path(None, image, noise, torch.full((2, 1, 1, 1), time))[0] for time in (0.0, 1.0)]
    first, last = (noise, image) if kind is FlowTrainer else (image, noise)
    torch.testing.assert_close(ends, [first, last])


@pytest.mark.parametrize("kind", [DitTrainer, FlowTrainer])
def test_model_trains_on_images_with_labels(tmp_path: Path, kind: Any) -> None:
    torch.manual_seed(0)
    model = built("diffusion").inner
    data = [{"image": torch.full((4, 32, 32), 0.5), "label": torch.tensor(number % 7)} for number in range(16)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), use_cpu=True, report_to=[], save_strategy="no", logging_steps=10, max_steps=40,
        per_device_train_batch_size=8, learning_rate=0.01, disable_tqdm=True, dataloader_pin_memory=False,
        remove_unused_columns=False,
    )  # fmt: skip
    made = kind(model=model, args=arguments, train_dataset=data)
    made.train()
    losses = [entry["loss"] for entry in made.state.log_history if "loss" in entry]
    assert losses[-1] < 0.8 * losses[0]
