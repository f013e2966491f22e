"""A masked language model, optionally with learned prompt embeddings at some positions.

A prompt replaces tokens in one of two forms with equal results and gradients: a loop, as it is often written first,
which launches several kernels per embedding, and one scatter. The gradients are bitwise equal, because both forms give
each row its own copy of the prompt and leave the sum over rows to the same operation.

Or it is added through gates, in two forms again: with an intermediate that has a row for each position and embedding,
which fills the memory and moves it twice, and with one `scatter_add_`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from instrument.config.training import Data, Model
from instrument.models.batches import IGNORED
from instrument.models.blocks import encoder


def apply_prompt_loop(hidden: Tensor, prompt: Tensor, positions: Tensor) -> Tensor:
    """Set `hidden[row, positions[row, k]] = prompt[k]` with one assignment per embedding.

    Args:
        hidden: embeddings of shape (batch, sequence, width); not changed.
        prompt: embeddings of shape (prompt tokens, width), of the same dtype.
        positions: int64 of shape (batch, prompt tokens), distinct in each row.

    Returns:
        A new tensor of the shape of `hidden`.
    """
    result = hidden.clone()
    for row, embeddings in enumerate(prompt.expand(len(hidden), *prompt.shape).unbind()):
        for k in range(len(prompt)):
            position = positions[row, k : k + 1]  # a slice: indexing with a number would make the host wait
            result[row, position] = embeddings[k]
    return result


def apply_prompt_vectorised(hidden: Tensor, prompt: Tensor, positions: Tensor) -> Tensor:
    """Do the same as `apply_prompt_loop` with one scatter."""
    rows = prompt.expand(len(hidden), *prompt.shape)
    return hidden.scatter(1, positions[..., None].expand_as(rows), rows)


def apply_prompt_gated(hidden: Tensor, prompt: Tensor, positions: Tensor) -> Tensor:
    """Add `sigmoid(hidden[row, positions[row, k]] · prompt[k]) · prompt[k]` at each position of the prompt.

    The intermediate has the shape (batch, sequence, prompt tokens, width). The arguments and the result are those of
    `apply_prompt_loop`.
    """
    gates = torch.sigmoid(hidden @ prompt.T)
    chosen = positions[:, None, :] == torch.arange(hidden.shape[1], device=hidden.device)[None, :, None]
    return hidden + ((gates * chosen)[..., None] * prompt).sum(2)


def apply_prompt_gated_scatter(hidden: Tensor, prompt: Tensor, positions: Tensor) -> Tensor:
    """Do the same as `apply_prompt_gated` with one `scatter_add_`, whose operands are as large as the prompt."""
    index = positions[..., None].expand(-1, -1, hidden.shape[2])
    gates = torch.sigmoid((hidden.gather(1, index) * prompt).sum(-1, keepdim=True))
    return hidden.clone().scatter_add_(1, index, (gates * prompt).to(hidden.dtype))


APPLY_PROMPT: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "loop": apply_prompt_loop,
    "vectorised": apply_prompt_vectorised,
    "gated": apply_prompt_gated,
    "gated-scatter": apply_prompt_gated_scatter,
}


class ApplyPrompt(nn.Module):
    """Inserts a prompt; a module, so that its cost can be measured and has a range."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.insert = APPLY_PROMPT[form]

    def forward(self, hidden: Tensor, prompt: Tensor, positions: Tensor) -> Tensor:
        """Return `hidden` with the prompt at `positions`."""
        return self.insert(hidden, prompt, positions)


class MaskedLanguageModel(nn.Module):
    """Encoder over token embeddings that predicts the masked tokens."""

    def __init__(self, model: Model, data: Data) -> None:
        super().__init__()
        self.tokens = nn.Embedding(model.vocabulary, model.width)
        self.positions = nn.Parameter(0.02 * torch.randn(data.sequence, model.width))
        self.blocks = encoder(model)
        self.norm = nn.LayerNorm(model.width)
        self.head = nn.Linear(model.width, model.vocabulary)
        self.apply_prompt = ApplyPrompt(model.prompt) if model.prompt != "none" else None
        if self.apply_prompt is not None:  # created last, so that the other weights do not depend on it
            self.prompt = nn.Parameter(0.02 * torch.randn(model.prompt_tokens, model.width))

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mean cross-entropy of the masked tokens, a scalar, for `tokens` of shape (batch, sequence)."""
        hidden: Tensor = self.tokens(batch["tokens"])
        if self.apply_prompt is not None:
            hidden = self.apply_prompt(hidden, self.prompt, batch["prompt_positions"])
        logits: Tensor = self.head(self.norm(self.blocks(hidden + self.positions)))
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)
