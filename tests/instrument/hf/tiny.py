"""A tiny model, its data and its Trainer, made without a download."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from instrument.hf import AsyncTrainer  # noqa: E402

SAMPLES, LENGTH, VOCABULARY, BATCH = 22, 8, 32, 4
Sample = dict[str, Any]
CPU_AND_GPU = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Texts(torch.utils.data.Dataset[Sample]):
    """Seeded tokens; sample i ends in i % 3 tokens of padding."""

    def __init__(self, samples: int = SAMPLES, broken: int | None = None) -> None:
        self.samples, self.broken = samples, broken
        self.tokens = torch.randint(1, VOCABULARY, (samples, LENGTH), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        if index == self.broken:
            raise OSError(f"sample {index} is gone")
        mask = (torch.arange(LENGTH) < LENGTH - index % 3).long()
        labels = self.tokens[index].masked_fill(mask == 0, -100)
        return {"input_ids": self.tokens[index], "attention_mask": mask, "labels": labels}


class Unsized(torch.utils.data.IterableDataset[Sample]):
    """The same samples, without a length."""

    def __repr__(self) -> str:
        return "Unsized()"  # without an address: two processes name the same test

    def __init__(self, samples: int = SAMPLES) -> None:
        self.texts = Texts(samples)

    def __iter__(self) -> Iterator[Sample]:
        return (self.texts[index] for index in range(len(self.texts)))


def tiny_model() -> Any:
    """Return a model with dropout, which draws from the generator that a loader could disturb."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    config._attn_implementation = "eager"  # its backward adds in the same order every time, on a GPU too
    return transformers.GPT2LMHeadModel(config)


def trainer(folder: Path, kind: type = AsyncTrainer, device: str = "cpu", data: Any = None, **options: Any) -> Any:
    own = {name: options.pop(name) for name in ("enable_async_dataloader", "eval_dataset") if name in options}
    arguments: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": device == "cpu",
        "dataloader_pin_memory": device != "cpu",
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    args = transformers.TrainingArguments(**(arguments | options))
    if args.n_gpu > 1:
        args._n_gpu = 1  # where there are several GPUs, one process would share every batch among them
    return kind(tiny_model(), args, train_dataset=Texts() if data is None else data, **own)


def history(trained: Any) -> list[dict[str, float]]:
    """Return the log of a run without values that depend on the clock."""
    clocked = ("perf/", "train_runtime", "_per_second", "eval_runtime")
    return [
        {key: value for key, value in entry.items() if not any(word in key for word in clocked)}
        for entry in trained.state.log_history
    ]


def assert_same(one: Any, other: Any) -> None:
    assert history(one) == history(other)
    for (name, weight), (_, twin) in zip(one.model.state_dict().items(), other.model.state_dict().items(), strict=True):
        assert torch.equal(weight, twin), name


def trained(folder: Path, *args: Any, resume: Path | None = None, **options: Any) -> Any:
    made = trainer(folder, *args, **options)
    made.train(resume_from_checkpoint=None if resume is None else str(resume))
    return made
