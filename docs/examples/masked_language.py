r"""A masked language model, optionally with learned prompt embeddings at some positions, in twin forms.

    cd docs/examples
    python -m instrument.train --model masked_language:plain --data masked_language:Tokens --loss masked_language:loss
    python -m instrument.train --model masked_language:vectorised --data masked_language:PromptTokens \
        --loss masked_language:loss

A prompt replaces tokens in one of two forms with equal results and gradients: a loop, as it is often written first,
which launches several kernels per embedding, and one scatter. The gradients are bitwise equal, because both forms give
each row its own copy of the prompt and leave the sum over rows to the same operation.

Or it is added through gates, in two forms again: `gated`, with an intermediate that has a row for each position and
embedding, which fills the memory and moves it twice, and `gated_scatter`, with one `scatter_add_`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.data import Dataset

from instrument import Config
from instrument.data import generator_for
from instrument.models import encoder

IGNORED = -100  # the default ignore_index of torch's cross_entropy
MASK = 0  # the mask token; data tokens start at 1
MASKED_SHARE = 0.15
PROMPT_LENGTH = 16  # tokens


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
    "gated_scatter": apply_prompt_gated_scatter,
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
    """Encoder over token embeddings that predicts the masked tokens. Its sizes are those of the run."""

    def __init__(self, config: Config, form: str | None = None) -> None:
        super().__init__()
        model = config.model
        self.tokens = nn.Embedding(model.vocabulary, model.width)
        self.positions = nn.Parameter(0.02 * torch.randn(config.data.sequence, model.width))
        self.blocks = encoder(model)
        self.norm = nn.LayerNorm(model.width)
        self.head = nn.Linear(model.width, model.vocabulary)
        self.apply_prompt = ApplyPrompt(form) if form else None
        if form:  # created last, so that the other weights do not depend on it
            self.prompt = nn.Parameter(0.02 * torch.randn(PROMPT_LENGTH, model.width))

    def forward(self, tokens: Tensor, prompt_positions: Tensor | None = None) -> Tensor:
        """Map tokens of shape (batch, sequence) to logits of shape (batch, sequence, vocabulary)."""
        hidden: Tensor = self.tokens(tokens)
        if self.apply_prompt is not None:
            hidden = self.apply_prompt(hidden, self.prompt, prompt_positions)
        logits: Tensor = self.head(self.norm(self.blocks(hidden + self.positions)))
        return logits


plain = MaskedLanguageModel
loop, vectorised, gated, gated_scatter = (partial(MaskedLanguageModel, form=form) for form in APPLY_PROMPT)


class Tokens(Dataset[Mapping[str, Tensor]]):
    """Sequences that count up from a random token by a random step, so that the others predict a masked token.

    15% of the tokens, at least one, become MASK; `labels` holds their values. The positions of a prompt are never
    masked, because the prompt changes their embeddings. A sample depends on the seed and its index only.
    """

    prompts = 0

    def __init__(self, config: Config) -> None:
        self.samples, self.seed = config.data.samples, config.training.seed
        self.sequence, self.vocabulary = config.data.sequence, config.model.vocabulary

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Mapping[str, Tensor]:
        generator = generator_for(self.seed, index)
        start = torch.randint(self.vocabulary - 1, (), generator=generator)
        step = torch.randint(1, 4, (), generator=generator)
        tokens = (start + step * torch.arange(self.sequence)) % (self.vocabulary - 1) + 1
        order = torch.randperm(self.sequence, generator=generator)
        count = max(1, round(MASKED_SHARE * (self.sequence - self.prompts)))
        masked = order[self.prompts : self.prompts + count]
        labels = torch.full_like(tokens, IGNORED)
        labels[masked] = tokens[masked]
        sample = {"tokens": tokens.index_fill(0, masked, MASK), "labels": labels}
        return sample | {"prompt_positions": order[: self.prompts].sort().values} if self.prompts else sample


class PromptTokens(Tokens):
    """`Tokens` with the positions of a prompt."""

    prompts = PROMPT_LENGTH


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean cross-entropy of the masked tokens."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    return F.cross_entropy(model(**inputs).flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)


# Micro-batches weigh by their masked tokens.
loss.count = lambda batch: (batch["labels"] != IGNORED).sum()  # type: ignore[attr-defined]
