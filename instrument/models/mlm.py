"""A masked language model, with learned prompt embeddings among its tokens' where the prompt is not "none"."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from instrument.config.schema import Data, Model
from instrument.models.batches import IGNORED
from instrument.models.blocks import encoder
from instrument.models.prompt import APPLY_PROMPT


class MaskedLanguageModel(nn.Module):
    """Encoder over token embeddings that says what stood where a token was masked."""

    def __init__(self, model: Model, data: Data) -> None:
        super().__init__()
        self.tokens = nn.Embedding(model.vocabulary, model.width)
        self.positions = nn.Parameter(0.02 * torch.randn(data.sequence, model.width))
        self.blocks = encoder(model)
        self.norm = nn.LayerNorm(model.width)
        self.head = nn.Linear(model.width, model.vocabulary)
        self.apply_prompt = APPLY_PROMPT.get(model.prompt)
        if self.apply_prompt is not None:  # last, so that the other weights do not depend on it
            self.prompt = nn.Parameter(0.02 * torch.randn(model.prompt_tokens, model.width))

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the mean cross-entropy, a scalar, over the masked tokens of (batch, sequence) tokens."""
        hidden: Tensor = self.tokens(batch["tokens"])
        if self.apply_prompt is not None:
            hidden = self.apply_prompt(hidden, self.prompt, batch["prompt_positions"])
        logits: Tensor = self.head(self.norm(self.blocks(hidden + self.positions)))
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)
