"""Asynchronous batches for `transformers.Trainer`.

    from instrument.hf import AsyncTrainer, AsyncTrainerMixin

    AsyncTrainer(model, args, train_dataset=data).train()
    AsyncTrainer(model, args, train_dataset=data, enable_async_dataloader=False).train()  # to compare

    class MyTrainer(AsyncTrainerMixin, SFTTrainer): ...  # with any other Trainer

Batches are still read by accelerate's loader, so resuming, gradient accumulation, datasets without a length, several
processes and evaluation work as in the stock Trainer. Two settings make the host wait for the GPU:
`logging_nan_inf_filter=True`, the default, after every micro-batch, and `logging_steps=1` after every step. Works with
transformers 4.57 and 5.
"""

from __future__ import annotations

try:
    from transformers import Trainer

    from instrument.hf.mixin import AsyncTrainerMixin
except ModuleNotFoundError as missing:
    package = str(missing.name).partition(".")[0]
    if package not in {"transformers", "accelerate"}:
        raise
    raise ModuleNotFoundError(
        f"instrument.hf needs {package}: pip install transformers accelerate", name=package
    ) from missing

__all__ = ["AsyncTrainer", "AsyncTrainerMixin"]


class AsyncTrainer(AsyncTrainerMixin, Trainer):  # type: ignore[misc, unused-ignore]
    """`transformers.Trainer` with `AsyncTrainerMixin`: copies batches while the GPU computes."""
