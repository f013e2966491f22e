"""Advice on copies from and to pageable memory."""

from __future__ import annotations

from traceview.pricing.fixes import Fix, Fixes
from traceview.rules.advice.copies import (
    ACC_ASYNC_CODE,
    CUPY_CODE,
    DOUBLE_BUFFER_CODE,
    JAX_PREFETCH_CODE,
    OMP_ASYNC_CODE,
    SEND_LESS,
    TORCH_PREFETCH_CODE,
)

START_UP_COPIES = Fixes(
    remedy="It occurs once: pin the input, or create it on the GPU.",
    cuda=Fix(
        "This cost occurs once, before the loop. If start-up time matters: read the input into pinned memory "
        "(`cudaMallocHost`), or copy it in pieces while it is read."
    ),
    pytorch=Fix(
        "This cost occurs once, before the loop (parameters and buffers move to the GPU). If start-up time matters: "
        "load the checkpoint with `map_location=device`, or build the model directly on the device.",
        "with torch.device(device):\n    model = Model()",
    ),
    jax=Fix(
        "This cost occurs once, before the loop (parameters move to the GPU). If start-up time matters: create them on "
        "the device, inside `jax.jit`."
    ),
    openacc=Fix(
        "This cost occurs once, before the loop. If start-up time matters: initialise arrays on the GPU (`create` "
        "instead of `copyin`)."
    ),
    openmp=Fix(
        "This cost occurs once, before the loop. If start-up time matters: initialise arrays on the GPU (`map(alloc:)` "
        "instead of `map(to:)`)."
    ),
)
PAGEABLE_LARGE = Fixes(
    cuda=Fix(
        "Copy from pinned memory with `cudaMemcpyAsync` on a second stream, one part ahead, so that the copy runs "
        "beside the kernels of the part before it. All three are needed: pinning alone makes the copy faster but "
        "leaves it exposed, and pinning for each copy costs more than it gives. "
        f"A step {SEND_LESS}, or keep the data on the GPU.",
        DOUBLE_BUFFER_CODE,
    ),
    pytorch=Fix(
        "Pin the batches, copy them on a separate stream and prefetch one batch, so that the copy runs beside the "
        "previous step's kernels. All three are needed: pinning alone makes the copy faster but leaves it exposed, and "
        "pinning each batch in the loop (`batch.pin_memory()`) was slower in measurements. The step must compute at "
        "least as long as it copies.",
        "loader = DataLoader(dataset, num_workers=4, pin_memory=True, persistent_workers=True)\n"
        f"copy_stream = torch.cuda.Stream()\n{TORCH_PREFETCH_CODE}",
    ),
    inference=Fix(
        "Keep two pinned buffers for inputs and for outputs, allocated once, and copy on a separate stream: the next "
        "input goes in and the last output comes out while this one computes. Pinning alone makes the copy faster but "
        f"leaves it exposed. A request {SEND_LESS}.",
        """pinned.copy_(request)                             # torch.empty(shape, pin_memory=True), once
with torch.cuda.stream(copy_stream):              # the next request, while this one computes
    following = pinned.to(device, non_blocking=True)
torch.cuda.current_stream().wait_stream(copy_stream)""",
    ),
    jax=Fix(
        "Batches from NumPy are in pageable memory. Put the next batch on the device while this step computes "
        "(`jax.device_put` returns at once), keep the data set on the device if it fits, and send fewer bytes (uint8 "
        "or bfloat16, converted on the GPU).",
        JAX_PREFETCH_CODE,
    ),
    onnx=Fix(
        "`run` copies inputs and outputs that are NumPy arrays. Bind inputs and outputs to GPU memory (`io_binding`), "
        "so that results stay there for the next model, and prepare the next input in another thread meanwhile.",
        'binding.bind_output("logits", "cuda")             # stays on the GPU',
    ),
    julia=Fix(
        "Pin the host array once (`CUDA.pin`), and copy the next part in another task, which has its own stream, while "
        f"this one computes. A step {SEND_LESS}.",
        "CUDA.pin(host)                                   # once\ntask = @async copyto!(following, host)",
    ),
    openacc=Fix(
        "Keep arrays on the GPU in one data region around the loop, and update only what changes. Let the compiler pin "
        "host memory (nvc: `-gpu=pinned`), and put `async` on the update, so that it runs beside another queue's loop.",
        ACC_ASYNC_CODE,
    ),
    openmp=Fix(
        "Keep arrays on the GPU in one `target data` region around the loop, and update only what changes. Allocate "
        "host arrays in pinned memory (`omp_alloc` with the trait `omp_atk_pinned`), and put `nowait` on the update, "
        "so that it runs beside another loop.",
        OMP_ASYNC_CODE,
    ),
    arrays=Fix(
        "Keep host arrays in pinned memory, allocated once, copy them on a separate stream and one part ahead, so that "
        "the copy runs beside the kernels of the part before it. Pinning alone makes the copy faster but leaves it "
        f"exposed. A step {SEND_LESS}.",
        CUPY_CODE,
    ),
)
SMALL = "The copies are small ({each} on average): the cost is the call and the wait, not the bytes. "
NO_PIN = "Pinning does not help."
PAGEABLE_SMALL = Fixes(
    remedy="Gather small copies, pass scalars as arguments, read results later.",
    cuda=Fix(
        f"{SMALL}Pass scalars as kernel arguments, gather small arrays into one copy, and read results every N steps. "
        f"{NO_PIN}",
        "update<<<blocks, threads, 0, stream>>>(x, dt);    // an argument instead of a copy of dt",
    ),
    pytorch=Fix(
        f"{SMALL}Build such tensors on the device, gather them into one copy, and read scalars back every N steps. "
        f"{NO_PIN}",
        "x = torch.arange(n, device=device)   # not torch.arange(n).to(device); value.item() every N steps",
    ),
    jax=Fix(
        f"{SMALL}Create such arrays inside `jax.jit`, keep scalars in the state on the device, and read them every N "
        f"steps. {NO_PIN}",
        "metrics = jax.device_get(metrics)                # one copy for all of them, every N steps",
    ),
    openacc=Fix(
        f"{SMALL}Keep arrays on the GPU in one data region, make scalars `firstprivate`, and gather updates. {NO_PIN}",
        "#pragma acc parallel loop present(x) firstprivate(dt)",
    ),
    openmp=Fix(
        f"{SMALL}Keep arrays on the GPU in one `target data` region, make scalars `firstprivate`, and gather updates. "
        f"{NO_PIN}",
        "#pragma omp target teams distribute parallel for firstprivate(dt)",
    ),
    julia=Fix(
        f"{SMALL}Pass scalars as kernel arguments, gather small arrays into one copy, and do not read single elements. "
        f"{NO_PIN}"
    ),
    arrays=Fix(
        f"{SMALL}Create such arrays on the device, pass scalars as arguments, and read results every N steps. {NO_PIN}"
    ),
)
