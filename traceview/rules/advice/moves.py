"""Advice on kernels that move, convert or set data."""

from __future__ import annotations

from traceview.pricing.fixes import Fix, Fixes

# For programs without PyTorch, and for those that do not train.
WRITE_FIRST = Fix("Let the first kernel write its results instead of setting the memory to zero and adding to it.")
UPDATE_ROWS = Fix("Update only the rows that occur, in one kernel, instead of the whole table.")

ZEROED_GRADIENTS = Fixes(
    cuda=WRITE_FIRST,
    pytorch=Fix(
        "Each fill writes a gradient that the next backward pass adds to. With `set_to_none=True`, the default since "
        "PyTorch 2.0, the fills are gone, and the backward pass writes the gradient instead of adding to it.",
        "optimizer.zero_grad(set_to_none=True)",
    ),
    inference=WRITE_FIRST,
)
EMBEDDING_GRADIENTS = Fixes(
    cuda=UPDATE_ROWS,
    pytorch=Fix(
        "The backward pass of `nn.Embedding` sorts the indices, adds up equal ones and writes a gradient for the whole "
        "table. For large tables use sparse gradients or FBGEMM's fused embeddings, which update only the rows that "
        "occur. For positions and token types, add a slice of a parameter instead of an embedding.",
        "table = nn.EmbeddingBag(rows, width, sparse=True)      # with torch.optim.SparseAdam or SGD\n"
        "hidden = tokens_embedded + position_weight[:length]     # positions: no embedding, no sort",
    ),
    inference=UPDATE_ROWS,
)
CASTS = Fixes(
    cuda=Fix("Keep tensors in one precision, or convert inside the kernels that read them."),
    pytorch=Fix(
        "Autocast converts weights and activations in each iteration. `torch.compile` fuses the conversions into their "
        "neighbours. Avoid `.float()` and FP32 constants between operations, and keep the weights in bfloat16 if the "
        "optimizer keeps FP32 copies.",
        "model = torch.compile(model)",
    ),
    inference=Fix(
        "The weights do not change, and autocast converts them again in each iteration: the same work every time. "
        "Convert the model once, and run it without autocast.",
        "model = model.to(torch.bfloat16).eval()",
    ),
)
CONCATENATIONS = Fixes(
    cuda=Fix("Allocate the result once and let each kernel write its part."),
    pytorch=Fix(
        "`torch.cat` copies all of its inputs each time. Allocate the result once and write parts into slices of it. "
        "In the backward pass it comes from `split` and `chunk`; `torch.compile` fuses these.",
        "out = x.new_empty(batch, total)\nout[:, :width] = first\nout[:, width:] = second",
    ),
    inference=Fix(
        "`torch.cat` copies all of its inputs each time; a cache of keys and values that grows by one token copies the "
        "whole cache for each token. Allocate it once, and write each token into its place.",
        'model.generation_config.cache_implementation = "static"     # Hugging Face\n'
        "cache[:, :, position] = key                                  # or by hand",
    ),
)
STRIDED_COPIES = Fixes(
    cuda=Fix("Let kernels read tensors in the order in which they are stored."),
    pytorch=Fix(
        "`contiguous`, `reshape` after `permute`, and `expand` before a product copy a tensor to change the order of "
        "its elements. Choose the order once (scaled_dot_product_attention accepts strides), or let `torch.compile` "
        "fuse the copies.",
        "q = q.view(batch, length, heads, width).transpose(1, 2)     # a view; no .contiguous()",
    ),
)
