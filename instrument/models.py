"""The model that a run trains without a model of the user's own, a small transformer; and torch.compile for any model.

The transformer takes a batch and returns its loss, without making the host wait. It draws no random numbers in its
forward, reads no value back to the host, and has no shape that depends on a value, so a CUDA graph can capture it.
`docs/examples` has models for other data, which use its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - as torch's own documentation writes it
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from instrument.config.sections import Checkpointing, Data, Model
from instrument.errors import ConfigError

_aten = torch.ops.aten
# Expensive operations: selective checkpointing stores their results.
SAVED_OPERATIONS = [
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._scaled_mm.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
]
SAVE_SELECTED = partial(create_selective_checkpoint_contexts, SAVED_OPERATIONS)


class SelfAttention(nn.Module):
    """Self-attention without a mask: (batch, sequence, width) to the same shape."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply attention."""
        query, key, value = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        mixed = F.scaled_dot_product_attention(query, key, value)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result


class Mlp(nn.Sequential):
    """Two linear layers, 4 · width wide between them, with GELU: (..., width) to the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))


class Block(nn.Module):
    """A pre-norm transformer layer: (batch, sequence, width) to the same shape."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(model.width)
        self.attention = SelfAttention(model.width, model.heads)
        self.mlp_norm = nn.LayerNorm(model.width)
        self.mlp = Mlp(model.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply attention and MLP with residual connections."""
        tokens = tokens + self.attention(self.attention_norm(tokens))
        result: Tensor = tokens + self.mlp(self.mlp_norm(tokens))
        return result


class Stack(nn.ModuleList):
    """A sequence of blocks. With checkpointing, each block stores only its inputs and recomputes in backward.

    Selective checkpointing also stores the results of `SAVED_OPERATIONS`, so that only cheap operations run again.
    """

    def __init__(self, blocks: Iterable[nn.Module], *, checkpointing: Checkpointing | None) -> None:
        super().__init__(blocks)
        # Blocks draw no random numbers, and saving the generator state would break CUDA graph capture.
        self._options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
        if checkpointing == "selective":
            self._options["context_fn"] = SAVE_SELECTED
        self.checkpointing = checkpointing

    def forward(self, tokens: Tensor, *conditions: Tensor) -> Tensor:
        """Apply every block to tokens (batch, sequence, width); all blocks get the same conditions."""
        for block in self:
            if self.checkpointing and self.training:
                tokens = checkpoint(block, tokens, *conditions, **self._options)
            else:
                tokens = block(tokens, *conditions)
        return tokens


def encoder(model: Model) -> Stack:
    """Return a stack of `model.layers` pre-norm blocks."""
    return Stack((Block(model) for _ in range(model.layers)), checkpointing=model.checkpointing)


class Transformer(nn.Module):
    """Pre-norm encoder with learned positions that predicts one class per element of the sequence.

    The inputs are wide (4096 floats by default), so that the copy of a batch to the device takes a measurable time.
    """

    def __init__(self, model: Model, data: Data) -> None:
        super().__init__()
        self.project = nn.Linear(model.features, model.width)
        self.positions = nn.Parameter(0.02 * torch.randn(data.sequence, model.width))
        self.blocks = encoder(model)
        self.norm = nn.LayerNorm(model.width)
        self.head = nn.Linear(model.width, model.vocabulary)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mean cross-entropy, a scalar, for `inputs` of shape (batch, sequence, features)."""
        hidden = self.norm(self.blocks(self.project(batch["inputs"]) + self.positions))
        logits: Tensor = self.head(hidden)
        return F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())


def repeated_blocks(model: nn.Module) -> Iterator[nn.ModuleList]:
    """Yield the lists of blocks of a model (its ModuleLists), inner lists first."""
    # modules() yields outer modules first.
    yield from [module for module in model.modules() if isinstance(module, nn.ModuleList)][::-1]


def compile_model(model: nn.Module, settings: Model) -> nn.Module:
    """Return a model, compiled in place as `compile`, `compile_mode` and `compile_dynamic` say.

    Of equal blocks torch compiles the first one and uses its code for all. The names of weights do not change.

    Raises:
        ConfigError: `compile` is "blocks", and the model has no ModuleList.
    """
    if settings.compile is None:
        return model
    options: dict[str, Any] = {"mode": settings.compile_mode, "dynamic": settings.compile_dynamic}
    if settings.compile == "full":
        model.compile(**options)
        return model
    blocks = [block for blocks in repeated_blocks(model) for block in blocks]
    if not blocks:
        raise ConfigError("--compile blocks: the model has no nn.ModuleList of blocks; use --compile full")
    for block in blocks:
        block.compile(**options)
    return model
