"""Advice on compute: precision, fusion, attention, optimizers, layouts and shapes of kernels."""

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
        "An SM without a block idles until the last wave ends. Choose a tile or block size with which the blocks fill "
        "whole waves, split the work finer (split-K, stream-K), or launch as many blocks as fit at once and let each "
        "of them loop (a persistent kernel).",
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared);\n"
        "kernel<<<min(blocks, resident * multiProcessorCount), threads, shared>>>(...);   // with a loop over tiles",
    ),
    pytorch=Fix(
        "An SM without a block idles until the last wave ends. Choose sizes with which the tiles fill whole waves: try "
        "the next smaller batch or sequence, or widths that are multiples of 128 or 256. "
        '`torch.compile(mode="max-autotune")` and `torch.backends.cudnn.benchmark = True` try other tiles.',
        'model = torch.compile(model, mode="max-autotune")',
    ),
)
