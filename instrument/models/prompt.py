"""Prompt embeddings put among the tokens', in two forms with equal results and equal gradients.

Each row's prompt goes to positions of its own: hidden[row, positions[row, k]] = prompt[k]. The loop is what
people write first: some kernels for each assignment, and a copy of all of the gradient for each on the way
back. The other form is one scatter. Their gradients are equal to the last bit because both give every row
its own prompt and leave the sum over rows to the same operation.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

ApplyPrompt = Callable[[Tensor, Tensor, Tensor], Tensor]


def apply_prompt_loop(hidden: Tensor, prompt: Tensor, positions: Tensor) -> Tensor:
    """Replace embeddings one by one: the storm of small kernels.

    Args:
        hidden: (batch, sequence, width) embeddings; left as they are.
        prompt: (prompt tokens, width) embeddings, of the same type.
        positions: (batch, prompt tokens) int64, distinct in each row.

    Returns:
        A new tensor of hidden's shape.
    """
    tensor = hidden.clone()
    for i, row in enumerate(prompt.expand(len(hidden), *prompt.shape).unbind()):
        for k in range(len(prompt)):
            j = positions[i, k : k + 1]  # a slice, not a number: the host would wait for a number
            tensor[i, j] = row[k]
    return tensor


def apply_prompt_vectorised(hidden: Tensor, prompt: Tensor, positions: Tensor) -> Tensor:
    """Replace all embeddings at once; arguments and result are those of `apply_prompt_loop`."""
    rows = prompt.expand(len(hidden), *prompt.shape)
    return hidden.scatter(1, positions[..., None].expand_as(rows), rows)


APPLY_PROMPT: dict[str, ApplyPrompt] = {"loop": apply_prompt_loop, "vectorised": apply_prompt_vectorised}
