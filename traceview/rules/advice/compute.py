"""Advice on compute: precision, fusion, attention, optimizers, layouts, shapes, and kernels that move data."""

from __future__ import annotations

from traceview.pricing.fixes import Fix, Fixes

FP32_MATRIX = Fixes(
    cuda=Fix(
        "Let the library use tensor cores: TF32 keeps FP32's range with 10-bit mantissas, FP16 and bfloat16 are about "
        "twice as fast again. Check the results against FP32.",
        "cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);",
    ),
    pytorch=Fix(
        "TF32 keeps FP32's range with 10-bit mantissas and needs one line. Autocast to bfloat16 is often faster still "
        "and halves the activations; `traceview whatif` predicts both. Check the loss curve once.",
        'torch.set_float32_matmul_precision("high")          # TF32 for matrix products\n'
        "torch.backends.cudnn.allow_tf32 = True               # and for convolutions\n"
        'with torch.autocast("cuda", torch.bfloat16): loss = model(batch)   # or bfloat16',
    ),
    jax=Fix(
        "JAX computes in the precision of its inputs. Use bfloat16 arrays, or allow TF32.",
        'jax.config.update("jax_default_matmul_precision", "tensorfloat32")',
    ),
    inference=Fix(
        "Half precision needs one line and is about twice as fast as TF32, which keeps FP32's range with 10-bit "
        "mantissas; `traceview whatif` predicts both. Compare a few outputs.",
        'with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16): output = model(batch)\n'
        '# or torch.set_float32_matmul_precision("high")         # TF32',
    ),
    tensorrt=Fix("Build the engine with TF32, FP16 or INT8 allowed (`trtexec --fp16`)."),
    julia=Fix("Allow TF32 in CUBLAS, or use Float16 arrays.", "CUDA.math_mode!(CUDA.FAST_MATH)"),
)
FP32_ON_OLD_GPU = Fixes(
    remedy="Use FP16, which the tensor cores of this GPU compute in.",
    cuda=Fix(
        "The tensor cores of this GPU compute in FP16 only. Convert the inputs, and add up in FP32. Check the results.",
        "cublasGemmEx(handle, ..., CUDA_R_16F, ..., CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);",
    ),
    pytorch=Fix(
        "The tensor cores of this GPU compute in FP16 only. Use autocast with a scaled loss, and check the loss curve.",
        'scaler = torch.amp.GradScaler("cuda")\n'
        'with torch.autocast("cuda", torch.float16): loss = model(batch)\n'
        "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
    ),
    inference=Fix(
        "The tensor cores of this GPU compute in FP16 only. Compare a few outputs.",
        'with torch.inference_mode(), torch.autocast("cuda", torch.float16): output = model(batch)',
    ),
    tensorrt=Fix("Build the engine with FP16 or INT8 allowed (`trtexec --fp16`)."),
)
ATTENTION = Fixes(
    cuda=Fix(
        "Compute attention in one kernel that never stores the weights (FlashAttention, cuDNN's fused attention). It "
        "reads and writes much less memory."
    ),
    pytorch=Fix(
        "`scaled_dot_product_attention` computes it in one kernel and never stores the weights. In Hugging Face "
        'models it is `attn_implementation="sdpa"`.',
        "out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
    ),
)
OPTIMIZER = Fixes(
    cuda=Fix("Update all parameters in a few kernels instead of several kernels for each tensor."),
    pytorch=Fix(
        "The optimizer reads and writes every parameter many times. `fused=True` does it in one pass and a few "
        "launches; the update is the same up to rounding.",
        "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)",
    ),
    inference=Fix("Update all tensors in a few kernels instead of several kernels for each tensor."),
)
LAYOUT = Fixes(
    cuda=Fix("Keep images in NHWC layout: tensor-core convolutions need it, and converting each time costs memory."),
    pytorch=Fix(
        "Tensor-core convolutions work on NHWC images, and cuDNN converts around each of them. Convert model and "
        "input once; batch normalization becomes faster, too.",
        "model = model.to(memory_format=torch.channels_last)\nimages = images.to(memory_format=torch.channels_last)",
    ),
)
ODD_DIMENSIONS = Fixes(
    cuda=Fix(
        "A dimension of these products is odd or only a multiple of 2, so slower kernels run. Pad it to a multiple "
        "of 8 (of 16 in FP8); for a vocabulary, 64 is usual."
    ),
    pytorch=Fix(
        "A dimension of these products is odd or only a multiple of 2, so slower kernels run. Usually it is the "
        "vocabulary: pad it to a multiple of 64. `torch.compile` pads by itself.",
        "model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64)",
    ),
)
SMALL_PRODUCTS = Fixes(
    cuda=Fix(
        "Each product leaves most SMs idle and pays its own launch. Compute them as one batched or grouped product.",
        "cublasGemmStridedBatchedEx(handle, ...);",
    ),
    pytorch=Fix(
        "Each product leaves most SMs idle and pays its own launch. Stack the inputs and compute one batched product; "
        "experts of different sizes need a grouped product (`torch._grouped_mm`).",
        "out = torch.bmm(torch.stack(inputs), torch.stack(weights))",
    ),
    jax=Fix(
        "Each product pays its own launch. Batch them with `jax.vmap`.", "out = jax.vmap(jnp.matmul)(inputs, weights)"
    ),
)
CHAINS = Fixes(
    cuda=Fix("Each of these kernels reads and writes its tensors once. Fuse neighbours into one kernel."),
    pytorch=Fix(
        "Each of these kernels reads and writes its tensors once; fused, a chain takes about as long as its longest "
        "kernel. `torch.compile` fuses them. Compile the blocks that repeat if the whole model breaks.",
        "model = torch.compile(model)",
    ),
)
SMALL_GRID = Fixes(
    cuda=Fix(
        "A grid with fewer blocks than the GPU has SMs leaves the other SMs idle. Split the work over more blocks "
        "(smaller tiles, one block for each row, split-K), process several inputs in one launch, or run independent "
        "kernels side by side on other streams.",
        "int blocks = (n + threads - 1) / threads;   // at least as many as multiProcessorCount\n"
        "kernel<<<blocks, threads, 0, stream>>>(...);",
    ),
    pytorch=Fix(
        "A grid with fewer blocks than the GPU has SMs leaves the other SMs idle. Use a larger batch or longer "
        "inputs, combine small tensors, or run independent work on another stream."
    ),
    openacc=Fix(
        "The loop gives too little parallel work: collapse nested loops, or raise `num_gangs`.",
        "#pragma acc parallel loop collapse(2)",
    ),
    openmp=Fix(
        "The loop gives too little parallel work: use all teams of the device and collapse nested loops.",
        "#pragma omp target teams distribute parallel for collapse(2)",
    ),
    julia=Fix(
        "The launch has too few blocks. Give each thread less work.", "@cuda threads=256 blocks=cld(n, 256) kernel(x)"
    ),
)
TAIL_WAVE = Fixes(
    cuda=Fix(
        "SMs with one block less idle until the others end. Choose a tile or block size with which the number of "
        "blocks is a multiple of the SMs, split the work finer (split-K, stream-K), or launch as many blocks as fit at "
        "once and let each of them loop (a persistent kernel).",
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared);\n"
        "kernel<<<min(blocks, resident * multiProcessorCount), threads, shared>>>(...);   // with a loop over tiles",
    ),
    pytorch=Fix(
        "SMs with one block less idle until the others end. Choose sizes with which the tiles divide evenly among the "
        "SMs: try the next smaller batch or sequence, or widths that are multiples of 128 or 256. "
        '`torch.compile(mode="max-autotune")` and `torch.backends.cudnn.benchmark = True` try other tiles.',
        'model = torch.compile(model, mode="max-autotune")',
    ),
)

# Kernels that move, convert or set data. The first two are for programs without PyTorch, and for those that do not
# train.
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
