"""Samples and tokens a second of a Trainer: counted without waiting for a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import torch

TOKENS_PER_S = "perf/tokens_per_s"
SAMPLES_PER_S = "perf/samples_per_s"


@dataclass(frozen=True, slots=True)
class Amount:
    """What one batch holds: samples, and tokens without padding (None where the batch has no tokens)."""

    samples: int
    tokens: int | torch.Tensor | None


def amount(batch: object, main_input: str = "input_ids") -> Amount:
    """Count a batch without waiting for a GPU.

    Args:
        batch: what the loader gave; anything but a mapping of tensors counts as nothing.
        main_input: the key of the model's main input, (samples, ...).

    Returns:
        Tokens are the ones of a two-dimensional `attention_mask`, or else the elements of an integer main
        input. They are a number for a batch in host memory, and a tensor for the mask of one that is not.
    """
    tensors = {} if not isinstance(batch, Mapping) else {k: v for k, v in batch.items() if torch.is_tensor(v)}
    main = tensors.get(main_input, next((tensor for tensor in tensors.values() if tensor.dim()), None))
    if main is None or not main.dim():
        return Amount(0, None)
    mask = tensors.get("attention_mask")
    if mask is not None and mask.dim() == 2:
        seen = mask.sum()
        return Amount(len(main), int(seen) if seen.device.type == "cpu" else seen)
    has_tokens = main_input in tensors and not main.is_floating_point()
    return Amount(len(main), main.numel() if has_tokens else None)


class Throughput:
    """Samples and tokens a second of this process, over the time that was spent on training alone."""

    def __init__(self) -> None:
        self._samples = 0
        self._tokens: int | torch.Tensor | None = None
        self._seconds = 0.0
        self._since: float | None = None

    def start(self) -> None:
        """Let the time run from now, where it does not yet."""
        if self._since is None:
            self._since = perf_counter()

    def stop(self) -> None:
        """Let no more time pass until `start`."""
        if self._since is not None:
            self._seconds += perf_counter() - self._since
            self._since = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of a block out, such as an evaluation; blocks nest."""
        ran = self._since is not None
        self.stop()
        try:
            yield
        finally:
            if ran:
                self.start()

    def add(self, counted: Amount) -> None:
        """Count one batch that is about to be trained on."""
        self._samples += counted.samples
        if counted.tokens is not None:
            self._tokens = counted.tokens if self._tokens is None else self._tokens + counted.tokens

    def take(self) -> dict[str, float]:
        """Return the rates since the last call, a second; nothing where nothing was counted.

        Waits for the GPU where tokens were counted there, which the stock data path alone does.
        """
        with self.paused():
            figures: dict[str, float] = {}
            if self._samples and self._seconds > 0:
                figures[SAMPLES_PER_S] = self._samples / self._seconds
                if self._tokens is not None:
                    figures[TOKENS_PER_S] = int(self._tokens) / self._seconds
            self._samples, self._tokens, self._seconds = 0, None, 0.0
        return figures
